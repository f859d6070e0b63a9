"""The processes of a Trainer: started on its first call, made to meet, and watched while it runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from lightlib import report
from lightlib.core.agreement import Agreement
from lightlib.core.run import Run
from lightlib.core.signals import Signals
from lightlib.errors import SIGTERMException
from lightlib.launch.failure import OtherRankError
from lightlib.launch.subprocess import SubprocessLauncher
from lightlib.launch.watch import Watch

__all__ = ["Processes"]

_HOW_LONG = timedelta(minutes=30)
_watch: list[Watch] = []  # one per process, however many Trainers it has


class Processes:
    """What a Trainer knows about the other processes.

    Args:
        trainer: Whose strategy says how many there are and how they are started.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._ready = False

    @property
    def watch(self) -> Watch | None:
        """Speaks with the other processes outside of collectives; None with one process."""
        return _watch[-1] if _watch and self._trainer.strategy.world_size > 1 else None

    def ready(self) -> None:
        """Start the other processes if nobody has, meet them, and take hold of the device; once."""
        if self._ready:
            return
        strategy = self._trainer.strategy
        environment = strategy.environment
        launcher = None
        if strategy.world_size > 1 and not environment.launched and strategy.launcher == "subprocess":
            launcher = SubprocessLauncher(environment)
            strategy.environment = environment = launcher.launch()
        if environment.world_size > 1:
            report.info(environment.describe())
        strategy.setup_environment()
        self._ready = True
        if strategy.world_size > 1 and not _watch:
            from lightlib.strategies.process_group import store  # optional: only with several processes

            met = store()
            if met is not None:
                wait = (strategy.timeout or _HOW_LONG).total_seconds()
                _watch.append(Watch(met, strategy.global_rank, strategy.world_size, wait))
        if launcher is not None and self.watch is not None:
            launcher.on_death(self.watch.report_death)

    def begin(self, run: Run, signals: Signals) -> None:
        """Watch `run`: from now on the others know where this process is."""
        watch = self.watch
        if watch is None:
            return
        run.agreement = Agreement(watch)

        def wish(kind: str) -> None:
            if kind == "stop":
                run.stop_asked = True
            elif signals.received is None:
                signals.received = SIGTERMException() if kind == "terminate" else KeyboardInterrupt()

        watch.start(run.position, wish, lambda: _described(run))

    def end(self) -> None:
        """Stop watching: the run has ended."""
        if self.watch is not None:
            self.watch.stop()

    def first_failure(self, error: BaseException) -> BaseException:
        """Return the error to raise: `error`, or the one with which another process failed first."""
        watch = self.watch
        if watch is None or isinstance(error, (KeyboardInterrupt, SystemExit)):
            return error
        failure = watch.fail(error)
        if failure.rank == self._trainer.strategy.global_rank:
            return error
        return OtherRankError(failure)


def _described(run: Run) -> str:
    progress = run.progress
    return f"{run.stage}, epoch {progress.epoch}, batch {progress.epoch_batch}, step {progress.step}"


