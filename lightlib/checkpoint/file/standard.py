"""Classes of the standard library that a file may hold; they are pickled so that reading runs no code."""

from __future__ import annotations

import copyreg
import pickle
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

# torch's restricted reader calls these with parts that it has read: none of them runs code or imports anything.
CLASSES: tuple[type, ...] = (deque, frozenset, SimpleNamespace)
NAMES = tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in CLASSES)


@contextmanager
def allowed() -> Iterator[None]:
    """Let torch's restricted reader make these classes, without its warning that it checks sparse tensors."""
    with torch.serialization.safe_globals([*CLASSES]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Validating sparse tensor invariants")  # of torch 2.14
        yield


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
