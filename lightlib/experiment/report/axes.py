"""Axes: the searched hyperparameters, with a place for each of their values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lightlib.experiment.parameters import Categorical, is_number
from lightlib.experiment.ranges import Log, LogInt
from lightlib.experiment.space import Space
from lightlib.experiment.work.results import short_names, without_secrets

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
    labels = short_names(space.searched)
    axes = []
    for key in space.searched:
        parameter = space.parameters[key]
        names: Iterable[str] = ()
        if isinstance(parameter, Categorical):
            names = dict.fromkeys(as_category(without_secrets({key: value})[key]) for value in parameter.vals)
        axes.append(Axis(key, labels[key], isinstance(parameter, (Log, LogInt)), tuple(names)))
    return axes


def as_category(value: Any) -> str:
    """Return a value of any type as a short text."""
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
