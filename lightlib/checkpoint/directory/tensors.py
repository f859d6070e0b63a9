"""LazyTensor: a tensor of a checkpoint directory, read in full or in part when it is needed."""

from __future__ import annotations

import contextlib
import io
import math
import sys
import threading
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch
from torch import Tensor

from lightlib.checkpoint.file import standard
from lightlib.checkpoint.storage import filesystem
from lightlib.errors import CheckpointError

BLOCK = 2**23  # bytes of a chunk with one checksum, so that reading a few rows need not read all
Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor, and the location of its bytes."""

    offsets: Numbers  # of the box, by dimension
    sizes: Numbers
    shard: str  # the name of the file
    position: int  # of its bytes in the file
    length: int
    checksums: Numbers  # CRC-32 of every `BLOCK` bytes


class Shards:
    """The files of one checkpoint directory, opened when they are first read."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._open: dict[str, BinaryIO] = {}
        self._lock = threading.Lock()
        self._files = contextlib.ExitStack()
        weakref.finalize(self, self._files.close)

    def read(self, chunk: Chunk, start: int, stop: int, of: str) -> tuple[bytearray, int]:
        """Return bytes of a chunk that include those from `start` to `stop`, and the offset of the first of these."""
        first, last = start // BLOCK, max(start // BLOCK, (stop - 1) // BLOCK)
        begin, end = first * BLOCK, min((last + 1) * BLOCK, chunk.length)
        data = bytearray(end - begin)
        try:
            with self._lock:
                file = self._file(chunk.shard)
                file.seek(chunk.position + begin)
                count = _fill(file, memoryview(data))
        except OSError as error:
            raise damaged(self.folder, f"{chunk.shard!r} cannot be read: {error}") from error
        if count < len(data):
            raise damaged(self.folder, f"{chunk.shard!r} ends too early, in the middle of {of!r}")
        view = memoryview(data)
        for number in range(first, last + 1):
            block = view[number * BLOCK - begin : (number + 1) * BLOCK - begin]
            if zlib.crc32(block) != chunk.checksums[number]:
                raise damaged(self.folder, f"the bytes of {of!r} in {chunk.shard!r} do not match their checksum")
        return data, start - begin

    def _file(self, name: str) -> BinaryIO:
        if name not in self._open:
            opened = filesystem.open_for_reading(filesystem.join(self.folder, name))
            self._open[name] = self._files.enter_context(opened)
        return self._open[name]


def _fill(file: BinaryIO, view: memoryview) -> int:
    done = 0
    while done < len(view):
        part = file.read(min(len(view) - done, BLOCK))
        if not part:
            break
        view[done : done + len(part)] = part
        done += len(part)
    return done


def damaged(path: str, reason: str) -> CheckpointError:
    """Return the error for a damaged checkpoint directory."""
    return CheckpointError(
        f"The checkpoint {path!r} is damaged: {reason}.",
        expected="a directory as Trainer.save_checkpoint wrote it, with all its files.",
        fix="use another checkpoint, or copy this one again from an intact source.",
    )


class LazyTensor:
    """A tensor that is still in a checkpoint directory.

    Any function of torch and any method of tensors that is called on it reads it; `read` does so explicitly. If it is
    not dense (sparse tensors), its bytes are `as_saved` by `torch.save`.
    """

    def __init__(
        self, name: str, shape: torch.Size, dtype: torch.dtype, chunks: Sequence[Chunk], shards: Shards, as_saved: bool
    ) -> None:
        self.name, self.shape, self.dtype, self.chunks, self.as_saved = name, shape, dtype, tuple(chunks), as_saved
        self._shards = shards

    def __repr__(self) -> str:
        return f"LazyTensor({self.name!r}, shape={tuple(self.shape)}, dtype={self.dtype})"

    def numel(self) -> int:
        """Return the number of values."""
        return math.prod(self.shape)

    def dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    def read(self, device: torch.device | str = "cpu") -> Tensor:
        """Return the full tensor; a `CheckpointError` means that the data are damaged."""
        if self.as_saved:
            return self._loaded().to(device)
        return self.box((0,) * len(self.shape), tuple(self.shape)).to(device)

    def read_part(self, like: Any) -> Any:
        """Return a DTensor with the values of this one and the placements of `like`; only the local shard is read."""
        (shard,) = like.__create_chunk_list__()
        if shard.offsets or not self.shape:
            local = self.box(tuple(shard.offsets), tuple(shard.sizes)).to(like.device)
        else:
            local = torch.empty(0, dtype=self.dtype, device=like.device)
        stride = torch.empty(self.shape, device="meta").stride()
        return type(like).from_local(
            local, like.device_mesh, like.placements, run_check=False, shape=self.shape, stride=stride
        )

    def box(self, offsets: Numbers, sizes: Numbers) -> Tensor:
        """Return a box of the tensor; only the chunks that overlap it are read."""
        result: Tensor | None = None
        for chunk in self.chunks:
            low = [max(a, b) for a, b in zip(offsets, chunk.offsets, strict=True)]
            high = [min(a + n, b + m) for a, n, b, m in zip(offsets, sizes, chunk.offsets, chunk.sizes, strict=True)]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            part = self._of(chunk, low, high)
            if tuple(part.shape) == sizes:
                return part
            result = torch.empty(sizes, dtype=self.dtype) if result is None else result
            target = result
            for dimension, (a, b, start) in enumerate(zip(low, high, offsets, strict=True)):
                target = target.narrow(dimension, a - start, b - a)
            target.copy_(part)
        return torch.empty(sizes, dtype=self.dtype) if result is None else result

    def _of(self, chunk: Chunk, low: Sequence[int], high: Sequence[int]) -> Tensor:
        """Return the part of one chunk from `low` to `high`, given in the full tensor; only its rows are read."""
        rows = (low[0] - chunk.offsets[0], high[0] - chunk.offsets[0]) if low else (0, 1)
        count = chunk.sizes[0] if low else 1
        width = chunk.length // count
        data, start = self._shards.read(chunk, rows[0] * width, rows[1] * width, self.name)
        shape = (rows[1] - rows[0], *chunk.sizes[1:]) if low else ()
        size = (rows[1] - rows[0]) * width
        flat = torch.frombuffer(data, dtype=torch.uint8, offset=start, count=size)
        part = flat.view(self.dtype).view(shape)
        for dimension in range(1, len(low)):
            first = low[dimension] - chunk.offsets[dimension]
            part = part.narrow(dimension, first, high[dimension] - low[dimension])
        return part

    def _loaded(self) -> Tensor:
        (chunk,) = self.chunks
        data, _ = self._shards.read(chunk, 0, chunk.length, self.name)
        try:
            with standard.allowed():
                value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as error:  # foreign bytes may make torch raise anything
            raise damaged(self._shards.folder, f"{self.name!r} cannot be read: {error}") from error
        if not isinstance(value, Tensor) or value.shape != self.shape or value.dtype != self.dtype:
            raise damaged(self._shards.folder, f"{self.name!r} is not the tensor that the index describes")
        return value

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return function(*read_tensors(tuple(args)), **read_tensors(dict(kwargs or {})))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.read(), name)

    def __deepcopy__(self, memory: Any) -> LazyTensor:
        return self


def _reading(name: str) -> Any:
    """Return a special method that reads the tensor and calls its method `name`."""

    def operator(self: LazyTensor, *others: Any) -> Any:
        return getattr(self.read(), name)(*read_tensors(others))

    return operator


# Python looks special methods up in the class, so `__getattr__` does not see them.
for _name in (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "matmul", "rmatmul"),
    *("neg", "abs", "lt", "le", "gt", "ge", "getitem", "len", "iter", "float", "int", "bool"),
):
    setattr(LazyTensor, f"__{_name}__", _reading(f"__{_name}__"))


def read_tensors(tree: Any) -> Any:
    """Return `tree` (nested dicts, lists, tuples, …) with each `LazyTensor` read, on the CPU."""
    if isinstance(tree, LazyTensor):
        return tree.read()
    if type(tree) in (dict, OrderedDict):  # the classes of a trusted file may hold more than their items
        return type(tree)((key, read_tensors(value)) for key, value in tree.items())
    if type(tree) in (list, tuple, set, frozenset):
        return type(tree)(read_tensors(value) for value in tree)
    return tree


def dtensor_type() -> type[Any] | tuple[()]:
    """Return torch's DTensor for `isinstance`; an empty tuple if it is not imported, so that no DTensor can exist."""
    module = sys.modules.get("torch.distributed.tensor")
    return () if module is None else module.DTensor
