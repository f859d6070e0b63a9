"""Trailer: what stands behind the bytes of torch.save in our files: their label and their checksum."""

from __future__ import annotations

import json
import os
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

from lightlib.checkpoint.file.records import END, CorruptionError
from lightlib.checkpoint.storage.label import Label

__all__ = ["NEWEST", "Trailer", "has_comment", "read", "writer"]

NEWEST = 1
_FOOT = b"\n%05d %08x lightlib checkpoint\n"  # size and CRC-32 of the text before it
_FOOT_SIZE = len(_FOOT % (0, 0))
_FOOT_PATTERN = re.compile(rb"\n(\d{5}) ([0-9a-f]{8}) lightlib checkpoint\n")
_END_SIZE, _LONGEST = 22, 2**16  # of a zip file's end, and of the comment behind it


@dataclass(frozen=True)
class Trailer:
    """What the last bytes of a file say about the others.

    Attributes:
        version: Of the trailer; files with a newer one than `NEWEST` cannot be checked.
        label: Which run wrote the file, and when.
        size: How many bytes are before the trailer.
        covers: "records" when the CRC-32 of each record stands for its bytes in the digest, "all" when none does.
        sha256: Their digest.
    """

    version: int
    label: Label
    size: int
    covers: str
    sha256: str


def writer(label: Label, covers: str) -> Callable[[int, str], bytes]:
    """Return what makes the trailer from the number of bytes before it and their digest."""

    def trailer(size: int, sha256: str) -> bytes:
        values = {"version": NEWEST, "label": label.as_dict(), "size": size, "covers": covers, "sha256": sha256}
        text = json.dumps(values, separators=(",", ":")).encode("ascii")
        return text + _FOOT % (len(text), zlib.crc32(text))

    return trailer


def read(file: BinaryIO) -> Trailer | None:
    """Return the trailer of an open file; None when it has none, or a damaged one.

    Raises:
        CorruptionError: The trailer is whole, and the file before it has lost or got bytes.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _FOOT_SIZE))
    found = _FOOT_PATTERN.fullmatch(file.read(_FOOT_SIZE))
    if found is None:
        return None
    length, start = int(found[1]), size - _FOOT_SIZE - int(found[1])
    if start < _END_SIZE:
        return None
    file.seek(start)
    text = file.read(length)
    if zlib.crc32(text) != int(found[2], 16):
        return None
    try:
        trailer = _parsed(json.loads(text))
    except (KeyError, RecursionError, TypeError, ValueError):
        return None
    if trailer.version <= NEWEST and trailer.size != start:
        raise CorruptionError(f"{trailer.size} bytes were written before its end, and there are {start}")
    return trailer


def _parsed(values: dict[str, Any]) -> Trailer:
    version, size = values["version"], values["size"]
    if type(version) is not int or type(size) is not int:
        raise TypeError
    return Trailer(version, Label.of(values["label"]), size, str(values["covers"]), str(values["sha256"]))


def has_comment(file: BinaryIO) -> bool:
    """Whether something follows the end of a zip file, as it does in ours; torch.save writes nothing there.

    Raises:
        CorruptionError: There is more or less than the end says, or no end.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _LONGEST - _END_SIZE))
    last = file.read()
    place = last.rfind(END)
    if place < 0 or len(last) - place < _END_SIZE:
        raise CorruptionError("it ends too early")
    said, there = struct.unpack_from("<H", last, place + 20)[0], len(last) - place - _END_SIZE
    if said != there:
        raise CorruptionError("it ends too early" if there < said else "its end is damaged")
    return there > 0
