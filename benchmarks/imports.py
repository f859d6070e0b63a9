"""(c) What an import costs over `import torch`, in time and memory, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Result, Row, Size, Target
from benchmarks.peers import LIGHTLIB, NOT_INSTALLED, PEERS, Peer

__all__ = ["cost_of", "run"]

TITLE = "import"
ROOT = Path(__file__).parents[1]
_LIMIT = 0.15
_STATEMENTS = {
    "lightlib": "from lightlib import Module, Trainer",
    "Lightning": "import lightning.pytorch",
    "Ignite": "import ignite.engine, ignite.handlers, ignite.metrics",
    "Accelerate": "from accelerate import Accelerator",
    "Fabric": "from lightning.fabric import Fabric",
    "skorch": "import skorch",
    "torchtnt": "import torchtnt.framework",
    "pytorch-accelerated": "import pytorch_accelerated",
    "transformers' Trainer": "from transformers import Trainer",
}
_PROGRAM = """
import json, resource, sys, time, torch
from_kilobytes = 1024 if sys.platform != "darwin" else 1
def megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * from_kilobytes / 2**20
before, began = megabytes(), time.perf_counter()
{statement}
seconds = time.perf_counter() - began
print(json.dumps([seconds, megabytes() - before]))
"""


def run(size: Size) -> Iterator[Result]:
    peers = [peer for peer in (LIGHTLIB, *PEERS) if peer.name in _STATEMENTS]
    costs: dict[Peer, list[tuple[float, float]]] = {peer: [] for peer in peers if peer.installed}
    for turn in range(size.processes + 1):
        for peer, found in costs.items():
            cost = cost_of(_STATEMENTS[peer.name])
            if turn:  # the first one fills the caches of the disk
                found.append(cost)
    for what, unit, k in (("s of import over torch", "s", 0), ("MB of import over torch", "MB", 1)):
        for peer in peers:
            values = [cost[k] for cost in costs.get(peer, [])]
            yield Row(what, peer.name, values, unit, "" if peer.installed else NOT_INSTALLED)
    own = Row("", LIGHTLIB.name, [seconds for seconds, _ in costs[LIGHTLIB]], "s")
    yield Target("import lightlib over torch", own.median, _LIMIT, "s")


def cost_of(statement: str) -> tuple[float, float]:
    """Return the seconds and megabytes of `statement` in a new process that has imported torch."""
    program = _PROGRAM.format(statement=statement)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, megabytes = json.loads(done.stdout.splitlines()[-1])
    return seconds, megabytes
