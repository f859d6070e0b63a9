"""RemoteReader: reads an object of a store like a local file."""

from __future__ import annotations

import errno
import io
import os
from typing import Any, BinaryIO, cast

from lightlib.checkpoint.storage.retries import with_retries
from lightlib.checkpoint.storage.store import file_system, size_of

__all__ = ["open_for_reading"]

LARGEST_READ = 2**26


class RemoteReader(io.RawIOBase):
    """An object as a seekable file; each read is a separate request and is retried."""

    def __init__(self, path: str) -> None:
        self.name = path
        self._size = size_of(path)
        self._files, self._object = file_system(path)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, f"seek to a position before the start of {self.name!r}")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self._next(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self._next(LARGEST_READ), b""))  # the base class reads a few KiB at a time

    def _next(self, length: int) -> bytes:
        start = self._position
        end = min(start + length, start + LARGEST_READ, self._size)
        if end <= start:
            return b""
        data = with_retries(f"reading {self.name!r}", lambda: self._fetch(start, end))
        self._position = end
        return data

    def _fetch(self, start: int, end: int) -> bytes:
        data: bytes = self._files.cat_file(self._object, start=start, end=end)
        if len(data) != end - start:
            raise OSError(errno.EAGAIN, f"the store sent {len(data)} of {end - start} bytes")
        return data


def open_for_reading(path: str) -> BinaryIO:
    """Open an object for reading and seeking.

    Raises:
        FileNotFoundError: There is no such object.
    """
    return cast("BinaryIO", io.BufferedReader(RemoteReader(path), 2**20))
