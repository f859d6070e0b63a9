"""Axes: the searched hyperparameters, with a place for each of their values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightlib.experiment.parameters import Categorical, is_number
from lightlib.experiment.ranges import Log, LogInt
from lightlib.experiment.space import Space
from lightlib.experiment.work.results import without_secrets

_LONGEST = 24  # characters of a category


@dataclass(frozen=True)
class Axis:
    """One searched hyperparameter.

    Attributes:
        key: Its dotted key.
        label: The shortest end of the key that is its alone.
        is_log: Whether its values belong on a logarithmic axis.
        categories: Its values as text, for a categorical one; empty for numbers.
    """

    key: str
    label: str
    is_log: bool = False
    categories: tuple[str, ...] = ()

    def at(self, hparams: Mapping[str, Any]) -> float | None:
        """Return the place of a trial: its value, or the index of its category; None if it has no such value."""
        if self.key not in hparams:
            return None
        value = hparams[self.key]
        if self.categories:
            text = as_category(value)
            return self.categories.index(text) if text in self.categories else None
        return value if is_number(value) and math.isfinite(value) else None


def axes_of(space: Space) -> list[Axis]:
    """Return the axes of the searched hyperparameters, in the order of the space. Secrets are one category ``***``."""
    labels = labels_of(space.searched)
    axes = []
    for key in space.searched:
        one = space.parameters[key]
        names: Iterable[str] = ()
        if isinstance(one, Categorical):
            names = dict.fromkeys(as_category(without_secrets({key: value})[key]) for value in one.vals)
        axes.append(Axis(key, labels[key], isinstance(one, (Log, LogInt)), tuple(names)))
    return axes


def as_category(value: Any) -> str:
    """Return a value of any type as a short text."""
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def labels_of(keys: Sequence[str]) -> dict[str, str]:
    """Return for each dotted key the shortest end that is its alone.

    Example:
        >>> labels_of(["model.init_args.lr", "model.init_args.width", "other.width"])
        {'model.init_args.lr': 'lr', 'model.init_args.width': 'init_args.width', 'other.width': 'other.width'}
    """
    labels = {}
    for key in keys:
        names = key.split(".")
        ends = [".".join(names[-count:]) for count in range(1, len(names) + 1)]
        labels[key] = next((end for end in ends if _is_of_one(end, keys)), key)
    return labels


def _is_of_one(end: str, keys: Sequence[str]) -> bool:
    return sum(key == end or key.endswith(f".{end}") for key in keys) == 1
