"""(a) Python calls per batch, counted exactly: those that lightlib adds to a plain loop."""

from __future__ import annotations

import cProfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measure import Result, Row, Size, Target
from benchmarks.peers import LIGHTLIB, LIGHTNING, NOT_INSTALLED, PLAIN, Peer
from benchmarks.task import BARE, LOGGED, LOGGED_EVERYWHERE, Switches, Task, tiny
from benchmarks.terminal import terminal

__all__ = ["calls_per_batch", "count_calls", "run", "train_with_defaults"]

_BARE, _LOG, _LOG_ALL, _DEFAULT = (
    "everything off",
    "one self.log",
    "one self.log(on_step, on_epoch, prog_bar)",
    "default Trainer, one self.log",
)
_SETTINGS = {_BARE: BARE, _LOG: LOGGED, _LOG_ALL: LOGGED_EVERYWHERE}
# The default Trainer logs to TensorBoard every 50 steps: both lengths end at such a step.
_MULTIPLE_OF = 50


def run(size: Size) -> Iterator[Result]:
    """Yield the calls per batch of lightlib and Lightning over the plain loop, and their targets."""
    counts = {}
    for peer in (LIGHTLIB, LIGHTNING):
        for what in (*_SETTINGS, _DEFAULT):
            counted = _over_plain(peer, what, size.counted) if peer.installed else None
            row = Row(f"calls per batch: {what}", peer.name, [] if counted is None else [counted], "calls")
            yield row if peer.installed else replace(row, note=NOT_INSTALLED)
            if peer is LIGHTLIB:
                counts[what] = counted or 0.0
    yield Target("calls per batch, everything off", counts[_BARE], 45, "calls")
    yield Target("calls of one self.log", counts[_LOG] - counts[_BARE], 10, "calls")
    yield Target("calls of one self.log(on_step, on_epoch, prog_bar)", counts[_LOG_ALL] - counts[_BARE], 10, "calls")
    yield Target("calls per batch, default Trainer, one self.log", counts[_DEFAULT], 120, "calls")


def _over_plain(peer: Peer, what: str, batches: int) -> float:
    if what == _DEFAULT:
        return calls_per_batch(lambda task: train_with_defaults(peer, task), batches, LOGGED) - calls_per_batch(
            PLAIN.train, batches
        )
    return calls_per_batch(peer.train, batches, _SETTINGS[what]) - calls_per_batch(PLAIN.train, batches)


def train_with_defaults(peer: Peer, task: Task) -> None:
    """Train with a default Trainer, without the bar's draws, which depend on time and not on batches."""
    if peer is not LIGHTLIB:
        peer.code.train_with_defaults(task)
        return
    from lightlib.callbacks import default_progress_bar  # optional: after the choice of peers

    bar = default_progress_bar()
    bar.seconds_between_draws = bar.seconds_before_first = float("inf")
    peer.code.train_with_defaults(task, callbacks=[bar])


def calls_per_batch(train: Callable[[Task], Any], batches: int, switches: Switches = BARE) -> float:
    """Return the Python calls that one more batch costs: those of a long run less those of a short one."""
    batches = max(_MULTIPLE_OF, batches // _MULTIPLE_OF * _MULTIPLE_OF)

    def calls(steps: int) -> int:
        with tempfile.TemporaryDirectory() as folder:
            task = tiny(steps - 2, 1, switches, Path(folder))
            return count_calls(lambda: train(task))

    with terminal():
        calls(batches), calls(batches)  # imports and caches; some are filled at the second time
        return (calls(2 * batches) - calls(batches)) / batches


def count_calls(work: Callable[[], Any]) -> int:
    """Return the number of Python calls on this thread; a generator counts each time it is resumed."""
    profile = cProfile.Profile(builtins=False)
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())
