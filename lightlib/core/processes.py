"""The processes of a Trainer or a Fabric: started and connected on first use, and watched."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Protocol

from lightlib import report
from lightlib.core.run.parts import END_EPOCH, STOP, VALIDATE
from lightlib.core.run.run import Run
from lightlib.core.run.signals import Signals
from lightlib.launch.start.subprocess import SubprocessLauncher
from lightlib.launch.watch.failure import Failure, OtherRankError, end_process, is_echo
from lightlib.launch.watch.watch import Watch
from lightlib.strategies.strategy import Strategy

_DEFAULT_TIMEOUT = timedelta(minutes=30)
_watch: list[Watch] = []  # one per process, however many Trainers it has
_watched: list[Processes] = []  # those with a watched call; a hook may call another Trainer


class _Owner(Protocol):
    """A Trainer or a Fabric."""

    strategy: Strategy


class Processes:
    """The connection of a Trainer or a Fabric to the other processes."""

    def __init__(self, trainer: _Owner) -> None:
        self._trainer = trainer
        self._ready = False
        self._run: Run | None = None
        self._signals: Signals | None = None

    @property
    def watch(self) -> Watch | None:
        """Communicates with the other ranks outside of collectives; None with one process."""
        return _watch[-1] if _watch and self._trainer.strategy.world_size > 1 else None

    @property
    def connected(self) -> bool:
        """Whether `ready` has been called."""
        return self._ready

    def ready(self) -> None:
        """Start the other processes unless a launcher has, connect to them, and set up the device; once."""
        if self._ready:
            return
        strategy, launcher = self._trainer.strategy, None
        if strategy.world_size > 1 and not strategy.environment.launched and strategy.launcher == "subprocess":
            launcher = SubprocessLauncher(strategy.environment, strategy.forked)
            strategy.use(strategy.accelerator, list(strategy.devices), strategy.precision, launcher.launch())
            launcher.meets = True
            launcher.on_death(partial(_report_death, launcher))
        if strategy.world_size > 1 and not _watch:
            report.info(strategy.environment.describe())
        strategy.setup_environment()
        if launcher is not None:
            launcher.meets = False
        self._ready = True
        if strategy.world_size > 1:
            self._start_watch(launcher)

    def _start_watch(self, launcher: SubprocessLauncher | None) -> None:
        from lightlib.strategies.group.process_group import store  # optional: only with several processes

        strategy, joined = self._trainer.strategy, store()
        if joined is None or _watch:
            return
        connection, attempt = joined
        wait = (strategy.timeout or _DEFAULT_TIMEOUT).total_seconds()
        last = None if launcher is None else partial(_end_children, launcher)
        _watch.append(Watch(connection, strategy.global_rank, strategy.world_size, wait, name=attempt, before_end=last))
        _watch[-1].install()

    def begin(self, signals: Signals) -> None:
        """Watch a call: from now on the other ranks see the position of this one, and its failure."""
        self._run, self._signals = None, signals
        if self.watch is not None:
            _watched.append(self)
            self._watch_call(self.watch, signals)

    def _watch_call(self, watch: Watch, signals: Signals) -> None:
        def on_request(kind: str) -> None:
            if kind in (STOP, VALIDATE, END_EPOCH):
                if self._run is not None:
                    self._run.stop.request(kind)
            else:
                signals.receive(kind)

        watch.start(self._position, on_request, self._described)
        signals.notify_by(watch.request)

    def attach(self, run: Run) -> None:
        if self.watch is not None:
            run.stop.agree_by(self.watch)
        self._run = run

    def _position(self) -> tuple[int, ...]:
        return (-1,) if self._run is None else self._run.position()

    def _described(self) -> str:
        if self._run is None:
            return "setting up the run"
        run, progress = self._run, self._run.progress
        return f"{run.stage}, epoch {progress.epoch}, batch {progress.epoch_batch}, step {progress.step}"

    def end(self) -> None:
        """End the watch of the call; the outer call, if there is one, is watched again."""
        if self.watch is None or self not in _watched:
            return
        self.watch.stop()
        _watched.remove(self)
        if _watched:
            _watched[-1].watch_again()

    def watch_again(self) -> None:
        """Watch this call again after a nested one."""
        assert self.watch is not None
        assert self._signals is not None
        self._watch_call(self.watch, self._signals)

    def first_failure(self, error: BaseException) -> BaseException:
        """Return the error to raise: `error`, or the one with which another rank failed first."""
        watch = self.watch
        if watch is None or (self._signals is not None and error is self._signals.received):
            return error  # all have agreed to leave
        failure = watch.fail(error)
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            return error
        late = failure.kind == "hang" and is_echo(error)  # raised because the other ranks had already left
        if failure.rank == self._trainer.strategy.global_rank and not late:
            return error
        return KeyboardInterrupt() if failure.kind == "interrupt" else OtherRankError(failure)


def _report_death(launcher: SubprocessLauncher, rank: int, returncode: int, tail: str) -> None:
    """Report the death of a started process; before the rendezvous end this one, which would wait forever."""
    if _watch:
        _watch[-1].report_death(rank, returncode, tail)
    elif returncode != 0 or launcher.meets:
        end_process(Failure.of_death(rank, returncode, tail).text, partial(_end_children, launcher))


def _end_children(launcher: SubprocessLauncher) -> None:
    launcher.wait(3.0)
    launcher.stop(1.0)
