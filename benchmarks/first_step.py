"""(d) Seconds to the first step, with all that is on by default: from `Trainer()`, from the import."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import nn

from benchmarks.measure import Result, Row, Size
from benchmarks.peers import LIGHTLIB, LIGHTNING, NOT_INSTALLED, PLAIN, Peer
from benchmarks.task import LOGGED, tiny
from benchmarks.terminal import terminal

__all__ = ["run", "seconds_to_first_step"]

ROOT = Path(__file__).parents[1]
_PEERS = (PLAIN, LIGHTLIB, LIGHTNING)
_WHAT = ("s from the import (torch excluded) to the first step", "s to the first step", "s to the first step, again")


def run(size: Size) -> Iterator[Result]:
    """Yield the seconds to the first step: from the import, from `Trainer()`, and for a second Trainer."""
    found: dict[Peer, list[list[float]]] = {peer: [] for peer in _PEERS if peer.installed}
    for _ in range(size.processes):
        for peer, times in found.items():
            times.append(_in_a_process(peer))
    for k, what in enumerate(_WHAT):
        for peer in _PEERS:
            values = [times[k] for times in found.get(peer, [])]
            yield Row(what, peer.name, values, "s", "" if peer.installed else NOT_INSTALLED)


def _in_a_process(peer: Peer) -> list[float]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.first_step", peer.name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [float(seconds) for seconds in json.loads(done.stdout.splitlines()[-1])]


def seconds_to_first_step(peer: Peer) -> float:
    """Return the seconds from the making of a default Trainer to the first forward of its fit."""
    reached: list[float] = []

    def note(*_: Any) -> None:
        reached.append(perf_counter())

    def network() -> nn.Module:
        made = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
        made.register_forward_pre_hook(note)
        return made

    with tempfile.TemporaryDirectory() as folder, terminal():
        task = tiny(3, 1, LOGGED, Path(folder))
        task.new_network = network
        fit = peer.code.train if peer is PLAIN else peer.code.train_with_defaults
        began = perf_counter()
        fit(task)
    return reached[0] - began


def _measure(peer: Peer) -> list[float]:
    began = perf_counter()
    peer.code  # noqa: B018  it is imported
    imported = perf_counter() - began
    first = seconds_to_first_step(peer)
    return [imported + first, first, seconds_to_first_step(peer)]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    (chosen,) = (peer for peer in _PEERS if peer.name == sys.argv[1])
    print(json.dumps(_measure(chosen)))
