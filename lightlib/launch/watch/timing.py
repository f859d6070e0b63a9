"""Timing: how often the watch of a rank looks, and how long it waits for the others."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PRODUCTION", "Timing"]


@dataclass(frozen=True)
class Timing:
    """How often a `Watch` looks and how long it waits, in seconds; the defaults are for production.

    Attributes:
        poll: Between two looks at the store.
        busy_poll: The same while the answers of other ranks are due.
        look: Between two looks of a main thread that waits for another rank.
        store: In which the store must have answered the main thread.
        answer: In which the watch of each rank must have answered another one.
        arrival: In which main threads may still arrive at the boundary at which all wish for a stop.
        reason: In which the rank that failed first, or its launcher, must have announced why.
        grace: That the main thread has to get out by itself after a failure, and again for its teardown.
        short_grace: At most, for the same after a hang or Ctrl-C.
        linger: That rank 0 waits at its exit for ranks that are still in the run.
        summary: That torchrun has to notice the rank that failed first before another one ends.
        join: In which the thread of a watch that is closed must have ended.
        flush: For a process that ends to flush its streams.
        before_end: For what is called before the last lines of a process.
        last_lines: For a process that ends to write its last lines.
    """

    poll: float = 0.25
    busy_poll: float = 0.02
    look: float = 0.1
    store: float = 3.0
    answer: float = 7.0
    arrival: float = 0.5
    reason: float = 4.0
    grace: float = 5.0
    short_grace: float = 1.0
    linger: float = 10.0
    summary: float = 1.0
    join: float = 1.0
    flush: float = 1.0
    before_end: float = 6.0
    last_lines: float = 2.0


PRODUCTION = Timing()
