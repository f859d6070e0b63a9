"""SharedClock: rank zero's clock, read by all processes at the same batches, and not at every one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

_BETWEEN_LOOKS = 1.0


class SharedClock:
    """Decides whether a time is over, with the same answer on all ranks.

    One process looks at its own clock whenever it is asked. Several ranks would have to communicate every time; they do
    so about once a second: with each look, rank zero works out by the pace of the batches when the next one is due.

    Example:
        >>> from types import SimpleNamespace
        >>> clock = SharedClock()
        >>> clock.over(SimpleNamespace(world_size=1), batch=1, limit=3600.0), clock.passed < 60
        (False, True)
    """

    def __init__(self) -> None:
        self.start(0)

    def __eq__(self, other: object) -> bool:
        """Clocks that were read at the same time are equal: a copy of a callback is equal to it in all it holds."""
        return isinstance(other, SharedClock) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def start(self, batch: int, passed: float = 0.0) -> None:
        """Start counting, or continue after seconds have `passed`. `batch` is the number of batches so far."""
        self._looked = time.monotonic()
        self._began = self._looked - passed
        self._looked_at = self._next = batch
        self._ahead = 1

    @property
    def passed(self) -> float:
        """Seconds since the start, on this process."""
        return time.monotonic() - self._began

    def over(self, trainer: Trainer, batch: int, limit: float) -> bool:
        """Whether `limit` seconds have passed since the start. All processes ask at the same batches.

        Args:
            trainer: Whose processes they are.
            batch: The number of batches so far.
            limit: Seconds.
        """
        if trainer.world_size == 1:
            return self.passed >= limit
        if batch < self._next:
            return False
        now = time.monotonic()
        left = limit - (now - self._began)
        pace = (batch - self._looked_at) / max(now - self._looked, 1e-6)
        fitting = int(pace * min(left / 2, _BETWEEN_LOOKS))
        over, self._ahead = trainer.strategy.broadcast((left <= 0, max(1, min(fitting, 2 * self._ahead))))
        self._looked, self._looked_at, self._next = now, batch, batch + self._ahead
        return over
