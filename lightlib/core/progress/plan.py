"""Plan: all limits and intervals of a run, frozen; every decision is a pure function of Progress."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from lightlib.core.progress.progress import Progress

Intervals = tuple[tuple[int, int], ...]  # (from this number on, every so many), ordered


def as_intervals(given: int | Intervals) -> Intervals:
    """Return one interval, from the start on, or those that change as they are."""
    return ((0, given),) if isinstance(given, int) else given


def count_due(intervals: Intervals, number: float) -> int:
    """Return how many of 1, 2, …, `number` are due: from each start on, the multiples of its interval.

    Example:
        >>> count_due(((0, 1), (10, 5)), 20)  # 1 to 9, 10, 15, 20
        12
    """
    ends = [start for start, _ in intervals[1:]] + [math.inf]
    segments = zip(intervals, ends, strict=True)
    return int(sum(max(0, min(end - 1, number) // n - (max(start, 1) - 1) // n) for (start, n), end in segments))


def due_numbers(intervals: Intervals, number: float) -> set[int]:
    """Return those of 1, 2, …, `number` that are due, as `count_due` counts them.

    Example:
        >>> sorted(due_numbers(((0, 2), (5, 5)), 10))
        [2, 4, 5, 10]
    """
    ends = [start for start, _ in intervals[1:]] + [math.inf]
    segments = zip(intervals, ends, strict=True)
    return {
        k for (start, n), end in segments for k in range(-(-max(start, 1) // n) * n, int(min(end - 1, number)) + 1, n)
    }


def is_due(intervals: Intervals, number: int) -> bool:
    """Whether `number` is due."""
    return number > 0 and count_due(intervals, number) > count_due(intervals, number - 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """Limits and intervals of a run. Every number is resolved before the first batch; "no limit" is `math.inf`.

    Attributes:
        num_batches: Training batches per epoch, after all limits; `inf` if the loader has no length.
        accumulate: Batches per optimizer step in the present epoch.
        accumulate_changes: If they change: from each of these epochs on, batches per optimizer step.
        max_epochs, max_steps: The run ends when either is reached. Steps are optimizer steps.
        max_batches: The run ends after the optimizer step that reaches so many batches.
        last_epoch_batches: Batches of the last epoch if `max_epochs` was not a whole number; else `inf`.
        min_epochs, min_steps: No early stop before both.
        validate_every: Batches between two validations; `inf` means at the end of the epoch, None never.
        validate_across_epochs: Count `validate_every` over the entire run instead of from each epoch's start.
        validate_every_seconds: Instead validate this many seconds after the last validation.
        validate_every_epochs: Validate only in the epochs that these intervals contain.
        validate_changes: Instead of `validate_every`, intervals in batches of the entire run.
        validate_loaders: If the validation loaders have intervals of their own: by name those in epochs, or with
            `validate_across_epochs` those in batches of the entire run. A validation reads the loaders that are due.
        validate_at_end: Validate at the end of the run as well.
        sanity_batches: Validation batches before training, per loader.
        log_every: Optimizer steps between two writes to the loggers; 0 is never.
        begun_batches: Batches of the first epoch that an earlier fit has trained on.
        checks_always: Run the sanity check before a run that is resumed as well.
    """

    num_batches: float = math.inf
    accumulate: int = 1
    accumulate_changes: Intervals = ()
    max_epochs: float = math.inf
    max_steps: float = math.inf
    max_batches: float = math.inf
    last_epoch_batches: float = math.inf
    min_epochs: int = 0
    min_steps: int = 0
    validate_every: float | None = None
    validate_across_epochs: bool = False
    validate_every_seconds: float | None = None
    validate_every_epochs: Intervals = ((0, 1),)
    validate_changes: Intervals = ()
    validate_loaders: tuple[tuple[str, Intervals], ...] = ()
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
        if progress.batch >= self.max_batches and self.window_closed(progress, False):
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
        epoch, begun = progress.epoch, progress.epoch_batch
        max_steps = self.max_steps - progress.step - progress.more
        if math.inf not in (self.max_epochs, self.num_batches):
            max_steps = min(max_steps, self._steps_by_epochs(epoch) - self._steps_within(begun, self.accumulate))
        changes = tuple((start - epoch, n) for start, n in self.accumulate_changes)
        return replace(
            self,
            max_epochs=max(0, self.max_epochs - epoch),
            max_steps=max(0, max_steps),
            accumulate_changes=changes,
            begun_batches=begun,
        )

    def ends(self, progress: Progress, exhausted: bool) -> bool:
        """Whether the run ends after this batch."""
        return self.done(progress) or (exhausted and progress.epoch + 1 >= self.max_epochs)

    def is_last_epoch(self, progress: Progress) -> bool:
        """Whether no epoch follows the running one, or the one that has just ended; False if that is unknown.

        Example:
            >>> plan = Plan(num_batches=10, max_steps=15)
            >>> plan.is_last_epoch(Progress(epoch=0, begun=1)), plan.is_last_epoch(Progress(epoch=1, begun=1))
            (False, True)
        """
        begun = progress.epochs_begun
        has_length = self.num_batches < math.inf
        return begun >= self.max_epochs or (has_length and begun * self.num_batches >= self.total_batches)

    def validates_epoch(self, epoch: int) -> bool:
        """Whether the intervals in epochs contain the epoch with this index."""
        return self.validate_across_epochs or self._is_due(epoch + 1)

    @property
    def counts_batches(self) -> bool:
        """Whether intervals in batches of the entire run take the place of `validate_every`."""
        return bool(self.validate_changes or (self.validate_loaders and self.validate_across_epochs))

    def loaders_left_out(self, progress: Progress) -> set[str]:
        """Return the names of the validation loaders that are not due now."""
        number = progress.batch if self.validate_across_epochs else progress.epoch + 1
        return {name for name, each in self.validate_loaders if not is_due(each, number)}

    def _is_due(self, number: int) -> bool:
        loaders = self.validate_loaders
        alone = self.validate_changes or self.validate_every_epochs
        return any(is_due(each, number) for _, each in loaders) if loaders else is_due(alone, number)

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
        elif self.counts_batches:
            due = self._is_due(progress.batch)
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
        if self.validate_loaders:
            return len(set[int]().union(*(due_numbers(each, number) for _, each in self.validate_loaders)))
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

    def accumulation(self, epoch: int) -> int:
        """Return the batches per optimizer step in the epoch with this index."""
        changes = self.accumulate_changes
        return next((n for start, n in reversed(changes) if start <= epoch), 1) if changes else self.accumulate

    @property
    def steps_per_epoch(self) -> float:
        """Optimizer steps of a full epoch; `inf` if they are unknown, or differ between the epochs of the run."""
        return math.inf if self.steps_differ else self._steps_of(0)

    @property
    def total_steps(self) -> float:
        """Optimizer steps of the entire run; `inf` if no limit is known."""
        if math.inf in (self.max_epochs, self.num_batches):
            return self.max_steps
        return min(self._steps_by_epochs(0), self.max_steps)

    def total_steps_from(self, progress: Progress) -> float:
        """Return the optimizer steps of the entire run: those that were made, and the rest by this plan."""
        return progress.step + self.rest(progress).total_steps if progress.batch else self.total_steps

    @property
    def num_epochs(self) -> float:
        """The epochs that the run begins; `inf` if no limit is known."""
        passed = self.epochs_passed
        return math.ceil(passed) if passed < math.inf else self.max_epochs

    @property
    def epochs_passed(self) -> float:
        """Epochs at the end of the run, with the part that an earlier fit has trained on; `inf` if unknown."""
        if self.total_steps == math.inf or not 0 < self.num_batches < math.inf:
            return math.inf
        epochs, steps = self._epochs_of(self.total_steps + self._steps_within(self.begun_batches, self.accumulation(0)))
        return epochs + steps / self._steps_of(int(epochs))

    @property
    def total_batches(self) -> float:
        """Batches of the entire run, also those without an optimizer step; `inf` if no limit is known."""
        if self.num_batches == math.inf:
            return math.inf if self.steps_differ else self.max_steps * self.accumulation(0)
        by_epochs = self.max_epochs * self.num_batches
        if self.last_epoch_batches < math.inf:
            by_epochs -= self.num_batches - self.last_epoch_batches
        if self.max_steps == math.inf or not self.num_batches:
            return by_epochs
        epochs, steps = self._epochs_of(self.max_steps)
        in_last = min(steps * self.accumulation(int(epochs)), self.num_batches)
        return min(by_epochs, epochs * self.num_batches + in_last)

    @property
    def steps_differ(self) -> bool:
        """Whether the epochs of the run accumulate different numbers of batches."""
        return len({n for start, n, end in self._segments() if start < min(end, self.max_epochs)}) > 1

    def _segments(self) -> list[tuple[int, int, float]]:
        """Return (first epoch, batches per step, end) of all ranges of epochs with one accumulation."""
        changes = self.accumulate_changes or ((0, self.accumulate),)
        changes = changes if changes[0][0] <= 0 else ((0, 1), *changes)
        ends = [start for start, _ in changes[1:]] + [math.inf]
        return [(max(0, start), n, end) for (start, n), end in zip(changes, ends, strict=True) if end > 0]

    def _steps_of(self, epoch: int) -> float:
        """Return the optimizer steps of a full epoch with this index."""
        n = self.num_batches
        return n if n == math.inf else math.ceil(n / self.accumulation(epoch))

    def _steps_within(self, batches: int, accumulate: int) -> int:
        """Return the optimizer steps that an epoch makes in its first batches."""
        return math.ceil(batches / accumulate) if batches >= self.num_batches else batches // accumulate

    def _steps_by_epochs(self, begin: int) -> int:
        """Return the optimizer steps from an epoch to the end of the last one."""
        last = int(self.max_epochs) - 1
        spans = ((max(begin, start), n, min(end, self.max_epochs)) for start, n, end in self._segments())
        steps = sum(max(0, int(end - start)) * math.ceil(self.num_batches / n) for start, n, end in spans)
        if self.last_epoch_batches < math.inf and last >= begin:
            n = self.accumulation(last)
            steps -= math.ceil(self.num_batches / n) - math.ceil(self.last_epoch_batches / n)
        return steps

    def _epochs_of(self, steps: float) -> tuple[float, float]:
        """Return the full epochs in which so many optimizer steps are made, and the steps beyond them."""
        for start, _, end in self._segments():
            per_epoch = self._steps_of(start)
            if steps < (end - start) * per_epoch:
                epochs, steps = divmod(steps, per_epoch)
                return start + epochs, steps
            steps -= (end - start) * per_epoch
        raise AssertionError("the last segment has no end")
