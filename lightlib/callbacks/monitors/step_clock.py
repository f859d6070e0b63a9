"""StepClock: the time of training batches by phase, from the hooks of a callback."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from lightlib.profilers.step_times import NEXT_BATCH, RUN_BATCH, StepTimes

FORWARD, BACKWARD, OPTIMIZER = "[LightningModule].training_step", "[Strategy].backward", "[Optimizer].step"
PHASES = ("data", "forward", "backward", "optimizer")


class StepClock:
    """Gives `StepTimes` the phases of each training batch.

    Args:
        wait: Waits until the device has done its work, so that a phase has all of its time; None if there is no need.

    Example:
        >>> clock = StepClock()
        >>> for _ in range(2):  # the first batch is left out: it starts workers and allocates memory
        ...     clock.begin_batch(waited=0.5)
        ...     clock.enter(FORWARD)
        ...     clock.end_batch()
        >>> round(clock.take()["data"], 3)
        0.5
    """

    def __init__(self, wait: Callable[[], None] | None = None) -> None:
        self._wait, self._times = wait, StepTimes()
        self._phase = ""
        self._taken = (dict.fromkeys(PHASES, 0.0), 0)

    def begin_batch(self, waited: float) -> None:
        """Begin a batch that was waited for so many seconds."""
        now = self._now()
        self._times.start(NEXT_BATCH, now - waited)
        self._times.stop(NEXT_BATCH, now)
        self._times.start(RUN_BATCH, now)
        self._phase = ""

    def enter(self, phase: str) -> None:
        """End the phase that runs and begin another one; an empty one is none of them."""
        now = self._now()
        if self._phase:
            self._times.stop(self._phase, now)
        if phase:
            self._times.start(phase, now)
        self._phase = phase

    def end_batch(self) -> None:
        """End the batch."""
        self.enter("")
        self._times.stop(RUN_BATCH, self._now())

    def take(self) -> dict[str, float]:
        """Return the mean seconds of a batch by phase since the last call; empty if none was measured."""
        seconds, batches = self._times.by_category(), self._times.batches
        before, counted = self._taken
        self._taken = seconds, batches
        new = batches - counted
        return {name: (seconds[name] - before[name]) / new for name in PHASES} if new else {}

    def _now(self) -> float:
        if self._wait is not None:
            self._wait()
        return perf_counter()
