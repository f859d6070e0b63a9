"""Memory by formula: parameters, gradients and optimizer state, where a step cannot be simulated."""

from __future__ import annotations

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
    amounts = Amounts(*(int((amount or 0) / share) for amount, share in zip(held, one.shares, strict=True)))
    peak = amounts.parameters + amounts.gradients + amounts.optimizer_state
    return Row(one, samples, Counted(peak, "", amounts, peak), source="formula")
