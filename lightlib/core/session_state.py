"""The state that a Trainer keeps between calls, and its snapshot for copies and spawned processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightlib.conventions import order
from lightlib.core.metrics.results import Results
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from lightlib.core.progress.states import TrainerState, TrainerStatus
from lightlib.core.resume.save import RunIdentity
from lightlib.core.run.run import Run
from lightlib.errors import SIGTERMException

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

# Pickle and deepcopy keep these, the callbacks and the logged metrics. Loaders, optimizers and everything else that
# belongs to a process are left out: a further fit makes them again.
_KEPT = ("module", "datamodule", "asked_path", "loaded_path", "state", "interrupted", "identity")
_OF_SIGNALS = (130, 143)  # the exit codes of spawned processes after Ctrl-C and SIGTERM


class SessionState:
    """The state that outlives one call. Only the session changes it; the Trainer's properties read it.

    Attributes:
        state: The Trainer's present or last function, and its status.
        interrupted: Whether a signal ended the last call.
        run: The last run; None while one is being built.
        fit_run: The run of the last fit: its optimizers and position outlive an evaluation.
        loaded_path: The checkpoint that the last call loaded.
        order: Of the present or last call.
        outside_results: Results without a run: of spawned processes, or of the Trainer that this one is a copy of.
    """

    def __init__(self, trainer: Trainer, callbacks: list[Any]) -> None:
        self.trainer = trainer
        self.state, self.interrupted = TrainerState(), False
        self.run: Run | None = None
        self.fit_run: Run | None = None
        self.identity = RunIdentity()
        self.callbacks: list[Any] = callbacks
        self.module: Module | None = None
        self.datamodule: DataModule | None = None
        self.asked_path: str | Path | None = None
        self.loaded_path: str | Path | None = None
        self.outside_results = Results()
        self.order = order()

    @property
    def results(self) -> Results:
        return self.outside_results if self.run is None else self.run.results

    def use_callbacks(self, callbacks: list[Any]) -> None:
        self.callbacks = callbacks

    def fail_as(self, error: BaseException) -> None:
        """Note that an error or a signal has ended the call, which `on_exception` reads."""
        exits = isinstance(error, SystemExit) and error.code in _OF_SIGNALS
        self.interrupted = exits or isinstance(error, (KeyboardInterrupt, SIGTERMException))
        failed = not self.interrupted and self.order.fails_as_failed
        self.state = replace(self.state, status=TrainerStatus.FAILED if failed else TrainerStatus.INTERRUPTED)

    def use_state(self, state: TrainerState) -> None:
        """Show the state of a call that runs in spawned processes."""
        self.state, self.interrupted = state, False

    def forget_run(self) -> None:
        self.run, self.outside_results = None, Results()

    def use_metrics(self, metrics: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> None:
        """Show the metrics of a run that did not run in this process."""
        self.outside_results = Results()
        self.order = order()
        self.outside_results.adopt(metrics)

    def use_module(self, module: Module, datamodule: DataModule | None) -> None:
        """Keep the module and data module of a call that ran in spawned processes."""
        self.module, self.datamodule = module, datamodule

    def use_checkpoint(self, path: str | Path | None) -> None:
        """Load this checkpoint in calls that name none."""
        self.asked_path = self.loaded_path = path

    def snapshot(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in _KEPT}
        return {**kept, "callbacks": list(self.callbacks), "metrics": self.results.dictionaries()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        for name in (*_KEPT, "callbacks"):
            setattr(self, name, snapshot[name])
        self.use_metrics(snapshot["metrics"])
        for owner in (self.module, self.datamodule):
            if owner is not None:
                owner.trainer = self.trainer
