"""Index of a checkpoint directory: maps the chunks of each tensor to bytes in files."""

from __future__ import annotations

import json
import math
import re
import zlib
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from lightlib.checkpoint.directory.encoding import DTYPES
from lightlib.checkpoint.directory.tensors import BLOCK, Chunk, damaged
from lightlib.checkpoint.storage.label import Label
from lightlib.errors import CheckpointError

FORMAT = 2
KIND = "checkpoint directory"
LARGEST = 2**30  # bytes of an index
_SHARD = re.compile(r"shard-[0-9a-f]{8}-\d{5,}\.bin")
_ENDING = re.compile(rb',"checksum":"([0-9a-f]{8})"}\n')
_ENDING_LENGTH = len(',"checksum":"00000000"}\n')


def shard_name(token: str, rank: int) -> str:
    """Return the file name of one process; `token` is drawn for each save, so that no file is written twice."""
    return f"shard-{token}-{rank:05d}.bin"


@dataclass
class Entry:
    """One tensor, and the chunks that together cover it."""

    dtype: torch.dtype
    shape: torch.Size
    as_saved: bool  # whether its bytes are those of `torch.save`
    chunks: list[Chunk]


@dataclass
class Index:
    """The content of `index.json`."""

    label: Label
    shards: dict[str, int]  # the size of each file in bytes
    tensors: dict[str, Entry]
    content: Any  # as encoded by `encoding.encode`, which refers to the tensors by name

    def as_bytes(self) -> bytes:
        """Return the bytes of the file, which end with the checksum of everything before it."""
        tensors = {name: _entry_as_json(entry) for name, entry in self.tensors.items()}
        values = {
            "lightlib": KIND,
            "format": FORMAT,
            "label": self.label.as_dict(),
            "shards": self.shards,
            "tensors": tensors,
            "content": self.content,
        }
        text = json.dumps(values, allow_nan=False, separators=(",", ":")).encode()[:-1]
        return text + f',"checksum":"{zlib.crc32(text):08x}"}}\n'.encode()

    @classmethod
    def of(cls, data: bytes, path: str) -> Index:
        """Return the index from the bytes of an `index.json`, fully checked."""
        try:
            return _parsed(data, path)
        except CheckpointError:
            raise
        except (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
            _wrong(path, f"{type(error).__name__}: {error}"[:200])


def _entry_as_json(entry: Entry) -> dict[str, Any]:
    chunks = [
        {
            "offsets": list(chunk.offsets),
            "sizes": list(chunk.sizes),
            "shard": chunk.shard,
            "at": chunk.position,
            "bytes": chunk.length,
            "crc32": "".join(f"{checksum:08x}" for checksum in chunk.checksums),
        }
        for chunk in entry.chunks
    ]
    description = {"dtype": str(entry.dtype).removeprefix("torch."), "shape": list(entry.shape)}
    return description | ({"saved": True} if entry.as_saved else {}) | {"chunks": chunks}


def _wrong(path: str, difference: str) -> NoReturn:
    raise damaged(path, f"its index.json differs from what was written ({difference})")


def _parsed(data: bytes, path: str) -> Index:
    ending = _ENDING.fullmatch(data[-_ENDING_LENGTH:])
    sound = ending is not None and int(ending[1], 16) == zlib.crc32(data[:-_ENDING_LENGTH])
    try:
        content = json.loads(data, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        _wrong(path, "it is empty" if not data else f"it is not JSON: {error}"[:200])
    version = content.get("format") if isinstance(content, dict) and content.get("lightlib") == KIND else None
    if type(version) is not int:
        _wrong(path, "it is not an index of lightlib")
    if version > FORMAT:
        raise CheckpointError(
            f"{path!r} has format {version}, which is newer than this version of lightlib.",
            expected=f"a format of at most {FORMAT}.",
            fix="pip install --upgrade lightlib",
        )
    if not sound:
        _wrong(path, "its checksum does not match")
    if set(content) != {"lightlib", "format", "label", "shards", "tensors", "content", "checksum"}:
        _wrong(path, "it has other keys")
    shards = {name: _count(size) for name, size in content["shards"].items()}
    strange = [name for name in shards if not _SHARD.fullmatch(name)]
    if strange:
        _wrong(path, f"it names the file {strange[0][:80]!r}")
    tensors = {name: _entry(value, shards) for name, value in content["tensors"].items()}
    for name, entry in tensors.items():
        gap = _gap_in_entry(entry)
        if gap is not None:
            _wrong(path, f"the parts of {name[:80]!r} {gap}")
    _check_shards(path, shards, [chunk for entry in tensors.values() for chunk in entry.chunks])
    return Index(Label.of(content["label"]), shards, tensors, content["content"])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a duplicate key")
    return values


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} instead of a count")
    return value


def _entry(content: dict[str, Any], shards: dict[str, int]) -> Entry:
    if not {"dtype", "shape", "chunks"} <= set(content) <= {"dtype", "shape", "chunks", "saved"}:
        raise ValueError("a tensor has other keys")
    dtype, shape = DTYPES[content["dtype"]], torch.Size([_count(size) for size in content["shape"]])
    return Entry(dtype, shape, content.get("saved") is True, [_chunk(chunk, shards) for chunk in content["chunks"]])


def _chunk(content: dict[str, Any], shards: dict[str, int]) -> Chunk:
    if set(content) != {"offsets", "sizes", "shard", "at", "bytes", "crc32"} or content["shard"] not in shards:
        raise ValueError("a part of a tensor has other keys")
    text, length = content["crc32"], _count(content["bytes"])
    if not re.fullmatch("([0-9a-f]{8})*", text) or len(text) != 8 * math.ceil(length / BLOCK):
        raise ValueError("a part of a tensor has other checksums")
    checksums = tuple(int(text[at : at + 8], 16) for at in range(0, len(text), 8))
    offsets, sizes = (tuple(_count(number) for number in content[key]) for key in ("offsets", "sizes"))
    return Chunk(offsets, sizes, content["shard"], _count(content["at"]), length, checksums)


def _gap_in_entry(entry: Entry) -> str | None:
    if entry.as_saved:
        return None if len(entry.chunks) == 1 else "are not a single one"
    if any(chunk.length != math.prod(chunk.sizes) * entry.dtype.itemsize for chunk in entry.chunks):
        return "have another size in bytes"
    return gap_in(entry.shape, [(chunk.offsets, chunk.sizes) for chunk in entry.chunks])


def gap_in(shape: Sequence[int], boxes: Iterable[tuple[Sequence[int], Sequence[int]]]) -> str | None:
    """Return why `boxes`, each with offsets and sizes, do not exactly cover a tensor of `shape`; None if they do.

    Example:
        >>> gap_in((4,), [((0,), (2,)), ((2,), (2,))]), gap_in((4,), [((0,), (3,)), ((2,), (1,))])
        (None, 'overlap')
    """
    remaining = list(boxes)
    for offsets, sizes in remaining:
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            return "have another number of dimensions"
        if any(start + size > total for start, size, total in zip(offsets, sizes, shape, strict=True)):
            return "exceed it"
    remaining = [(offsets, sizes) for offsets, sizes in remaining if math.prod(sizes)]
    if sum(math.prod(sizes) for _, sizes in remaining) != math.prod(shape):
        return "do not cover it"
    return "overlap" if _overlap(remaining) else None


def _overlap(boxes: list[tuple[Sequence[int], Sequence[int]]]) -> bool:
    """Sweep along the dimension with the most cuts, and compare each box with all boxes that are open there."""
    if len(boxes) < 2:
        return False
    dimensions = range(len(boxes[0][0]))
    if not dimensions:
        return True
    along = max(dimensions, key=lambda dimension: len({offsets[dimension] for offsets, _ in boxes}))
    active: list[tuple[int, int]] = []
    for number, (offsets, sizes) in sorted(enumerate(boxes), key=lambda pair: pair[1][0][along]):
        active = [box for box in active if box[0] > offsets[along]]
        for _, other in active:
            starts, lengths = boxes[other]
            if all(offsets[d] < starts[d] + lengths[d] and starts[d] < offsets[d] + sizes[d] for d in dimensions):
                return True
        insort(active, (offsets[along] + sizes[along], number))
    return False


def _check_shards(path: str, shards: dict[str, int], chunks: list[Chunk]) -> None:
    """Refuse files with bytes that belong to no chunk, or to two chunks."""
    ends = dict.fromkeys(shards, 0)
    places = {(chunk.shard, chunk.position, chunk.length): chunk for chunk in chunks}
    for chunk in chunks:
        if places[chunk.shard, chunk.position, chunk.length].checksums != chunk.checksums:
            _wrong(path, f"one part in {chunk.shard!r} has two checksums")
    for chunk in sorted(places.values(), key=lambda chunk: (chunk.shard, chunk.position, chunk.length)):
        if chunk.position != ends[chunk.shard]:
            _wrong(path, f"the parts in {chunk.shard!r} do not follow each other")
        ends[chunk.shard] += chunk.length
    for name, size in shards.items():
        if ends[name] != size:
            _wrong(path, f"{name!r} has {size} bytes, but only {ends[name]} belong to tensors")
