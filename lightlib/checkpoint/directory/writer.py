"""Writes a checkpoint directory: assigns shards to processes, writes them, then the index."""

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
from typing import Any, BinaryIO, NoReturn, cast

import torch
from torch import Tensor

from lightlib.checkpoint.directory.encoding import encode, merged, tensor_names
from lightlib.checkpoint.directory.index import Entry, Index, gap_in, shard_name
from lightlib.checkpoint.directory.peers import PeerFailure, Peers, attempted
from lightlib.checkpoint.directory.tensors import BLOCK, Chunk, LazyTensor, dtensor_type
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.content import sharded_and_rest
from lightlib.checkpoint.storage.label import Label
from lightlib.checkpoint.storage.swap import put_in_place
from lightlib.errors import CheckpointWriteError, LightlibError

Box = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass
class LocalShard:
    """The shard of one tensor on one process, without its values; `dtype` and `shape` are those of the full tensor."""

    dtype: torch.dtype
    shape: torch.Size
    box: Box  # offsets and sizes of the shard
    as_saved: bool  # whether it is written as `torch.save` does


@dataclass
class RankContent:
    """The content of one process, as sent to the first one."""

    content: Any  # encoded; of later processes only their contribution
    shards: dict[str, LocalShard]  # that it could write, by the name of the tensor


@dataclass
class WriteTask:
    """The file that one process has to write, and the names of its tensors."""

    folder: str
    shard: str
    names: list[str]


@dataclass
class WrittenFile:
    """The file that one process has written: its size, and the chunk of each tensor."""

    size: int
    chunks: dict[str, Chunk]


def save(
    content: Mapping[str, Any], path: str | os.PathLike[str], label: Label, group: Any = None, alone: bool = False
) -> None:
    """Write a checkpoint with all processes of `group`; it appears under its name only when it is complete.

    Of replicated tensors, the first process that has them writes them. An older checkpoint of this name is replaced in
    one step, or if the system cannot, renamed before and removed afterwards.

    Args:
        content: Tensors, plain values and containers of them. ``content["state_dict"]``,
            ``content["optimizer_states"]`` and the callbacks' tensors may have DTensors and tensors that only some
            processes have; everything else is taken from the first process.
        path: A local path or a URL, the same on all processes.
        label: The run that writes it, and its position.
        group: The processes that call this, one checkpoint at a time. Default: all.
        alone: This process writes the full checkpoint, even if there are several processes. Default False.

    Raises:
        CheckpointWriteError: One of the processes could not write its shards; raised on all of them. An existing
            checkpoint is unchanged.
    """
    path = os.fspath(path)
    peers = Peers(group, alone)
    message_of = _ErrorMessage(path, peers)
    tensors: dict[str, Any] = {}
    local = attempted(partial(_local_content, content, peers.first, tensors), message_of)
    contents = peers.gather(local)
    with contextlib.ExitStack() as stack:
        plan = attempted(partial(_SavePlan, contents, path, stack), message_of) if peers.first else None
        task = peers.scatter(plan.tasks if isinstance(plan, _SavePlan) else [plan] * peers.size)
        if isinstance(task, PeerFailure):
            _raise(task, local)
        message_of.written_in(task.folder)
        written = attempted(partial(_write_shard, task, tensors), message_of)
        results = peers.gather(written)
        done = None
        if isinstance(plan, _SavePlan):
            done = attempted(partial(plan.complete, results, label), message_of)
            if isinstance(done, PeerFailure):
                plan.abandon()
        done = peers.scatter([done] * peers.size)
        if isinstance(done, PeerFailure):
            if task.folder != path:  # the first process has removed it on its own machine
                shutil.rmtree(task.folder, ignore_errors=True)
            _raise(done, written)


def _raise(failure: PeerFailure, local: Any) -> NoReturn:
    """Raise the failure of any process; if this one has failed too, from its error."""
    error = local.error if isinstance(local, PeerFailure) else failure.error
    if isinstance(error, CheckpointWriteError) and str(error) == failure.text:
        raise error
    raise CheckpointWriteError(failure.text) from error


class _ErrorMessage:
    """Returns the message of an error on this process, with the checkpoint's name in place of the temporary one."""

    def __init__(self, path: str, peers: Peers) -> None:
        self.path = self.folder = path
        self._where = f" (process {peers.rank} of {peers.size})" if peers.size > 1 else ""

    def written_in(self, folder: str) -> None:
        """Note the folder in which the checkpoint is written."""
        self.folder = folder

    def __call__(self, error: Exception) -> str:
        if isinstance(error, LightlibError):
            return str(error).replace(self.folder, self.path)
        reason = f"{error}" if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        return str(
            CheckpointWriteError(
                f"The checkpoint {self.path!r} could not be written{self._where}: {reason}.".replace(
                    self.folder, self.path
                ),
                expected="a writable folder or store with enough room, and tensors that can be read.",
                fix="see the reason; earlier checkpoints are unchanged.",
            )
        )


# the content of each process
def _local_content(content: Mapping[str, Any], first: bool, tensors: dict[str, Any]) -> RankContent:
    """Return the content of this process; the tensors themselves are put into `tensors`."""
    if isinstance(content.get("state_dict"), Mapping):
        content = {**content, "state_dict": dict(content["state_dict"])}
    if first:
        encoded, local = encode(content)
    else:
        sharded, rest = sharded_and_rest(content)
        encoded, local = encode(sharded)
        kind = dtensor_type()
        local |= {name: value for name, value in encode(rest, lenient=True)[1].items() if isinstance(value, kind)}
    shards = {name: shard for name, value in local.items() if (shard := _shard(name, value)) is not None}
    tensors.update((name, local[name]) for name in shards)
    return RankContent(encoded, shards)


def _shard(name: str, value: Any) -> LocalShard | None:
    """Return this process's shard of a tensor; None if it is not in the tensor's mesh."""
    if isinstance(value, dtensor_type()):
        if value.device_mesh.get_coordinate() is None:
            return None
        (chunk,) = value.__create_chunk_list__()
        local = value.to_local()
        if tuple(local.shape) != tuple(chunk.sizes):
            raise CheckpointWriteError(
                f"The tensor {name!r} is sharded in a way that cannot be written in shards: {value.placements} of "
                f"{tuple(value.shape)} gives this process {tuple(local.shape)}.",
                expected="sizes that can be sharded evenly.",
                fix="save a file: trainer.save_checkpoint(path, format='file').",
            )
        return LocalShard(value.dtype, value.shape, (tuple(chunk.offsets), tuple(chunk.sizes)), as_saved=False)
    shape = torch.Size(value.shape)
    plain = isinstance(value, LazyTensor) and not value.as_saved
    as_saved = not plain and (isinstance(value, LazyTensor) or value.layout != torch.strided or value.is_quantized)
    return LocalShard(value.dtype, shape, ((0,) * len(shape), tuple(shape)), as_saved or _is_nested(value))


def _is_nested(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_nested


# the decisions of the first process
class _SavePlan:
    """Assigns shards to processes and completes the checkpoint; on the first process.

    Closing `stack` releases the temporary name.
    """

    def __init__(self, contents: list[RankContent | PeerFailure], path: str, stack: contextlib.ExitStack) -> None:
        ranks = [_result_or_raise(content) for content in contents]
        self.path, self.remote = path, filesystem.is_remote(filesystem.local_path(path))
        self.token = secrets.token_hex(4)
        _check_target(path)
        self.content = ranks[0].content
        for other in ranks[1:]:
            for key, contribution in other.content.items():
                self.content[key] = merged(self.content.get(key, {}), contribution)
        names = list(dict.fromkeys(tensor_names(self.content)))
        self.entries, owned = _assign(names, ranks)
        self.folder = path
        if not self.remote:
            self.folder = stack.enter_context(filesystem.aside(path))
            filesystem.make_folder(os.path.dirname(os.path.abspath(self.folder)))
            os.mkdir(self.folder)
        self.tasks = [WriteTask(self.folder, shard_name(self.token, rank), mine) for rank, mine in enumerate(owned)]

    def complete(self, results: list[WrittenFile | PeerFailure], label: Label) -> None:
        """Write the index, and give the checkpoint its name."""
        shards: dict[str, int] = {}
        for task, result in zip(self.tasks, results, strict=True):
            written = _result_or_raise(result)
            if written.size:
                shards[task.shard] = written.size
            for name, chunk in written.chunks.items():
                self.entries[name].chunks.append(chunk)
        self._check_visible(shards)
        data = Index(label, shards, self.entries, self.content).as_bytes()
        older = filesystem.names_in(self.folder) if self.remote else []
        filesystem.write(filesystem.join(self.folder, filesystem.INDEX), lambda file: cast("None", file.write(data)))
        if not self.remote:
            put_in_place(self.folder, filesystem.local_path(self.path).rstrip(os.sep))
        for name in older:
            if name != filesystem.INDEX and name not in shards:
                with contextlib.suppress(OSError, LightlibError):  # the new checkpoint is complete
                    filesystem.remove(filesystem.join(self.folder, name))

    def _check_visible(self, shards: Mapping[str, int]) -> None:
        """Check that this process sees the files of all processes."""
        sizes = filesystem.sizes_in(self.folder, shards)
        for rank, task in enumerate(self.tasks):
            if sizes.get(task.shard) == shards.get(task.shard):
                continue
            raise CheckpointWriteError(
                f"The checkpoint {self.path!r} could not be written: the first process does not see the file of "
                f"process {rank} ({task.shard}).",
                expected="a path to the same folder on all machines.",
                fix="use a shared file system or a store, or save files: format='file'.",
            )

    def abandon(self) -> None:
        """Remove the files that have been written."""
        if not self.remote:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for task in self.tasks:
            with contextlib.suppress(OSError, LightlibError):
                filesystem.remove(filesystem.join(self.path, task.shard))


def _result_or_raise(result: Any) -> Any:
    if isinstance(result, PeerFailure):
        raise result.error if isinstance(result.error, LightlibError) else CheckpointWriteError(result.text)
    return result


def _assign(names: list[str], ranks: list[RankContent]) -> tuple[dict[str, Entry], list[list[str]]]:
    """Return the entry of each tensor, and the tensors that each process writes: the first that has a box writes it."""
    entries: dict[str, Entry] = {}
    owned: list[list[str]] = [[] for _ in ranks]
    for name in names:
        boxes: dict[Box, int] = {}
        for rank, content in enumerate(ranks):
            shard = content.shards.get(name)
            if shard is None:
                continue
            entry = entries.setdefault(name, Entry(shard.dtype, shard.shape, shard.as_saved, []))
            if (shard.dtype, shard.shape, shard.as_saved) != (entry.dtype, entry.shape, entry.as_saved):
                raise _disagreement(name, f"{tuple(entry.shape)} {entry.dtype}, {tuple(shard.shape)} {shard.dtype}")
            if shard.box not in boxes:
                boxes[shard.box] = rank
                if math.prod(shard.box[1]) or shard.as_saved:
                    owned[rank].append(name)
        gap = gap_in(entries[name].shape, boxes) if name in entries else "are missing"
        if gap is not None:
            raise _disagreement(name, f"its shards {gap}")
    return entries, owned


def _disagreement(name: str, difference: str) -> CheckpointWriteError:
    return CheckpointWriteError(
        f"The processes do not have shards of the same tensor {name!r}: {difference}.",
        expected="the same tensor on all processes, or shards that together cover it.",
        fix="save a file: trainer.save_checkpoint(path, format='file').",
    )


def _check_target(path: str) -> None:
    """Refuse an existing folder that is not a checkpoint: it would be removed with its content."""
    if not filesystem.is_folder(path) or os.path.islink(filesystem.local_path(path)):
        return
    names = [name for name in filesystem.names_in(path) if not name.startswith(".")]
    others = [name for name in names if name != filesystem.INDEX and not name.startswith("shard-")]
    if others or (names and filesystem.INDEX not in names and not filesystem.is_remote(path)):
        raise CheckpointWriteError(
            f"The checkpoint {path!r} could not be written: there is a folder of this name with other files in it: "
            f"{', '.join((others or names)[:4])}.",
            expected="a free name, or the name of an older checkpoint.",
            fix=f"trainer.save_checkpoint({filesystem.join(path, 'last.ckpt')!r})",
        )


# the bytes
def _write_shard(task: WriteTask, tensors: Mapping[str, Any]) -> WrittenFile:
    """Write this process's file, unless it has no shards."""
    chunks: dict[str, Chunk] = {}
    size = 0

    def produce(file: BinaryIO) -> None:
        nonlocal size
        size = 0  # a retry begins again
        by_memory: dict[Any, Chunk] = {}
        for name in task.names:
            memory = _memory(tensors[name])
            if memory in by_memory:  # tied to a tensor that is already written
                chunks[name] = by_memory[memory]
                continue
            box, blocks = _bytes_of(name, tensors[name])
            checksums, begin = [], size
            for block in blocks:
                file.write(block)
                checksums.append(zlib.crc32(block))
                size += len(block)
            chunk = Chunk(*box, task.shard, begin, size - begin, tuple(checksums))
            chunks[name] = by_memory[memory if memory is not None else name] = chunk

    if task.names:
        filesystem.write(filesystem.join(task.folder, task.shard), produce)
    return WrittenFile(size, chunks)


def _memory(value: Any) -> Any:
    """Return a key that is the same for tensors with the same view of the same memory; None if unknown."""
    if isinstance(value, LazyTensor) or value.layout != torch.strided or value.is_quantized or _is_nested(value):
        return None
    sharding = (value.placements, value.shape) if isinstance(value, dtensor_type()) else ()
    local = value.to_local() if sharding else value
    flipped = local.is_conj(), local.is_neg()
    return local.data_ptr(), local.dtype, tuple(local.shape), local.stride(), sharding, flipped


def _bytes_of(name: str, value: Any) -> tuple[Box, Iterator[memoryview]]:
    """Return the box of the local shard of a tensor, and its bytes in blocks."""
    shard = _shard(name, value)
    assert shard is not None, "it is in the task, so this process has a shard of it"
    if isinstance(value, LazyTensor):
        value = value.read()
    elif isinstance(value, dtensor_type()):
        value = value.to_local()
    value = value.detach()
    if shard.as_saved:
        buffer = io.BytesIO()
        torch.save(value.cpu(), buffer)
        return shard.box, _blocks(buffer.getbuffer())
    flat = value.resolve_conj().resolve_neg().cpu().contiguous().view(-1)
    return shard.box, _blocks(memoryview(flat.view(torch.uint8).numpy()))


def _blocks(view: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(view), BLOCK):
        yield view[start : start + BLOCK]
