"""Benchmarks on the device: a step over a plain loop, and strategies over those by hand."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks import step, strategies
from benchmarks.gpt import BY_HAND
from benchmarks.measure import QUICK, Row
from benchmarks.task import BARE, Place
from tests.gpu.case import Case, Figures
from tests.gpu.device import Device

OVERHEAD, GPT = "overhead of a step", "GPT"
ROUNDS = 3


def cases(device: Device, precisions: Sequence[str]) -> list[Case]:
    found = [Case(OVERHEAD), Case(f"{GPT}, single_device")]
    for name in BY_HAND:
        counts = strategies.PROCESSES
        found += [Case(f"{GPT}, {name}, {number} ranks", devices=number, ranks=number) for number in counts]
    return found


def run(name: str, device: Device) -> Figures:
    place = Place(device.accelerator, device.own)
    if name == OVERHEAD:
        plain, over = [row for row in step.over_plain((), BARE, QUICK, place) if isinstance(row, Row)]
        return {"µs by hand": plain.median, "µs over it": over.median, "times": 1 + over.median / plain.median}
    strategy = name.split(", ")[1]
    rounds = [strategies.in_turns(strategy, QUICK.large_steps, place) for _ in range(1 if device.pretended else ROUNDS)]
    seconds, ratios = zip(*rounds, strict=True)
    own, by_hand = strategies.memory(strategy, place)
    return {"µs by hand": 1e6 * median(seconds), "times": median(ratios), "times the memory": own / by_hand}
