"""(b) Microseconds per step over the plain loop, all frameworks in turns in one process."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.measure import Result, Row, Size, Target
from benchmarks.peers import IGNITE, LIGHTLIB, LIGHTNING, NOT_INSTALLED, PEERS, PLAIN, Peer
from benchmarks.task import BARE, REALISTIC, Switches, tiny
from benchmarks.terminal import terminal

__all__ = ["over_plain", "run"]

TITLE = "step"
_AT_A_TIME = 3  # so many peers between two measurements of the plain loop


def run(size: Size) -> Iterator[Result]:
    for what, switches in (("everything off", BARE), ("realistic", REALISTIC)):
        with terminal():
            rows = over_plain([peer for peer in PEERS if _measured(peer, switches)], switches, size)
        yield from rows
        yield from _targets(what, {row.who: row.median for row in rows if row.values})


def _measured(peer: Peer, switches: Switches) -> bool:
    return switches.bar or not peer.name.endswith("bar")


def over_plain(peers: Sequence[Peer], switches: Switches, size: Size) -> list[Row]:
    """Measure the plain loop, lightlib and every installed peer in turns; return a row for each.

    A framework's cost is its time less that of the plain loops before and after it. lightlib is measured beside every
    group of peers.
    """
    what = "µs per step over plain: " + ("realistic" if switches.bar else "everything off")
    installed = [peer for peer in peers if peer.installed]
    plain: list[float] = []
    costs: dict[Peer, list[float]] = {peer: [] for peer in (LIGHTLIB, *installed)}
    failed: dict[Peer, str] = {}
    _microseconds(PLAIN, switches, size)  # to warm up
    before = _microseconds(PLAIN, switches, size)
    for turn in range(size.rounds):
        order = _rotated(installed, turn)
        for start in range(0, max(1, len(order)), _AT_A_TIME):
            taken = {}
            for peer in (LIGHTLIB, *order[start : start + _AT_A_TIME]):
                if peer in failed:
                    continue
                try:
                    taken[peer] = _microseconds(peer, switches, size)
                except Exception as error:
                    if peer is LIGHTLIB:
                        raise
                    failed[peer] = f"failed: {type(error).__name__}"
            after = _microseconds(PLAIN, switches, size)
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


def _microseconds(peer: Peer, switches: Switches, size: Size) -> float:
    """Return what a step takes: as a rule with everything off, on average where something is done seldom."""
    with tempfile.TemporaryDirectory() as folder:
        task = tiny(size.steps, size.warm_up, switches, Path(folder))
        gc.collect()
        peer.train(task)
    return 1e6 * (task.clock.typical if switches == BARE else task.clock.mean)


def _targets(what: str, medians: dict[str, float]) -> Iterator[Target]:
    own = medians[LIGHTLIB.name]
    lightning = [cost for name, cost in medians.items() if name.startswith(LIGHTNING.name)]
    part = 15 if what == "everything off" else 10
    if lightning:
        yield Target(f"{what}: share of Lightning's, at most 1/{part}", own / min(lightning), 1 / part, "")
    if what == "everything off":
        if IGNITE.name in medians:
            yield Target("everything off: not above Ignite", own, medians[IGNITE.name], "µs")
        return
    trainers = {peer.name: medians[peer.name] for peer in PEERS if peer.trainer and peer.name in medians}
    if trainers:
        least = min(trainers, key=trainers.__getitem__)
        yield Target(f"{what}: not above any full trainer ({least})", own, trainers[least], "µs")
