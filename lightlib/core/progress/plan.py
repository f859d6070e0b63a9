"""Plan: all limits and intervals of a run, frozen; every decision is a pure function of Progress."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from lightlib.core.progress.progress import Progress

Intervals = tuple[tuple[int, int], ...]  # (from this number on, every so many), ordered


def count_due(intervals: Intervals, number: float) -> int:
    """Return how many of 1, 2, …, `number` are due: from each start on, the multiples of its interval.

    Example:
        >>> count_due(((0, 1), (10, 5)), 20)  # 1 to 9, 10, 15, 20
        12
    """
    ends = [start for start, _ in intervals[1:]] + [math.inf]
    segments = zip(intervals, ends, strict=True)
    return int(sum(max(0, min(end - 1, number) // n - (max(start, 1) - 1) // n) for (start, n), end in segments))


def is_due(intervals: Intervals, number: int) -> bool:
    """Whether `number` is due."""
    return number > 0 and count_due(intervals, number) > count_due(intervals, number - 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """Limits and intervals of a run. Every number is resolved before the first batch; "no limit" is `math.inf`.

    Attributes:
        num_batches: Training batches per epoch, after all limits; `inf` if the loader has no length.
        accumulate: Batches per optimizer step.
        max_epochs, max_steps: The run ends when either is reached. Steps are optimizer steps.
        last_epoch_batches: Batches of the last epoch if `max_epochs` was not a whole number; else `inf`.
        min_epochs, min_steps: No early stop before both.
        validate_every: Batches between two validations; `inf` means at the end of the epoch, None never.
        validate_across_epochs: Count `validate_every` over the entire run instead of from each epoch's start.
        validate_every_seconds: Instead validate this many seconds after the last validation.
        validate_every_epochs: Validate only in the epochs that these intervals contain.
        validate_changes: Instead of `validate_every`, intervals in batches of the entire run.
        validate_at_end: Validate at the end of the run as well.
        sanity_batches: Validation batches before training, per loader.
        log_every: Optimizer steps between two writes to the loggers; 0 is never.
        begun_batches: Batches of the first epoch that an earlier fit has trained on.
        checks_always: Run the sanity check before a run that is resumed as well.
    """

    num_batches: float = math.inf
    accumulate: int = 1
    max_epochs: float = math.inf
    max_steps: float = math.inf
    last_epoch_batches: float = math.inf
    min_epochs: int = 0
    min_steps: int = 0
    validate_every: float | None = None
    validate_across_epochs: bool = False
    validate_every_seconds: float | None = None
    validate_every_epochs: Intervals = ((0, 1),)
    validate_changes: Intervals = ()
    validate_at_end: bool = False
    sanity_batches: float = 0
    log_every: int = 50
    begun_batches: int = 0
    checks_always: bool = False

    def done(self, progress: Progress) -> bool:
        """Whether a limit is reached, or there is nothing to train on."""
        steps = progress.step + progress.more
        if steps >= self.max_steps or progress.epoch >= self.max_epochs or self.num_batches == 0:
            return True
        return progress.epoch_batch >= self.last_epoch_batches and progress.epoch + 1 >= self.max_epochs

    def rest(self, progress: Progress) -> Plan:
        """Return the plan of a run that begins at `progress`, as the schedules of a further `fit` do.

        Example:
            >>> plan = Plan(num_batches=10, max_epochs=5)
            >>> plan.rest(Progress(epoch=2, batch=20, step=20)).total_steps
            30
        """
        if not progress.batch:
            return self
        max_steps = min(self.max_steps - progress.step - progress.more, self.total_steps - progress.step)
        max_epochs = self.max_epochs - progress.epoch
        return replace(self, max_epochs=max_epochs, max_steps=max_steps, begun_batches=progress.epoch_batch)

    def ends(self, progress: Progress, exhausted: bool) -> bool:
        """Whether the run ends after this batch."""
        return self.done(progress) or (exhausted and progress.epoch + 1 >= self.max_epochs)

    def validates_epoch(self, epoch: int) -> bool:
        """Whether the intervals in epochs contain the epoch with this index."""
        return self.validate_across_epochs or is_due(self.validate_every_epochs, epoch + 1)

    def may_stop(self, progress: Progress) -> bool:
        """Whether a request for an early stop may be granted."""
        return progress.epoch >= self.min_epochs and progress.step + progress.more >= self.min_steps

    def sanity_check_due(self, progress: Progress) -> bool:
        """Whether to run a few validation batches before training, which a resumed run does not."""
        due = self.validate_every is not None and self.sanity_batches > 0
        return due and (progress.batch == 0 or self.checks_always)

    def validation_due(self, progress: Progress, exhausted: bool, stopping: bool, seconds: float) -> bool:
        """Whether to validate now.

        Args:
            progress: The position of the run.
            exhausted: Whether the epoch has no further batch.
            stopping: Whether an early stop was granted: then the last state is validated if this epoch validates.
            seconds: Time since the last validation; only read if the interval is a time.
        """
        every = self.validate_every
        if every is None or progress.validated == progress.batch:
            return False
        if stopping:
            due = True
        elif self.validate_every_seconds is not None:
            due = progress.epoch_batch > 0 and seconds >= self.validate_every_seconds
        elif self.validate_changes:
            due = is_due(self.validate_changes, progress.batch)
        elif every == math.inf:
            due = exhausted
        else:
            counted = progress.batch if self.validate_across_epochs else progress.epoch_batch
            due = counted > 0 and counted % every == 0
        if due and self.validates_epoch(progress.epoch):
            return True
        return self.validate_at_end and (stopping or self.ends(progress, exhausted))

    def validations(self, number: float) -> int:
        """Return how many of the first epochs are validated, or after how many of the first batches of the run."""
        return count_due(self.validate_changes or self.validate_every_epochs, number)

    def window_starts(self, progress: Progress) -> bool:
        """Whether the next batch is the first of an accumulation window."""
        return progress.epoch_batch % self.accumulate == 0

    def window_size(self, progress: Progress) -> int:
        """Return the number of batches of the window that starts now; the last one of an epoch may be shorter."""
        return 1 if self.accumulate == 1 else int(min(self.accumulate, self.num_batches - progress.epoch_batch))

    def steps_now(self, progress: Progress, exhausted: bool) -> bool:
        """Whether the batch that is about to run closes its accumulation window."""
        return exhausted or (progress.epoch_batch + 1) % self.accumulate == 0

    def window_closed(self, progress: Progress, exhausted: bool) -> bool:
        """Whether no gradients wait for an optimizer step, which a checkpoint could not hold."""
        return exhausted or progress.epoch_batch % self.accumulate == 0

    def logging_due(self, progress: Progress) -> bool:
        """Whether the values of the step that has just ended are written to the loggers."""
        return self.log_every > 0 and progress.step % self.log_every == 0

    @property
    def steps_per_epoch(self) -> float:
        """Optimizer steps of a full epoch."""
        return self.num_batches if self.num_batches == math.inf else math.ceil(self.num_batches / self.accumulate)

    @property
    def total_steps(self) -> float:
        """Optimizer steps of the entire run; `inf` if no limit is known."""
        if math.inf in (self.max_epochs, self.num_batches):
            return self.max_steps
        by_epochs = self.max_epochs * self.steps_per_epoch
        if self.last_epoch_batches < math.inf:
            by_epochs -= self.steps_per_epoch - math.ceil(self.last_epoch_batches / self.accumulate)
        return min(by_epochs, self.max_steps)

    @property
    def num_epochs(self) -> float:
        """The epochs that the run begins; `inf` if no limit is known."""
        passed = self.epochs_passed
        return math.ceil(passed) if passed < math.inf else self.max_epochs

    @property
    def epochs_passed(self) -> float:
        """Epochs at the end of the run, with the part that an earlier fit has trained on; `inf` if unknown."""
        per_epoch = self.steps_per_epoch
        if self.total_steps == math.inf or not 0 < per_epoch < math.inf:
            return math.inf
        return (self.total_steps + math.ceil(self.begun_batches / self.accumulate)) / per_epoch

    @property
    def total_batches(self) -> float:
        """Batches of the entire run, also those without an optimizer step; `inf` if no limit is known."""
        if self.num_batches == math.inf:
            return self.max_steps * self.accumulate
        by_epochs = self.max_epochs * self.num_batches
        if self.last_epoch_batches < math.inf:
            by_epochs -= self.num_batches - self.last_epoch_batches
        if self.max_steps == math.inf:
            return by_epochs
        epochs, steps = divmod(self.max_steps, max(1, self.steps_per_epoch))
        return min(by_epochs, epochs * self.num_batches + min(steps * self.accumulate, self.num_batches))
