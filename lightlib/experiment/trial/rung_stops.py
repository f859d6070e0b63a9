"""RungStops: validates a trial exactly at its rungs, and ends or continues it as its worker decides."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lightlib.callbacks.callback import Callback
from lightlib.callbacks.monitored import is_old
from lightlib.errors import StopTraining
from lightlib.experiment.job import Job
from lightlib.experiment.messages import Messages
from lightlib.experiment.rungs import Rungs

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class RungStops(Callback):
    """Compares a trial with the rest of its search at each rung.

    A validation is requested where a rung is reached. After it the trial waits for the decision of its worker; it waits
    nowhere else. A trial that is interrupted while it waits asks again when it continues.

    Args:
        job: The attempt.
        messages: To its worker; None on ranks other than 0.
    """

    after_module = True

    def __init__(self, job: Job, messages: Messages | None) -> None:
        self._rungs, self._unit, self._metric = Rungs(job, messages), job.unit, job.metric
        self._validated: tuple[int, float] | None = None  # the length of the last validation, and its metric

    def state_dict(self) -> dict[str, Any]:
        return {"validated": self._validated}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._validated = state_dict["validated"]

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._wait(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._rungs.reached(self._length(trainer)):
            trainer.request_validation()

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.sanity_checking or is_old(trainer, self._metric):
            return
        value = trainer.callback_metrics.get(self._metric, math.nan)  # only rank 0 has it if only rank 0 logs it
        self._validated = (self._length(trainer), float(value))
        self._wait(trainer)

    def _length(self, trainer: Trainer) -> int:
        """Return the optimizer steps or the complete epochs so far."""
        return trainer.global_step if self._unit == "steps" else trainer.progress.epoch + trainer.is_last_batch

    def _wait(self, trainer: Trainer) -> None:
        if self._validated is None or not self._rungs.reached(self._validated[0]):
            return
        decision = None
        if trainer.is_global_zero:
            decision = self._rungs.decision(*self._validated, lambda: trainer.stop_signal is not None)
        decision = trainer.strategy.broadcast(decision)
        if decision is not None:
            self._rungs.pass_by(self._validated[0])
        if decision == "stop":
            raise StopTraining(f"It is not among the best after {self._validated[0]:,} {self._unit}.")
