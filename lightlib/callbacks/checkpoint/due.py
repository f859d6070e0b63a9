"""Due: when a ModelCheckpoint has to save, and whether the metric it compares is of that moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightlib.callbacks.checkpoint import messages
from lightlib.callbacks.monitored import validates
from lightlib.callbacks.shared_clock import SharedClock

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

__all__ = ["Due"]


@dataclass
class Due:
    """Position of the last check, and of the last validation.

    Attributes:
        step: Optimizer steps at the last check.
        epoch_ended: Whether a training epoch has ended since training began.
        validated_at_step: Optimizer steps at the last validation; None before the first one.
        validated_value: The metric after that validation.
    """

    step: int = 0
    epoch_ended: bool = False
    validated_at_step: int | None = None
    validated_value: Tensor | None = None
    _clock: SharedClock = field(default_factory=SharedClock)

    def begin(self, batch: int, step: int) -> None:
        """Start counting at this position."""
        self.step, self.epoch_ended = step, False
        self.validated_at_step = self.validated_value = None
        self._clock.start(batch)

    def after_batch(self, trainer: Trainer, every_n_train_steps: int, interval: timedelta | None) -> bool:
        """Whether a save is due after this batch: every n optimizer steps, or after a time."""
        if every_n_train_steps:
            before, self.step = self.step, trainer.global_step
            due = self.step // every_n_train_steps > before // every_n_train_steps
        else:
            due = interval is not None and self._clock.over(trainer, trainer.progress.batch, interval.total_seconds())
        if due:
            self._clock.start(trainer.progress.batch)
        return due

    def note_validation(self, step: int) -> None:
        """Note that a validation has ended."""
        self.validated_at_step = step

    def note_metric(self, value: Tensor | None) -> None:
        """Note the metric after that validation."""
        self.validated_value = value

    def note_epoch_end(self) -> None:
        """Note that a training epoch has ended."""
        self.epoch_ended = True

    def metric_should_exist(self, trainer: Trainer) -> bool:
        """Whether the run has been where a metric is logged at the latest."""
        return self.validated_at_step is not None if validates(trainer) else self.epoch_ended

    def stale_since(self, step: int, value: Tensor) -> int | None:
        """Return the step of the validation that logged `value`, if no validation has run at `step`; else None."""
        known = self.validated_value is not None and torch.equal(self.validated_value, value)
        return self.validated_at_step if known and self.validated_at_step != step else None

    def current_metric(
        self, trainer: Trainer, monitor: str, candidates: Mapping[str, Tensor], warn_once: messages.WarnOnce
    ) -> Tensor | None:
        """Return the metric to compare; None, with a warning, if it is not logged yet. Warn of an old one.

        Raises:
            MisconfigurationException: It should have been logged by now.
        """
        current, step, logged = candidates.get(monitor), trainer.global_step, set(trainer.callback_metrics)
        if current is None and self.metric_should_exist(trainer):
            raise messages.never_logged(monitor, logged)
        if current is None:
            warn_once("missing", messages.not_logged_yet(monitor, step, logged))
            return None
        logged_at = self.stale_since(step, current)
        if logged_at is not None:
            warn_once("stale", messages.stale(monitor, step, logged_at))
        return current

    def state(self, timed: bool) -> dict[str, Any]:
        """Return the position as plain values; with the seconds since the last save if time decides."""
        return {
            "step": self.step,
            "epoch_ended": self.epoch_ended,
            "validated_at_step": self.validated_at_step,
            "validated_value": self.validated_value,
            "seconds": self._clock.passed if timed else 0.0,
        }

    def restore(self, batch: int, state: Mapping[str, Any]) -> None:
        """Continue from a position that `state` returned; entries that it lacks stay as they are."""
        self.step = state.get("step", self.step)
        self.epoch_ended = state.get("epoch_ended", self.epoch_ended)
        self.validated_at_step = state.get("validated_at_step", self.validated_at_step)
        self.validated_value = state.get("validated_value", self.validated_value)
        self._clock.start(batch, passed=float(state.get("seconds", 0.0)))
