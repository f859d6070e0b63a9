"""Scaling: settings of a recipe for another batch size or another number of processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, overload

from lightlib.errors import check_number, check_word

Rule = Literal["linear", "sqrt"]
RULES: tuple[Rule, ...] = get_args(Rule)


@dataclass(frozen=True)
class Scaling:
    """Settings that were chosen for one batch size, scaled to another: larger learning rates, fewer steps.

    Args:
        ratio: The batch size over all processes, divided by the one that the settings were chosen for.
        rule: Of learning rates: ``"linear"`` (default) multiplies by the ratio, ``"sqrt"`` by its square root, as is
            usual for Adam.

    Raises:
        MisconfigurationException: The ratio is no number > 0, or the rule is unknown.

    Example:
        >>> scaling = Scaling.of_processes(16, reference=8)
        >>> scaling.batch_size(16), scaling.lr(0.1), scaling.steps(5000), scaling.steps([4000]), scaling.steps(1000)
        (32, 0.2, 2500, [2000], 500)
        >>> Scaling.of_batch(256, base=16).lr(0.01), Scaling.of_batch(256, base=16, rule="sqrt").lr(0.01)
        (0.16, 0.04)
    """

    ratio: float
    rule: Rule = "linear"

    def __post_init__(self) -> None:
        check_number("Scaling", "ratio", self.ratio, above=0, below=math.inf, example=16)
        check_word("Scaling", "rule", self.rule, RULES)

    @classmethod
    def of_processes(cls, processes: int, reference: int, rule: Rule = "linear") -> Scaling:
        """Return the scaling from `reference` processes to `processes`, each with the same batch size as before."""
        check_number("Scaling.of_processes", "processes", processes, above=0, below=math.inf, example=16)
        check_number("Scaling.of_processes", "reference", reference, above=0, below=math.inf, example=16)
        return cls(processes / reference, rule)

    @classmethod
    def of_batch(cls, batch_size: int, base: int, rule: Rule = "linear") -> Scaling:
        """Return the scaling from a batch size of `base` to `batch_size`, both over all processes."""
        check_number("Scaling.of_batch", "batch_size", batch_size, above=0, below=math.inf, example=16)
        check_number("Scaling.of_batch", "base", base, above=0, below=math.inf, example=16)
        return cls(batch_size / base, rule)

    @property
    def factor(self) -> float:
        """The number by which learning rates are multiplied."""
        return self.ratio if self.rule == "linear" else math.sqrt(self.ratio)

    def lr(self, lr: float) -> float:
        """Return a learning rate."""
        return lr * self.factor

    def batch_size(self, batch_size: int) -> int:
        """Return a batch size over all processes, rounded, at least 1."""
        return max(1, round(batch_size * self.ratio))

    @overload
    def steps(self, steps: int) -> int: ...
    @overload
    def steps(self, steps: Sequence[int]) -> list[int]: ...
    def steps(self, steps: Any) -> Any:
        """Return a number of steps, or a list of them, that sees as many samples; rounded, at least 1."""
        if isinstance(steps, (list, tuple)):
            return [self.steps(step) for step in steps]
        return max(1, round(steps / self.ratio))
