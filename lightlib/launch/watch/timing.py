"""Timing: the poll intervals and time limits of the watch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PRODUCTION", "Timing"]


@dataclass(frozen=True)
class Timing:
    """The poll intervals and time limits of a `Watch`, in seconds; the defaults are for production.

    Attributes:
        poll: Interval at which the watch thread polls the store.
        busy_poll: The same while answers of other ranks are due.
        look: Interval at which a main thread that waits for another rank polls.
        store: Time for the store to answer the main thread.
        answer: Time for the watch of each rank to answer another one.
        arrival: Time for main threads to arrive at the boundary if all ranks request a stop at the same one.
        reason: Time for the rank that failed first, or its launcher, to announce why.
        grace: Time for the main thread to exit by itself after a failure, and again for its teardown.
        short_grace: Upper limit for `grace` after a hang or Ctrl-C.
        linger: Time that rank 0 waits at its exit for ranks that are still in the run.
        summary: Time for torchrun to notice the rank that failed first before another one ends.
        join: Time for the thread of a closed watch to end.
        flush: Time for an ending process to flush its streams.
        before_end: Time for the `before_end` call.
        last_lines: Time for an ending process to write its last lines.
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
