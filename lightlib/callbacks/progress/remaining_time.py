"""The time that remains of a run: batches at their pace, and the validations between them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lightlib.callbacks.timer import Timer

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

_SMOOTHING_SECONDS = 3.0


class Pace:
    """Rates of batches: the average since `start`, for the remaining time, and the recent one, to show."""

    def __init__(self, now: float, batch: int, step: int = 0) -> None:
        self.start, self.start_batch, self.start_step = now, batch, step
        self.marked, self.marked_batch = now, batch
        self.rate: float | None = None

    def update(self, now: float, batch: int) -> None:
        """Note that `batch` batches are done."""
        seconds, batches = now - self.marked, batch - self.marked_batch
        if seconds <= 0 or batches <= 0:
            return
        rate, weight = batches / seconds, math.exp(-seconds / _SMOOTHING_SECONDS)
        self.rate = rate if self.rate is None else weight * self.rate + (1 - weight) * rate
        self.marked, self.marked_batch = now, batch

    def resume(self, now: float) -> None:
        """Exclude the time since the last update from the rate: a validation has run."""
        self.marked = now

    def remaining(self, now: float, left: float, done: int) -> float:
        """Seconds that `left` more will take when `done` took the time since the start; `inf` when unknown."""
        return left * (now - self.start) / done if done > 0 else math.inf


class Validations:
    """Duration of a run's validations: their average, or before the first one an estimate by the sanity check."""

    def __init__(self, seconds_per_batch: float = 0.0) -> None:
        self.seconds = 0.0
        self.count = 0
        self.seconds_per_batch = seconds_per_batch  # of the sanity check

    def add(self, seconds: float) -> None:
        """Note a validation."""
        self.seconds += seconds
        self.count += 1

    def expected(self, batches: float) -> float:
        """Seconds that one with so many batches will take; 0 when nothing is known."""
        if self.count:
            return self.seconds / self.count
        return self.seconds_per_batch * batches if batches < math.inf else 0.0


def remaining_in_run(trainer: Trainer, pace: Pace, validations: Validations, now: float) -> float | None:
    """Return the seconds until the first limit of the run is reached, or None when that cannot be known.

    Args:
        trainer: Whose limits they are: epochs, steps, and those of its Timers.
        pace: Of the training batches, validations included.
        validations: That took part of this time.
        now: The clock.
    """
    progress, per_epoch = trainer.progress, trainer.num_training_batches
    done, steps = progress.batch - pace.start_batch, trainer.global_step - pace.start_step
    timers = [timer.time_remaining() for timer in trainer.callbacks if isinstance(timer, Timer)]
    limits = [seconds for seconds in timers if seconds is not None]
    left = math.inf
    if done > 0:
        total = limit(trainer.max_epochs) * per_epoch if per_epoch else math.inf
        left = total - (progress.epoch * per_epoch + progress.epoch_batch) if total < math.inf else math.inf
        if steps > 0:
            left = min(left, (limit(trainer.max_steps) - trainer.global_step) * done / steps)
    if left < math.inf:
        seconds_per_batch = max(0.0, now - pace.start - validations.seconds) / done
        each = validations.expected(sum(trainer.num_val_batches))
        limits.append(left * seconds_per_batch + _validations_left(trainer, left, seconds_per_batch) * each)
    return max(0.0, min(limits)) if limits else None


def limit(value: float | None) -> float:
    """Return a limit of the Trainer as a number; `inf` for none."""
    return math.inf if value is None or value < 0 else value


def _validations_left(trainer: Trainer, batches: float, seconds_per_batch: float) -> float:
    """How many validations there will be within the next `batches` training batches."""
    plan, progress, per_epoch = trainer.plan, trainer.progress, trainer.num_training_batches
    if plan is None or plan.validate_every is None:
        return 0
    if plan.validate_every_seconds is not None:
        return batches * seconds_per_batch / plan.validate_every_seconds
    every = plan.validate_every
    if plan.counts_batches:
        return plan.validations(progress.batch + batches) - plan.validations(progress.batch)
    if plan.validate_across_epochs or per_epoch == math.inf:
        return (progress.batch + batches) // every - progress.batch // every if every < math.inf else 0

    def until(epoch: float, batch: float) -> float:
        assert plan is not None
        of_an_epoch = 1 if every == math.inf else per_epoch // every
        begun = plan.validates_epoch(int(epoch))
        within = (batch >= per_epoch) if every == math.inf else batch // every
        return plan.validations(epoch) * of_an_epoch + begun * within

    epochs, rest = divmod(progress.epoch_batch + batches, per_epoch)
    return until(progress.epoch + epochs, rest) - until(progress.epoch, progress.epoch_batch)
