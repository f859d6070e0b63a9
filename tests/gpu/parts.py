"""The parts of `make gpu`, by name."""

from __future__ import annotations

import pkgutil

from tests.gpu import part_benchmarks, part_compile, part_kill, part_plan, part_prefetch, part_strategies
from tests.gpu.case import Part

PARTS: dict[str, Part] = {
    "strategies": Part(
        "strategies and precisions against a plain loop of torch", part_strategies.cases, part_strategies.run
    ),
    "prefetch": Part(
        "prefetch, pinned memory and streams: the same numbers as without", part_prefetch.cases, part_prefetch.run
    ),
    "compile": Part("torch.compile under each strategy", part_compile.cases, part_compile.run),
    "kill": Part("the kill campaign on the device", part_kill.cases, part_kill.run, ("tensorboard",)),
    "benchmarks": Part(
        "a step over one by hand, on one device and under strategies", part_benchmarks.cases, part_benchmarks.run
    ),
    "plan": Part(
        "peaks of `lightlib plan` against the device's allocator",
        part_plan.cases,
        part_plan.run,
        prepare=part_plan.prepare,
    ),
}


def named(name: str) -> Part:
    """Return a part by its name, or by ``"module:ATTRIBUTE"``."""
    found: Part = PARTS[name] if name in PARTS else pkgutil.resolve_name(name)
    return found
