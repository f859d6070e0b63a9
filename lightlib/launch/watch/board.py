"""Board: short notes that the processes of a run leave for each other in torch's store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

from torch import distributed

__all__ = ["Board", "Store", "StoreGoneError"]

T = TypeVar("T")


class Store(Protocol):
    """What is used of a `torch.distributed.Store`."""

    def clone(self) -> Store: ...
    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...
    def add(self, key: str, amount: int) -> int: ...
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...
    def has_extended_api(self) -> bool: ...
    def multi_get(self, keys: list[str]) -> list[bytes]: ...


class StoreGoneError(Exception):
    """The process that keeps the store does not answer any more."""


class Board:
    """A client of a store, for one thread. No call waits for a note that is not there yet.

    Every note raises the number `news`, so that one question tells whether there is anything to read.

    Args:
        store: Where the notes are kept. The board opens a connection of its own, where the store can.
        prefix: In front of every key.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = _own_connection(store)
        self._prefix = prefix

    @classmethod
    def of_watches(cls, store: Store, name: str) -> Board:
        """Return the board on which the watches of this name leave their notes."""
        return cls(store, f"lightlib/watch/{name}/")

    def news(self) -> int:
        """Return how many notes there have been."""
        return self.count("news")

    def write(self, key: str, text: str) -> None:
        """Write a note, over what is there."""
        _answered(lambda: self._store.set(self._prefix + key, text))
        self.count("news", 1)

    def write_first(self, key: str, text: str) -> str:
        """Write a note unless there is one; return what is there."""
        found: str = _answered(lambda: self._store.compare_set(self._prefix + key, "", text)).decode()
        if found == text:
            self.count("news", 1)
        return found

    def read(self, key: str) -> str | None:
        """Return a note, or None when there is none."""
        key = self._prefix + key
        return _answered(lambda: self._store.get(key).decode() if self._store.check([key]) else None)

    def read_all(self, keys: Sequence[str]) -> list[str]:
        """Return notes that are there for certain, in one call where the store can."""
        full = [self._prefix + key for key in keys]
        if self._store.has_extended_api():
            return [note.decode() for note in _answered(lambda: self._store.multi_get(full))]
        return [_answered(lambda key=key: self._store.get(key)).decode() for key in full]  # type: ignore[misc]

    def count(self, key: str, by: int = 0) -> int:
        """Add to a number and return it."""
        return _answered(lambda: self._store.add(self._prefix + key, by))


def _answered(call: Callable[[], T]) -> T:
    try:
        return call()
    except (RuntimeError, OSError) as error:
        raise StoreGoneError(str(error).partition("\n")[0]) from error


def _own_connection(store: Store) -> Store:
    """A blocking call of another thread must not hold up this one."""
    with contextlib.suppress(AttributeError, RuntimeError):
        return store.clone()
    kind: Any = getattr(distributed, "TCPStore", None)
    if kind is not None and isinstance(store, kind):  # before torch 2.7 there was no `clone`
        return cast(Store, kind(store.host, store.port, is_master=False, wait_for_workers=False))
    return store  # of one process, or in a file: nothing blocks there
