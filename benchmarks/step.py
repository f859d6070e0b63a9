"""(b) Microseconds per step over the plain loop, all frameworks in turns in one process."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.measure import Result, Row, Size, Target
from benchmarks.peers import IGNITE, LIGHTLIB, LIGHTNING, NOT_INSTALLED, PEERS, PLAIN, Peer
from benchmarks.task import BARE, CPU, IN_MEMORY, REALISTIC, Place, Switches, tiny
from benchmarks.terminal import terminal

__all__ = ["over_plain", "run", "targets"]

_IN_EVERY_GROUP = (LIGHTLIB, IGNITE)  # measured with every group of peers, for their targets are the tightest
_AT_A_TIME = 3  # peers between two measurements of the plain loop


def run(size: Size) -> Iterator[Result]:
    """Yield the cost per step of every framework, with everything off and realistic, and the targets.

    With data in memory it is lightlib's alone, which reads them in a way of its own.
    """
    for what, switches in (("everything off", BARE), ("realistic", REALISTIC)):
        with terminal():
            rows = over_plain(PEERS, switches, size)
        yield from rows
        yield from targets(what, {row.who: row.median for row in rows if row.values})
    with terminal():
        rows = over_plain((), IN_MEMORY, size)
    yield from rows
    yield Target("everything off, data in memory: less than the plain loop", rows[-1].median, 0.0, "µs")


def over_plain(peers: Sequence[Peer], switches: Switches, size: Size, place: Place = CPU) -> list[Row]:
    """Measure the plain loop, lightlib and every installed peer in turns; return a row for each.

    A framework's cost is its time less that of the plain loops before and after it.
    """
    data = ", data in memory" if switches.in_memory else ""
    what = "µs per step over plain: " + ("realistic" if switches.bar else "everything off") + data
    installed = [peer for peer in (LIGHTLIB, *peers) if peer.installed]
    beside = [peer for peer in installed if peer in _IN_EVERY_GROUP]
    others = [peer for peer in installed if peer not in _IN_EVERY_GROUP]
    plain: list[float] = []
    costs: dict[Peer, list[float]] = {peer: [] for peer in installed}
    failed: dict[Peer, str] = {}
    _microseconds(PLAIN, switches, size, place)  # to warm up
    before = _microseconds(PLAIN, switches, size, place)
    for turn in range(size.fewer_rounds if switches.bar else size.rounds):
        order = _rotated(others, turn)
        for start in range(0, max(1, len(order)), _AT_A_TIME):
            taken = {}
            for peer in (*beside, *order[start : start + _AT_A_TIME]):
                if peer in failed:
                    continue
                try:
                    taken[peer] = _microseconds(peer, switches, size, place)
                except Exception as error:
                    if peer is LIGHTLIB:
                        raise
                    failed[peer] = f"failed: {type(error).__name__}"
            after = _microseconds(PLAIN, switches, size, place)
            plain.append(after)
            for peer, time in taken.items():
                costs[peer].append(time - (before + after) / 2)
            before = after
    rows = [Row(what.replace(" over plain", " of the plain loop itself"), PLAIN.name, plain, "µs")]
    rows += [Row(what, peer.name, values, "µs", failed.get(peer, "")) for peer, values in costs.items()]
    rows += [Row(what, peer.name, [], "µs", NOT_INSTALLED) for peer in peers if not peer.installed]
    return rows


def _rotated(peers: Sequence[Peer], turn: int) -> list[Peer]:
    at = turn % len(peers) if peers else 0
    return [*peers[at:], *peers[:at]]


def _microseconds(peer: Peer, switches: Switches, size: Size, place: Place) -> float:
    """Return the time of a step in µs: the mean if some steps draw the bar, otherwise the median."""
    with tempfile.TemporaryDirectory() as folder:
        task = tiny(size.steps, size.warm_up, switches, Path(folder), place)
        gc.collect()
        peer.train(task)
    return 1e6 * (task.clock.mean if switches.bar else task.clock.typical)


def targets(what: str, medians: dict[str, float]) -> Iterator[Target]:
    """Yield the targets for these costs per step, if all frameworks in them were measured."""
    own = medians[LIGHTLIB.name]
    part = 15 if what == "everything off" else 10
    if LIGHTNING.name in medians:
        yield Target(f"{what}: share of Lightning's (1/{part})", own / medians[LIGHTNING.name], 1 / part, "")
    if what == "everything off":
        if IGNITE.name in medians:
            yield Target("everything off: not above Ignite", own, medians[IGNITE.name], "µs")
        return
    trainers = {peer.name: medians[peer.name] for peer in PEERS if peer.trainer and peer.name in medians}
    if trainers:
        least = min(trainers, key=trainers.__getitem__)
        yield Target(f"{what}: not above any full trainer ({least})", own, trainers[least], "µs")
