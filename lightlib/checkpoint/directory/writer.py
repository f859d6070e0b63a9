"""Writing a checkpoint directory: who writes what, files aside, and then the index and the name."""

from __future__ import annotations

import contextlib
import io
import math
import os
import secrets
import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, NoReturn

import torch
from torch import Tensor

from lightlib.checkpoint.directory.encoding import encode, merged, tensor_names
from lightlib.checkpoint.directory.index import Entry, Index, gap_in, shard_name
from lightlib.checkpoint.directory.peers import Failure, Peers, attempted
from lightlib.checkpoint.directory.tensors import BLOCK, Chunk, LazyTensor, dtensor_type
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.label import Label
from lightlib.checkpoint.storage.swap import put_in_place
from lightlib.errors import CheckpointWriteError, LightlibError

__all__ = ["write_together"]

IN_PARTS = ("state_dict", "optimizer_states")  # to which every process adds what it has
Box = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass
class Piece:
    """What one process has of one tensor, without its values.

    Attributes:
        dtype, shape: Of the whole tensor.
        box: Offsets and sizes of the part.
        as_saved: Whether it is written as `torch.save` does.
    """

    dtype: torch.dtype
    shape: torch.Size
    box: Box
    as_saved: bool


@dataclass
class Held:
    """What one process tells of its part.

    Attributes:
        content: Everything, encoded; on the later processes only what they add.
        pieces: Of the tensors that it could write, by name.
    """

    content: Any
    pieces: dict[str, Piece]


@dataclass
class Order:
    """What one process is to write.

    Attributes:
        folder: In which the file is to be.
        shard: The name of the file.
        names: Of the tensors of which it writes its part.
    """

    folder: str
    shard: str
    names: list[str]


@dataclass
class Written:
    """What one process has written: its file's size, and the place of each part."""

    size: int
    chunks: dict[str, Chunk]


def write_together(content: Mapping[str, Any], path: str, label: Label, group: Any, alone: bool) -> None:
    """Write a checkpoint directory with all processes of `group`; see `directory.save`."""
    peers = Peers(group, alone)
    words = _Words(path, peers)
    tensors: dict[str, Any] = {}
    told = attempted(partial(_held, content, peers.first, tensors), words)
    parts = peers.gather(told)
    with contextlib.ExitStack() as stack:
        plan = attempted(partial(_Plan, parts, path, stack), words) if peers.first else None
        order = peers.scatter(plan.orders if isinstance(plan, _Plan) else [plan] * peers.size)
        if isinstance(order, Failure):
            _raise(order, told)
        words.folder = order.folder
        written = attempted(partial(_write_shard, order, tensors), words)
        results = peers.gather(written)
        done = None
        if isinstance(plan, _Plan):
            done = attempted(partial(plan.complete, results, label), words)
            if isinstance(done, Failure):
                plan.abandon()
        done = peers.scatter([done] * peers.size)
        if isinstance(done, Failure):
            if order.folder != path:  # the first process has removed it where that one sees it
                shutil.rmtree(order.folder, ignore_errors=True)
            _raise(done, written)


def _raise(failure: Failure, own: Any) -> NoReturn:
    """Raise for what failed on any process; where it was this one, from its own error."""
    error = own.error if isinstance(own, Failure) else failure.error
    if isinstance(error, CheckpointWriteError) and str(error) == failure.text:
        raise error
    raise CheckpointWriteError(failure.text) from error


class _Words:
    """Says what went wrong on one process, with the name of the checkpoint and not that of the folder aside.

    Attributes:
        path: The checkpoint.
        folder: In which it is written.
    """

    def __init__(self, path: str, peers: Peers) -> None:
        self.path = self.folder = path
        self._where = f" (process {peers.rank} of {peers.size})" if peers.size > 1 else ""

    def __call__(self, error: Exception) -> str:
        if isinstance(error, LightlibError):
            return str(error).replace(self.folder, self.path)
        reason = f"{error}" if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        return str(
            CheckpointWriteError(
                f"The checkpoint {self.path!r} could not be written{self._where}: {reason}.".replace(
                    self.folder, self.path
                ),
                expected="a writable place with enough room, and tensors that can be read.",
                fix="see the reason; earlier checkpoints are as they were.",
            )
        )


# what each process has
def _held(content: Mapping[str, Any], first: bool, tensors: dict[str, Any]) -> Held:
    """Return what this process has; the tensors themselves are put into `tensors`."""
    in_parts = {key: content[key] for key in IN_PARTS if key in content}
    if isinstance(in_parts.get("state_dict"), Mapping):
        in_parts["state_dict"] = dict(in_parts["state_dict"])
    if first:
        encoded, found = encode({**content, **in_parts})
    else:
        encoded, found = encode(in_parts)
        kind = dtensor_type()
        others = encode({key: value for key, value in content.items() if key not in in_parts}, lenient=True)[1]
        found |= {name: value for name, value in others.items() if isinstance(value, kind)}
    pieces = {name: piece for name, value in found.items() if (piece := _piece(name, value)) is not None}
    tensors.update((name, found[name]) for name in pieces)
    return Held(encoded, pieces)


def _piece(name: str, value: Any) -> Piece | None:
    """Return what this process has of a tensor; None where it has nothing to do with it."""
    if isinstance(value, dtensor_type()):
        if value.device_mesh.get_coordinate() is None:
            return None
        (part,) = value.__create_chunk_list__()
        local = value.to_local()
        if tuple(local.shape) != tuple(part.sizes):
            raise CheckpointWriteError(
                f"The tensor {name!r} is spread in a way that cannot be written in parts: {value.placements} of "
                f"{tuple(value.shape)} gives this process {tuple(local.shape)}.",
                expected="sizes that the processes can share out evenly.",
                fix="save a file: trainer.save_checkpoint(path, format='file').",
            )
        return Piece(value.dtype, value.shape, (tuple(part.offsets), tuple(part.sizes)), as_saved=False)
    shape = torch.Size(value.shape)
    plain = isinstance(value, LazyTensor) and not value.as_saved
    as_saved = not plain and (isinstance(value, LazyTensor) or value.layout != torch.strided or value.is_quantized)
    return Piece(value.dtype, shape, ((0,) * len(shape), tuple(shape)), as_saved or _is_nested(value))


def _is_nested(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_nested


# what the first process decides
class _Plan:
    """Who writes what, where, and how it becomes a checkpoint; on the first process.

    Args:
        parts: What the processes have.
        path: The name of the checkpoint.
        stack: At whose end the place aside is given up.
    """

    def __init__(self, parts: list[Held | Failure], path: str, stack: contextlib.ExitStack) -> None:
        held = [_whole_or_raise(part) for part in parts]
        self.path, self.remote = path, filesystem.is_remote(filesystem.local_path(path))
        self.token = secrets.token_hex(4)
        _check_target(path)
        self.content = held[0].content
        for other in held[1:]:
            for key in IN_PARTS:
                if key in other.content:
                    self.content[key] = merged(self.content.get(key, {}), other.content[key])
        names = list(dict.fromkeys(tensor_names(self.content)))
        self.entries, owned = _shared_out(names, held)
        self.folder = path
        if not self.remote:
            self.folder = stack.enter_context(filesystem.aside(path))
            filesystem.make_folder(os.path.dirname(os.path.abspath(self.folder)))
            os.mkdir(self.folder)
        self.orders = [Order(self.folder, shard_name(self.token, rank), mine) for rank, mine in enumerate(owned)]

    def complete(self, results: list[Written | Failure], label: Label) -> None:
        """Write the index, and give the checkpoint its name."""
        shards: dict[str, int] = {}
        for rank, result in enumerate(results):
            written = _whole_or_raise(result)
            if written.size:
                self._see(rank, written.size)
                shards[self.orders[rank].shard] = written.size
            for name, chunk in written.chunks.items():
                self.entries[name].chunks.append(chunk)
        data = Index(label, shards, self.entries, self.content).as_bytes()
        if self.remote:
            older = filesystem.names_in(self.path)
            filesystem.write(filesystem.join(self.path, filesystem.INDEX), lambda file: _put(file, data))
            for name in older:
                if name != filesystem.INDEX and name not in shards:
                    with contextlib.suppress(OSError, LightlibError):  # the new checkpoint is there, and whole
                        filesystem.remove(filesystem.join(self.path, name))
            return
        filesystem.write(filesystem.join(self.folder, filesystem.INDEX), lambda file: _put(file, data))
        put_in_place(self.folder, filesystem.local_path(self.path).rstrip(os.sep))

    def _see(self, rank: int, size: int) -> None:
        """Refuse a file that another process has written where this one does not see it."""
        name = self.orders[rank].shard
        with contextlib.suppress(FileNotFoundError):
            if filesystem.size_of(filesystem.join(self.folder, name)) == size:
                return
        raise CheckpointWriteError(
            f"The checkpoint {self.path!r} could not be written: what process {rank} wrote is not there for the first "
            f"one ({name}).",
            expected="a path that means the same place on all machines.",
            fix="use a shared file system or a store, or save files: format='file'.",
        )

    def abandon(self) -> None:
        """Remove what has been written."""
        if not self.remote:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for order in self.orders:
            with contextlib.suppress(OSError, LightlibError):
                filesystem.remove(filesystem.join(self.path, order.shard))


def _put(file: BinaryIO, data: Any) -> None:
    file.write(data)


def _whole_or_raise(part: Any) -> Any:
    if isinstance(part, Failure):
        raise part.error if isinstance(part.error, LightlibError) else CheckpointWriteError(part.text)
    return part


def _shared_out(names: list[str], held: list[Held]) -> tuple[dict[str, Entry], list[list[str]]]:
    """Return what is known of each tensor, and which of them each process writes: every box once, the first who has it.

    Raises:
        CheckpointWriteError: The processes do not agree on what a tensor is, or have not all of it.
    """
    entries: dict[str, Entry] = {}
    owned: list[list[str]] = [[] for _ in held]
    for name in names:
        boxes: dict[Box, int] = {}
        for rank, part in enumerate(held):
            piece = part.pieces.get(name)
            if piece is None:
                continue
            entry = entries.setdefault(name, Entry(piece.dtype, piece.shape, piece.as_saved, []))
            if (piece.dtype, piece.shape, piece.as_saved) != (entry.dtype, entry.shape, entry.as_saved):
                raise _disagreement(name, f"{tuple(entry.shape)} {entry.dtype}, {tuple(piece.shape)} {piece.dtype}")
            if piece.box not in boxes:
                boxes[piece.box] = rank
                if math.prod(piece.box[1]) or piece.as_saved:
                    owned[rank].append(name)
        gap = gap_in(entries[name].shape, boxes) if name in entries else "are nowhere"
        if gap is not None:
            raise _disagreement(name, f"its parts {gap}")
    return entries, owned


def _disagreement(name: str, what: str) -> CheckpointWriteError:
    return CheckpointWriteError(
        f"The processes do not have the parts of one tensor {name!r}: {what}.",
        expected="the same tensor on all processes, or parts that are all of it together.",
        fix="save a file: trainer.save_checkpoint(path, format='file').",
    )


def _check_target(path: str) -> None:
    """Refuse a folder that is there and is no checkpoint: it would be removed with all that is in it.

    Raises:
        CheckpointWriteError: There is one.
    """
    if not filesystem.is_folder(path) or os.path.islink(filesystem.local_path(path)):
        return
    names = [name for name in filesystem.names_in(path) if not name.startswith(".")]
    others = [name for name in names if name != filesystem.INDEX and not name.startswith("shard-")]
    if others or (names and filesystem.INDEX not in names and not filesystem.is_remote(path)):
        raise CheckpointWriteError(
            f"The checkpoint {path!r} could not be written: there is a folder of this name with other things in it: "
            f"{', '.join((others or names)[:4])}.",
            expected="a name that is free, or that of an older checkpoint.",
            fix=f"trainer.save_checkpoint({filesystem.join(path, 'last.ckpt')!r})",
        )


# the bytes
def _write_shard(order: Order, tensors: Mapping[str, Any]) -> Written:
    """Write this process's file, if there is anything to be written."""
    written = Written(0, {})
    if not order.names:
        return written

    def produce(file: BinaryIO) -> None:
        written.size, written.chunks = 0, {}
        places: dict[Any, Chunk] = {}
        for name in order.names:
            memory = _memory(tensors[name])
            if memory in places:  # tied to one that is written already
                written.chunks[name] = places[memory]
                continue
            box, parts = _bytes_of(name, tensors[name])
            checksums, begin = [], written.size
            for block in parts:
                file.write(block)
                checksums.append(zlib.crc32(block))
                written.size += len(block)
            length = written.size - begin
            chunk = Chunk(*box, order.shard, begin, length, tuple(checksums))
            written.chunks[name] = places[memory if memory is not None else name] = chunk

    filesystem.write(filesystem.join(order.folder, order.shard), produce)
    return written


def _memory(value: Any) -> Any:
    """Return what two tensors have in common that are the same part of the same memory; None where nobody can tell."""
    if isinstance(value, LazyTensor) or value.layout != torch.strided or value.is_quantized or _is_nested(value):
        return None
    spread = (value.placements, value.shape) if isinstance(value, dtensor_type()) else ()
    local = value.to_local() if spread else value
    flipped = local.is_conj(), local.is_neg()
    return local.data_ptr(), local.dtype, tuple(local.shape), local.stride(), spread, flipped


def _bytes_of(name: str, value: Any) -> tuple[Box, Iterator[memoryview]]:
    """Return the box that this process has of a tensor, and its bytes in blocks."""
    piece = _piece(name, value)
    assert piece is not None, "it is in the order, so this process has some of it"
    if isinstance(value, LazyTensor):
        value = value.read()
    elif isinstance(value, dtensor_type()):
        value = value.to_local()
    value = value.detach()
    if piece.as_saved:
        buffer = io.BytesIO()
        torch.save(value.cpu(), buffer)
        return piece.box, _blocks(buffer.getbuffer())
    flat = value.resolve_conj().resolve_neg().cpu().contiguous().view(-1)
    return piece.box, _blocks(memoryview(flat.view(torch.uint8).numpy()))


def _blocks(view: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(view), BLOCK):
        yield view[start : start + BLOCK]
