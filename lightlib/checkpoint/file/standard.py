"""Classes of the standard library that a file may hold; they are pickled so that reading runs no code."""

from __future__ import annotations

import copyreg
import pickle
from collections import deque
from types import SimpleNamespace
from typing import Any

# torch's restricted reader calls these with parts that it has read: none of them runs code or imports anything.
CLASSES: tuple[type, ...] = (deque, frozenset, SimpleNamespace)
NAMES = tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in CLASSES)


def _reduced(value: deque[Any]) -> tuple[Any, ...]:
    """Return a deque as a call; pickle's own form fills it afterwards, which torch's restricted reader refuses."""
    return deque, (list(value), value.maxlen)


class Pickler(pickle.Pickler):
    """Writes the form that torch's restricted reader accepts. This file is the `pickle_module` of `torch.save`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.dispatch_table = {**copyreg.dispatch_table, deque: _reduced}


def parts(value: Any) -> list[tuple[str, Any]]:
    """Return the parts of an object of one of `CLASSES`, each with its path within the object."""
    if isinstance(value, SimpleNamespace):
        return [(f".{name}", part) for name, part in vars(value).items()]
    return [(f"[{number}]", part) for number, part in enumerate(value)]
