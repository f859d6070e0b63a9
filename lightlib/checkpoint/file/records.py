"""Records of a torch.save file, and checksums of all bytes, computed while they are written."""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import torch

if TYPE_CHECKING:
    from typing_extensions import Self

LOCAL, CENTRAL, DESCRIPTOR, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x07\x08", b"PK\x05\x06"
HEADER_SIZE, END_SIZE = 30, 22
STREAMED = 1 << 3  # the flag of a record whose checksum and sizes follow its bytes
ENCRYPTED = 1 << 0
LARGE = 2**16  # bytes from which a checksum is computed in a separate thread
PIECE = 2**22  # bytes read at once


class CorruptionError(Exception):
    """The data differ from the written data; the message states where."""


class UnknownZipLayout(Exception):
    """The zip layout of torch.save is not the known one."""


@dataclass(frozen=True)
class Record:
    """One record of a file."""

    name: str  # in the zip file, without the folder into which torch puts all records
    start: int  # offset of its first byte
    size: int  # number of bytes
    crc: int  # their CRC-32

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def packed(self) -> bytes:
        """The bytes that represent the record in the digest of the file."""
        return struct.pack("<QQI", self.start, self.size, self.crc)


class _Writer:
    """Base of the files that torch.save writes to: passes the bytes on to a file, the last ones only in `finish`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._end = b""
        self.written = 0

    def flush(self) -> None:
        """No-op: the owner of the file flushes it."""

    def _put(self, data: Any) -> None:
        self._digest.update(data)
        self._file.write(data)
        self.written += len(data)

    def finish(self, comment: Callable[[int, str], bytes]) -> None:
        """Write the end of the file with a comment.

        `comment` gets the number of bytes before it and their digest, on which its length must not depend.
        """
        if len(self._end) < END_SIZE or self._end[-END_SIZE:-18] != END or self._end[-2:] != b"\0\0":
            raise UnknownZipLayout
        size = self.written + len(self._end)
        self._put(self._end[:-2] + struct.pack("<H", len(comment(size, "0" * 64))))
        self._file.write(comment(size, self._digest.hexdigest()))


class FullDigestWriter(_Writer):
    """Computes the digest of all bytes, for any zip layout."""

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if len(view) < END_SIZE:
            together = self._end + bytes(view)
            self._end = together[-END_SIZE:]
            self._put(together[:-END_SIZE])
        else:
            self._put(self._end)
            self._put(view[:-END_SIZE])
            self._end = bytes(view[-END_SIZE:])
        return len(view)


class RecordWriter(_Writer):
    """Computes the CRC-32 of each record while it is written, and the digest of all other bytes.

    torch writes a record as header, name and padding, bytes, descriptor, each in separate calls; then the list of
    records. Checksums are in the descriptors and in the list, so they are filled in once the bytes are known. torch
    could compute them, but in the same thread, which takes as long as writing. `unfamiliar` means that the layout was
    not the known one.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.unfamiliar = False
        self._next: Callable[[memoryview], None] = self._header
        self._names_left = 0
        self._streamed = False
        self._record: Record | None = None
        self._sums: list[int] = []
        self._helper = ThreadPoolExecutor(1, "lightlib-checksum")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._helper.shutdown()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self.unfamiliar:
            raise UnknownZipLayout
        try:
            self._next(view)
        except (UnknownZipLayout, struct.error):
            self.unfamiliar = True
            raise UnknownZipLayout from None
        return len(view)

    def finish(self, comment: Callable[[int, str], bytes]) -> None:
        if self.unfamiliar or self._next != self._tail:
            raise UnknownZipLayout
        super().finish(comment)

    def _header(self, view: memoryview) -> None:
        if view[:4] == CENTRAL:
            self._put(self._filled(view))
            self._next = self._tail
            return
        if view[:4] != LOCAL or len(view) != HEADER_SIZE:
            raise UnknownZipLayout
        flags, (name, padding) = struct.unpack_from("<H", view, 6)[0], struct.unpack_from("<HH", view, 26)
        self._streamed = bool(flags & STREAMED)
        self._names_left = name + padding
        self._put(view)
        self._next = self._names

    def _names(self, view: memoryview) -> None:
        self._names_left -= len(view)
        if self._names_left < 0:
            raise UnknownZipLayout
        self._put(view)
        if self._names_left == 0:
            self._next = self._bytes if self._streamed else self._header
            if not self._streamed:
                self._sums.append(0)

    def _bytes(self, view: memoryview) -> None:
        start = self.written
        if len(view) < LARGE:
            self._file.write(view)
            crc = zlib.crc32(view)
        else:
            summed = self._helper.submit(zlib.crc32, view)
            try:
                self._file.write(view)
            finally:
                crc = summed.result()  # the bytes are torch's again after this call
        self.written += len(view)
        self._record = Record("", start, len(view), crc)
        self._digest.update(self._record.packed)
        self._next = self._descriptor

    def _descriptor(self, view: memoryview) -> None:
        assert self._record is not None
        sizes = "<II" if len(view) == 16 else "<QQ"
        if view[:4] != DESCRIPTOR or struct.unpack(sizes, view[8:]) != (self._record.size,) * 2:
            raise UnknownZipLayout
        filled = bytearray(view)
        struct.pack_into("<I", filled, 4, self._record.crc)
        self._put(filled)
        self._sums.append(self._record.crc)
        self._next = self._header

    def _filled(self, view: memoryview) -> bytearray:
        """Return the list of records with their checksums."""
        filled, offset = bytearray(view), 0
        for crc in self._sums:
            if view[offset : offset + 4] != CENTRAL:
                raise UnknownZipLayout
            struct.pack_into("<I", filled, offset + 16, crc)
            offset += 46 + sum(struct.unpack_from("<HHH", view, offset + 28))
        if offset != len(view):
            raise UnknownZipLayout
        return filled

    def _tail(self, view: memoryview) -> None:
        self._end += bytes(view)


_lock = threading.Lock()
_as_set: list[bool] = []  # the user's setting, once for each save in progress


@contextmanager
def without_checksums() -> Iterator[None]:
    """Keep torch.save from computing checksums; in older versions of torch this applies to all threads."""
    with _lock:
        _as_set.append(_as_set[0] if _as_set else torch.serialization.get_crc32_options())
        torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        with _lock:
            torch.serialization.set_crc32_options(_as_set.pop())


class SharedReader:
    """A file that several threads read."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self._lock = threading.Lock()

    def read(self, start: int, size: int) -> bytes:
        """Return `size` bytes from `start` on."""
        with self._lock:
            self.file.seek(start)
            data = self.file.read(size)
        if len(data) != size:
            raise CorruptionError("it ends too early")
        return data

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` to `end`, a piece at a time."""
        for offset in range(start, end, PIECE):
            yield self.read(offset, min(PIECE, end - offset))


def layout(source: SharedReader) -> list[Record]:
    """Return the records of a zip file in order, after checking them for tricks."""
    try:
        with zipfile.ZipFile(source.file) as archive:
            entries, listed = archive.infolist(), archive.start_dir
    except (MemoryError, OSError):
        raise
    except Exception as error:  # zipfile raises all kinds on damaged files
        raise CorruptionError("it is truncated, or its list of records is damaged") from error
    records, before = list[Record](), 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        folder, _, name = entry.filename.partition("/")
        if not folder or ".." in name.split("/") or folder != entries[0].filename.partition("/")[0]:
            raise CorruptionError(f"its record {entry.filename!r} is not in the same folder as the rest")
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise CorruptionError(f"its record {name!r} is compressed, which torch.save never does")
        if entry.flag_bits & ENCRYPTED or entry.header_offset < before:
            raise CorruptionError(f"its record {name!r} is encrypted or overlaps another one")
        header = source.read(entry.header_offset, HEADER_SIZE)
        if header[:4] != LOCAL:
            raise CorruptionError(f"its record {name!r} has no header")
        start = entry.header_offset + HEADER_SIZE + sum(struct.unpack_from("<HH", header, 26))
        record = Record(name, start, entry.file_size, entry.CRC)
        if record.end > listed:
            raise CorruptionError(f"its record {name!r} is longer than the file")
        records.append(record)
        before = record.end
    if len({entry.filename for entry in entries}) != len(entries):
        raise CorruptionError("two of its records have the same name")
    return records


def digest(source: SharedReader, records: Sequence[Record], end: int) -> str:
    """Return the digest of all bytes before `end`; the CRC-32 of a record represents its bytes."""
    sha256, offset = hashlib.sha256(), 0
    for record in records:
        for piece in source.pieces(offset, record.start):
            sha256.update(piece)
        if record.size:
            sha256.update(record.packed)
        offset = record.end
    for piece in source.pieces(offset, end):
        sha256.update(piece)
    return sha256.hexdigest()


def check_data(source: SharedReader, records: Sequence[Record]) -> None:
    """Compare the bytes of records with their CRC-32, in several threads."""

    def check(record: Record) -> None:
        crc = 0
        for piece in source.pieces(record.start, record.end):
            crc = zlib.crc32(piece, crc)
        if crc != record.crc:
            raise CorruptionError(f"its record {record.name!r} differs from its checksum")

    large = [record for record in records if record.size >= PIECE]
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1), "lightlib-checksum") as helpers:
        waiting = [helpers.submit(check, record) for record in large]
        for record in records:
            if record.size < PIECE:
                check(record)
        for checked in waiting:
            checked.result()
