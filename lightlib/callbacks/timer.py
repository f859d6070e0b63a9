"""Timer: how long the stages of a run take, and a limit for training."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from lightlib import lazy, report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.durations import seconds
from lightlib.errors import UnknownNameError, check_word

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

_STAGES = ("train", "validate", "test")


class Timer(Callback):
    """Measures training, validation and testing, and ends training after `duration`.

    The clock is monotonic, and training time adds up over resumes and calls of `fit`. Whether the run may stop before
    `min_epochs` and `min_steps` is decided by the Trainer.

    Args:
        duration: The limit: ``"12h"`` (or d, min, s), ``"DD:HH:MM:SS"`` (which is added up: 65 seconds are a minute and
            five), a `timedelta` or its arguments as a dict. None: only measure.
        interval: Look at the clock after every "step" or every "epoch".
        verbose: Print when the time is up.

    Raises:
        MisconfigurationException: A text of another form, or a negative duration.
        ArgumentTypeError: `duration` has another type.
        UnknownNameError: `interval` or a stage is something else.

    Example:
        >>> Timer("00:12:00:00").time_remaining()
        43200.0
    """

    def __init__(
        self,
        duration: str | timedelta | Mapping[str, float] | None = None,
        interval: Literal["step", "epoch"] = "step",
        verbose: bool = True,
    ) -> None:
        super().__init__()
        check_word("Timer", "interval", interval, ("step", "epoch"))
        self.duration = None if duration is None else seconds("Timer", "duration", duration)
        self.interval = interval
        self.verbose = verbose
        self._start: dict[str, float] = {}
        self._end: dict[str, float] = {}
        self._before = 0.0
        self._said = False

    def start_time(self, stage: str = "train") -> float | None:
        """Return when `stage` began, in seconds of `time.monotonic`, or None when it did not."""
        return self._start.get(_checked(stage))

    def end_time(self, stage: str = "train") -> float | None:
        """Return when `stage` ended, in seconds of `time.monotonic`, or None when it did not."""
        return self._end.get(_checked(stage))

    def time_elapsed(self, stage: str = "train") -> float:
        """Return the seconds spent in `stage` ("train", "validate" or "test"); in training, over all resumes."""
        start, end = self.start_time(stage), self.end_time(stage)
        before = self._before if stage == "train" else 0.0
        if start is None:
            return before
        return before + (time.monotonic() if end is None else end) - start

    def time_remaining(self, stage: str = "train") -> float | None:
        """Return the seconds that are left of the limit, or None when there is none."""
        return None if self.duration is None else self.duration - self.time_elapsed(stage)

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        if self._start.get("train") is not None and self._end.get("train") is not None:
            self._before = self.time_elapsed()
        self._start.pop("train", None)
        self._end.pop("train", None)
        self._said = False
        self._stop_when_over(trainer, together=True)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin("train")

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._end["train"] = time.monotonic()

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin("validate")

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._end["validate"] = time.monotonic()

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._begin("test")

    def on_test_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._end["test"] = time.monotonic()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.interval == "step":
            self._stop_when_over(trainer, together=False)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        if self.interval == "epoch":
            self._stop_when_over(trainer, together=True)

    def _begin(self, stage: str) -> None:
        self._start[stage] = time.monotonic()
        self._end.pop(stage, None)

    def _stop_when_over(self, trainer: Trainer, together: bool) -> None:
        """Request a stop when the time is up by rank zero's clock: on all ranks at once, or on rank zero alone.

        The run sends a request of one rank to all, and finds the batch after which they stop, so ranks need not
        communicate in every step.
        """
        if self.duration is None or not (together or trainer.is_global_zero):
            return
        over = self.time_elapsed() >= self.duration
        if not (trainer.strategy.broadcast(over) if together else over):
            return
        trainer.should_stop = True
        if self.verbose and not self._said:
            self._said = True
            report.info(
                f"Timer: the limit of {timedelta(seconds=self.duration)} is reached after "
                f"{timedelta(seconds=int(self.time_elapsed()))} of training; the run ends."
            )

    def state_dict(self) -> dict[str, Any]:
        return {"time_elapsed": {stage: self.time_elapsed(stage) for stage in _STAGES}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue counting from an earlier run's training time."""
        self._start.pop("train", None)
        self._end.pop("train", None)
        self._before = float(state_dict["time_elapsed"].get("train", 0.0))


def _checked(stage: str) -> str:
    if stage not in _STAGES:
        raise UnknownNameError("stage", stage, _STAGES, fix='Timer.time_elapsed("train")')
    return stage


if not TYPE_CHECKING:
    __getattr__ = lazy.translated_names(__name__)
