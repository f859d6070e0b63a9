"""Board: short notes that the ranks exchange through torch's store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's stubs do not export it

T = TypeVar("T")


class StoreGoneError(Exception):
    """The process that hosts the store no longer answers."""


class Board:
    """A client of a store, for one thread. No call waits for a note that does not exist yet.

    Every note raises the counter `news`, so one read shows whether there is anything new. The board opens its own
    connection to the store if the store supports it, and puts `prefix` in front of every key.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store: Any = _own_connection(store)  # torch's stubs do not have all of its methods
        self._prefix = prefix

    @classmethod
    def of_watches(cls, store: Store, name: str) -> Board:
        """Return the board of the watches of this name."""
        return cls(store, f"lightlib/watch/{name}/")

    def news(self) -> int:
        """Return how many notes have been written."""
        return self.count("news")

    def write(self, key: str, text: str) -> None:
        """Write a note, replacing an existing one."""
        _answered(lambda: self._store.set(self._prefix + key, text))
        self.count("news", 1)

    def write_first(self, key: str, text: str) -> str:
        """Write a note unless it exists; return the note that is in the store."""
        stored: str = _answered(lambda: self._store.compare_set(self._prefix + key, "", text)).decode()
        if stored == text:
            self.count("news", 1)
        return stored

    def read(self, key: str) -> str | None:
        """Return a note, or None if it does not exist."""
        key = self._prefix + key
        note: str | None = _answered(lambda: self._store.get(key).decode() if self._store.check([key]) else None)
        return note

    def read_all(self, keys: Sequence[str]) -> list[str]:
        """Return notes that are known to exist, in one call if the store supports it."""
        full = [self._prefix + key for key in keys]
        if self._store.has_extended_api():
            return [note.decode() for note in _answered(lambda: self._store.multi_get(full))]
        return [_answered(partial(self._store.get, key)).decode() for key in full]

    def count(self, key: str, by: int = 0) -> int:
        """Add to a counter and return its value."""
        return int(_answered(lambda: self._store.add(self._prefix + key, by)))


def _answered(call: Callable[[], T]) -> T:
    try:
        return call()
    except (RuntimeError, OSError) as error:
        raise StoreGoneError(str(error).partition("\n")[0]) from error


def _own_connection(store: Any) -> Any:
    """Return a separate connection, so that another thread's blocking call does not block this one."""
    with contextlib.suppress(AttributeError, RuntimeError):
        return store.clone()
    return store  # a HashStore or FileStore, which does not block
