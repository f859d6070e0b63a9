"""Memory by formula: parameters, gradients and optimizer state, where a step cannot be simulated."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lightlib.simulation.candidates import Candidate
from lightlib.simulation.fit import Amounts, Counted
from lightlib.simulation.table import Row


def by_formula(held: Sequence[int | None], one: Candidate, samples: int) -> Row:
    """Return a row with the sum of parameters, gradients and optimizer state as its peak: never too large.

    Args:
        held: The bytes of each without sharding; None: not known, which counts as 0.
        one: The strategy.
        samples: Of one process.
    """
    shares = _shares(one)
    amounts = Amounts(*(int((amount or 0) / share) for amount, share in zip(held, shares, strict=True)))
    peak = amounts.parameters + amounts.gradients + amounts.optimizer_state
    return Row(one, samples, Counted(peak, "", amounts, peak), source="formula")


def _shares(one: Candidate) -> tuple[int, int, int]:
    """Return over how many processes parameters, gradients and optimizer state are divided."""
    if one.label.startswith("zero1"):
        return 1, 1, one.readers
    if one.label.startswith(("ddp", "single_device")):
        return 1, 1, 1
    if one.label.startswith("fsdp"):
        return one.readers, one.readers, one.readers
    sizes = dict(re.findall(r"(\w+) (\d+)", one.label))
    divided = 1
    for name in ("shard", "tensor", "pipeline"):
        divided *= int(sizes.get(name, 1))
    return divided, divided, divided
