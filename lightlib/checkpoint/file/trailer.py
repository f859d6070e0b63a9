"""Trailer: label and checksum at the end of a checkpoint file, after the bytes of torch.save."""

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

NEWEST = 1
_FOOT = b"\n%05d %08x lightlib checkpoint\n"  # size and CRC-32 of the text before it
_FOOT_SIZE = len(_FOOT % (0, 0))
_FOOT_PATTERN = re.compile(rb"\n(\d{5}) ([0-9a-f]{8}) lightlib checkpoint\n")
_END_SIZE, _LONGEST = 22, 2**16  # of a zip file's end record, and of the comment after it


@dataclass(frozen=True)
class Trailer:
    """The trailer of a file; one with a version above `NEWEST` cannot be checked.

    In the digest, if it covers "records", each record's CRC-32 represents its bytes; if "all", all bytes are digested.
    """

    version: int
    label: Label
    size: int  # number of bytes before the trailer
    covers: str
    sha256: str


def writer(label: Label, covers: str) -> Callable[[int, str], bytes]:
    """Return a function that builds the trailer from the number of bytes before it and their digest."""

    def trailer(size: int, sha256: str) -> bytes:
        values = {"version": NEWEST, "label": label.as_dict(), "size": size, "covers": covers, "sha256": sha256}
        text = json.dumps(values, separators=(",", ":")).encode("ascii")
        return text + _FOOT % (len(text), zlib.crc32(text))

    return trailer


def read(file: BinaryIO) -> Trailer | None:
    """Return the trailer of an open file; None if it has none or the trailer is damaged."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _FOOT_SIZE))
    foot = _FOOT_PATTERN.fullmatch(file.read(_FOOT_SIZE))
    if foot is None:
        return None
    length, start = int(foot[1]), size - _FOOT_SIZE - int(foot[1])
    if start < _END_SIZE:
        return None
    file.seek(start)
    text = file.read(length)
    if zlib.crc32(text) != int(foot[2], 16):
        return None
    try:
        trailer = _parsed(json.loads(text))
    except (KeyError, RecursionError, TypeError, ValueError):
        return None
    if trailer.version <= NEWEST and trailer.size != start:
        raise CorruptionError(f"{trailer.size} bytes were written before its trailer, but there are {start}")
    return trailer


def _parsed(values: dict[str, Any]) -> Trailer:
    version, size = values["version"], values["size"]
    if type(version) is not int or type(size) is not int:
        raise TypeError
    return Trailer(version, Label.of(values["label"]), size, str(values["covers"]), str(values["sha256"]))


def has_comment(file: BinaryIO) -> bool:
    """Whether a zip file has a comment, as our files have; torch.save writes none."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _LONGEST - _END_SIZE))
    last = file.read()
    position = last.rfind(END)
    if position < 0 or len(last) - position < _END_SIZE:
        raise CorruptionError("it ends too early")
    stated, actual = struct.unpack_from("<H", last, position + 20)[0], len(last) - position - _END_SIZE
    if stated != actual:
        raise CorruptionError("it ends too early" if actual < stated else "its end is damaged")
    return actual > 0
