"""StreamReader: reads an iterable data set again and again, and returns to a position in it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

from torch.utils.data import IterableDataset

from lightlib.data.streams.adapter import adapter_of

END = object()  # in place of a sample


class StreamReader:
    """Passes through one iterable data set.

    A data set with `state_dict` and `load_state_dict` returns to its position itself, unless the state of its library
    lacks a shuffle buffer; any other is read again from the start of the pass.

    Args:
        dataset: The data set.
        epoch: The number that its `set_epoch` gets in the first pass; the next pass gets the next number. None: it is
            not called.

    Attributes:
        passes: How many passes have ended.
        read: How many samples were read in the present one.
    """

    def __init__(self, dataset: Any, epoch: int | None = None) -> None:
        self.dataset = self._read_from = dataset
        self.passes = self.read = 0
        self._epoch = epoch if hasattr(dataset, "set_epoch") else None
        loader = SimpleNamespace(dataset=dataset)
        adapter = adapter_of(loader)
        self._keeps_state = hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
        self._keeps_state &= adapter is None or adapter.keeps_position(loader)
        self._iterator: Iterator[Any] | None = None
        self._loaded: Any = None

    def next(self) -> Any:
        """Return the next sample, or END."""
        if self._iterator is None:
            self._iterator = self._begun()
        sample = next(self._iterator, END)
        self._loaded = None
        self.read += sample is not END
        return sample

    def restart(self) -> None:
        """Begin the next pass."""
        self.passes, self.read = self.passes + 1, 0
        self._iterator = None

    def _begun(self) -> Iterator[Any]:
        self._read_from = self.dataset if self._loaded is None else _copied(self.dataset)
        if self._epoch is not None:
            self._read_from.set_epoch(self._epoch + self.passes)
        if self._loaded is not None:
            self._read_from.load_state_dict(copy.deepcopy(self._loaded))
        iterator: Iterator[Any] = iter(self._read_from)
        if self._loaded is None:
            next(islice(iterator, self.read, self.read), None)
        return iterator

    def state_dict(self) -> dict[str, Any]:
        """Return the position: numbers, and the state of the data set."""
        begun = self._keeps_state and self._iterator is not None
        state = copy.deepcopy(self._read_from.state_dict()) if begun and self._loaded is None else self._loaded
        return {"passes": self.passes, "read": self.read, "dataset": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to a position that `state_dict` returned."""
        self.passes, self.read, self._iterator = state["passes"], state["read"], None
        self._loaded = state["dataset"] if self._keeps_state else None


def _copied(dataset: Any) -> Any:
    """Return a shallow copy to load a state into: Hugging Face's streams would return to it in later passes as well."""
    if not hasattr(dataset, "__dict__"):
        return dataset
    copied = object.__new__(type(dataset))
    vars(copied).update(vars(dataset))
    return copied


def is_stream(dataset: Any) -> bool:
    """Whether a data set can only be iterated.

    Example:
        >>> is_stream([1, 2]), is_stream(zip([1], [2]))
        (False, True)
    """
    by_index = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    return isinstance(dataset, IterableDataset) or (hasattr(dataset, "__iter__") and not by_index)
