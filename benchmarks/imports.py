"""(c) The cost of an import over `import torch`, in time and memory, each in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Result, Row, Size, Target
from benchmarks.peers import LIGHTLIB, LIGHTNING, NOT_INSTALLED, PEERS, Peer

__all__ = ["cost_of", "run"]

ROOT = Path(__file__).parents[1]
_LIMIT = 0.15
_PROGRAM = """
import json, os, sys, time, torch
def megabytes():
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
before, began = megabytes(), time.perf_counter()
{statement}
seconds = time.perf_counter() - began
print(json.dumps([seconds, megabytes() - before]))
"""


def run(size: Size) -> Iterator[Result]:
    """Yield the seconds and megabytes of every import, and the target."""
    peers = [LIGHTLIB, *(PEERS if size.all_imports else [LIGHTNING])]
    costs: dict[Peer, list[tuple[float, float]]] = {peer: [] for peer in peers}
    notes = {peer: "" if peer.installed else NOT_INSTALLED for peer in peers}
    for _ in range(size.processes):
        for peer in peers:
            if notes[peer]:
                continue
            try:
                costs[peer].append(cost_of(peer.statement))
            except subprocess.CalledProcessError as error:
                if peer is LIGHTLIB:
                    raise
                notes[peer] = f"failed: {(error.stderr.splitlines() or [error])[-1]}"
    for what, unit, k in (("s of import over torch", "s", 0), ("MB of import over torch", "MB", 1)):
        for peer in peers:
            yield Row(what, peer.name, [cost[k] for cost in costs[peer]], unit, notes[peer])
    own = Row("", LIGHTLIB.name, [seconds for seconds, _ in costs[LIGHTLIB]], "s")
    yield Target("import lightlib over torch", own.median, _LIMIT, "s")


def cost_of(statement: str) -> tuple[float, float]:
    """Return the seconds and megabytes of `statement` in a new process that has imported torch."""
    program = _PROGRAM.format(statement=statement)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, megabytes = json.loads(done.stdout.splitlines()[-1])
    return seconds, megabytes
