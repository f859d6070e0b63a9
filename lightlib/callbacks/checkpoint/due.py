"""Due: saves of a ModelCheckpoint by steps or time, and whether the compared metric is of that moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightlib import report
from lightlib.callbacks.data_counter import counter_of
from lightlib.callbacks.durations import Duration
from lightlib.callbacks.monitored import is_old, missing, validates, validation_comes
from lightlib.callbacks.shared_clock import SharedClock
from lightlib.errors import nearest

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer


def warn_if_none_comes(trainer: Trainer, save_last: bool) -> None:
    """Warn, as training begins, that a callback which saves after validations has none to save after."""
    if validation_comes(trainer):
        return
    saved = "only the last checkpoint is saved" if save_last else "no checkpoint is saved"
    report.warn(
        f"ModelCheckpoint saves after validations, and this run has none, so {saved}.\n"
        "  Expected: validation batches, and at least one validation before max_epochs.\n"
        "  Fix: ModelCheckpoint(save_on_train_epoch_end=True)",
        report.PossibleUserWarning,
    )


def stepped_since(trainer: Trainer, batch: int) -> bool:
    """Whether an optimizer step has ended after this batch of the run."""
    waiting = trainer.run.batches_waiting() if trainer.run is not None else 0
    return trainer.progress.batch - waiting > batch


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

    def after_batch(
        self, trainer: Trainer, every_n_train_steps: int, interval: timedelta | Duration | None, begin: int = 0
    ) -> bool:
        """Whether a save is due after this batch: every n optimizer steps from `begin` on, or after an interval."""
        if every_n_train_steps:
            before, self.step = self.step, trainer.global_step
            since = self.step - begin
            due = since >= 0 and since // every_n_train_steps > (before - begin) // every_n_train_steps
        elif isinstance(interval, Duration):
            due = counter_of(trainer.callbacks).ended(interval)
        else:
            due = interval is not None and self._clock.over(trainer, trainer.progress.batch, interval.total_seconds())
        if due:
            self._clock.start(trainer.progress.batch)
        return due

    def note_validation(self, step: int, value: Tensor | None) -> None:
        """Note that a validation has ended, and the metric after it."""
        self.validated_at_step, self.validated_value = step, value

    def note_epoch_end(self) -> None:
        """Note that a training epoch has ended."""
        self.epoch_ended = True

    def current_metric(
        self, trainer: Trainer, monitor: str, candidates: Mapping[str, Tensor], once: report.Once
    ) -> Tensor | None:
        """Return the metric to compare; None, with a warning, if it is not logged yet. Warn of an old one.

        It is None as well if it has no new value because the last validation left its loader out.

        Raises:
            MisconfigurationException: It should have been logged by now.
        """
        value, step, logged = candidates.get(monitor), trainer.global_step, set(trainer.callback_metrics)
        if is_old(trainer, monitor):
            return None
        if value is None:
            self._report_missing(trainer, monitor, logged, once)
        elif self.validated_at_step != step and self._is_of_validation(value):
            once.warn(
                "stale",
                f"ModelCheckpoint(monitor={monitor!r}): the checkpoint of step {step} is compared by a number of step "
                f"{self.validated_at_step}, because no validation has run since. Save and validate at the same steps, "
                "for example by saving after validations: leave out every_n_train_steps and train_time_interval.",
                report.PossibleUserWarning,
            )
        return value

    def _is_of_validation(self, value: Tensor) -> bool:
        return self.validated_value is not None and torch.equal(self.validated_value, value)

    def _report_missing(self, trainer: Trainer, monitor: str, logged: set[str], once: report.Once) -> None:
        should_exist = self.validated_at_step is not None if validates(trainer) else self.epoch_ended
        if should_exist:
            raise missing(
                "ModelCheckpoint",
                monitor,
                logged,
                fix=f"log it with self.log({monitor!r}, …); if it is logged for a full training epoch, set "
                "ModelCheckpoint(save_on_train_epoch_end=True).",
            )
        once.warn(
            "missing",
            f"ModelCheckpoint(monitor={monitor!r}): at step {trainer.global_step} this metric does not exist yet, so "
            f"no checkpoint was compared.{nearest(monitor, logged)} Saves begin when it has been logged for the first "
            "time.",
            report.PossibleUserWarning,
        )

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
        """Continue from a position that `state` returned."""
        self.step, self.epoch_ended = state["step"], state["epoch_ended"]
        self.validated_at_step, self.validated_value = state["validated_at_step"], state["validated_value"]
        self._clock.start(batch, passed=state["seconds"])
