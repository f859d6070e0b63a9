"""Classes of the standard library that a file holds besides torch's: pickled so that reading them runs no code."""

from __future__ import annotations

import copyreg
import pickle
from collections import ChainMap, deque
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

# torch's restricted reader calls these with parts that it has read: none of them runs code or imports anything.
CLASSES: tuple[type, ...] = (deque, frozenset, SimpleNamespace)
NAMES = tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in CLASSES)


def _reduced(value: deque[Any]) -> tuple[Any, ...]:
    """Return a deque as a call; pickle's own form fills it afterwards, which torch's restricted reader refuses."""
    return deque, (list(value), value.maxlen)


class Pickler(pickle.Pickler):
    """Writes what torch's restricted reader accepts; this file stands in for the module `pickle` in `torch.save`."""

    dispatch_table: ClassVar[Mapping[Any, Any]] = ChainMap({deque: _reduced}, copyreg.dispatch_table)


def parts(value: Any) -> list[tuple[str, Any]]:
    """Return the parts of an object of one of `CLASSES`, each with its path within the object."""
    if isinstance(value, SimpleNamespace):
        return [(f".{name}", part) for name, part in vars(value).items()]
    return [(f"[{number}]", part) for number, part in enumerate(value)]
