"""(e) Microseconds per batch of validation and prediction, over a plain loop."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Result, Row, Size
from benchmarks.peers import LIGHTLIB, LIGHTNING, NOT_INSTALLED, PLAIN, Peer
from benchmarks.task import BARE, tiny

__all__ = ["run"]

_VERBS = {
    "validate": "µs per validation batch over plain, one self.log",
    "predict": "µs per predicted batch over plain",
}


def run(size: Size) -> Iterator[Result]:
    """Yield the cost per batch of lightlib and Lightning over the plain loop."""
    for verb, what in _VERBS.items():
        costs: dict[Peer, list[float]] = {peer: [] for peer in (LIGHTLIB, LIGHTNING) if peer.installed}
        _microseconds(PLAIN, verb, size)  # to warm up
        before = _microseconds(PLAIN, verb, size)
        for _ in range(size.fewer_rounds):
            taken = {peer: _microseconds(peer, verb, size) for peer in costs}
            after = _microseconds(PLAIN, verb, size)
            for peer, time in taken.items():
                costs[peer].append(time - (before + after) / 2)
            before = after
        for peer in (LIGHTLIB, LIGHTNING):
            yield Row(what, peer.name, costs.get(peer, []), "µs", "" if peer.installed else NOT_INSTALLED)


def _microseconds(peer: Peer, verb: str, size: Size) -> float:
    with tempfile.TemporaryDirectory() as folder:
        task = tiny(size.steps, size.warm_up, BARE, Path(folder))
        gc.collect()
        getattr(peer.code, verb)(task)
    return task.clock.typical * 1e6
