"""Replacing layers of a module: which strategies allow it, and how it is done during construction."""

from __future__ import annotations

from typing import Any

from torch import nn

from lightlib.errors import MisconfigurationException, owner
from lightlib.precision.precision import Applies


class LayersInstead:
    """Within this context ``torch.nn.Linear(…)`` and the like build other classes.

    Args:
        layers: The classes, by torch's name.

    Example:
        >>> class Named(nn.Linear):
        ...     pass
        >>> with LayersInstead(Linear=Named):
        ...     type(nn.Linear(1, 1)).__name__
        'Named'
        >>> nn.Linear is Named
        False
    """

    def __init__(self, **layers: type) -> None:
        self._layers = layers
        self._before: dict[str, Any] = {}

    def __enter__(self) -> None:
        self._before = {name: vars(nn)[name] for name in self._layers}
        vars(nn).update(self._layers)

    def __exit__(self, *error: object) -> None:
        vars(nn).update(self._before)


def check_layers(name: str, strategy: Applies) -> None:
    """Raise if a strategy shards the parameters of layers, which the layers of another package do not expect."""
    if not strategy.keeps_layers:
        raise MisconfigurationException(
            f"precision={name!r} was given with {type(strategy).__name__}, which shards or divides layers.",
            expected="a strategy in which each process has all parameters, since this precision replaces layers.",
            fix=f"{owner()}(strategy='ddp') or one device, or another precision.",
        )
