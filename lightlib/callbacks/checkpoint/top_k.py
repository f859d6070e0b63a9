"""TopK: the best checkpoints by a metric, and the ones removed for a better one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class TopK:
    """The k best checkpoints. Nothing is changed in place: a new checkpoint makes a new TopK.

    Attributes:
        k: How many are kept; -1: all, 0: none.
        mode: "min" if smaller values of the metric are better, "max" if larger ones are.
        kept: The metric of each kept file, oldest first. Of equal ones the older is better.

    Example:
        >>> two = TopK(2, "min").add("a", torch.tensor(3.0)).add("b", torch.tensor(1.0))
        >>> two.admits(torch.tensor(2.0)), two.evicted, two.add("c", torch.tensor(2.0)).ranked
        (True, ['a'], ['b', 'c'])
    """

    k: int
    mode: str
    kept: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def worst(self) -> Tensor:
        """The worst possible metric."""
        return torch.tensor(math.inf if self.mode == "min" else -math.inf)

    @cached_property
    def ranked(self) -> list[str]:
        """The kept files, the best first."""
        numbers = dict(zip(self.kept, map(Tensor.item, self.kept.values()), strict=True))
        return sorted(numbers, key=numbers.__getitem__, reverse=self.mode == "max")

    @cached_property
    def evicted(self) -> list[str]:
        """The files that one more would replace, the worst first."""
        surplus = 0 if self.k == -1 else len(self.kept) + 1 - self.k
        return self.ranked[::-1][:surplus] if surplus > 0 else []

    @property
    def kth(self) -> tuple[str, Tensor]:
        """The file that is replaced next, and its metric; an empty name while there is room."""
        if not self.kept or len(self.kept) < self.k:
            return "", self.worst
        return self.ranked[-1], self.kept[self.ranked[-1]]

    def admits(self, value: Tensor) -> bool:
        """Whether a checkpoint with this metric is among the best."""
        if self.k in (-1, 0) or len(self.kept) < self.k:
            return self.k != 0
        worst = self.kept[self.ranked[-1]]
        return bool(value < worst if self.mode == "min" else value > worst)

    def best_after(self, path: str) -> tuple[str, Tensor] | None:
        """Return the best file and its metric if it succeeds `path`, which was the best so far; else None.

        A best file that is not among the kept ones comes from an earlier run in another folder. Any real metric
        succeeds it, but not the worst possible one.
        """
        if not self.kept:
            return None
        best = self.ranked[0]
        if path not in ("", *self.kept) and self.kept[best] == self.worst:
            return None
        return best, self.kept[best]

    def add(self, path: str, value: Tensor) -> TopK:
        """Return the best with this one among them, in the place of those that it evicts."""
        kept = dict(self.kept)
        for evicted in self.evicted:
            del kept[evicted]
        return replace(self, kept={**kept, path: value})

    def remove(self, path: str) -> TopK:
        """Return the best without this file."""
        return replace(self, kept={name: value for name, value in self.kept.items() if name != path})
