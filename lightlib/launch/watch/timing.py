"""Timing: the poll intervals and time limits of the watch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """The poll intervals and time limits of a `Watch`, in seconds; the defaults are for production."""

    poll: float = 0.25  # interval at which the watch thread polls the store
    busy_poll: float = 0.02  # the same while answers of other ranks are due
    look: float = 0.1  # interval at which a main thread that waits for another rank polls
    store: float = 3.0  # for the store to answer the main thread
    answer: float = 7.0  # for the watch of each rank to answer another one
    arrival: float = 0.5  # for main threads to arrive at the boundary if all ranks request a stop at the same one
    reason: float = 4.0  # for the rank that failed first, or its launcher, to announce why
    grace: float = 5.0  # for the main thread to exit by itself after a failure, and again for its teardown
    short_grace: float = 1.0  # upper limit for `grace` after a hang or Ctrl-C
    linger: float = 10.0  # that rank 0 waits at its exit for ranks that are still in the run
    departure: float = 3.0  # that rank 0 then waits for the watches of other ranks to leave the store
    summary: float = 1.0  # for torchrun to notice the rank that failed first before another one ends
    join: float = 1.0  # for the thread of a closed watch to end
    flush: float = 1.0  # for an ending process to flush its streams
    before_end: float = 6.0  # for the `before_end` call
    last_lines: float = 2.0  # for an ending process to write its last lines


PRODUCTION = Timing()
