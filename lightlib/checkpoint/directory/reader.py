"""Checkpoint directory: every process writes its shards, and any layout can read them."""

from __future__ import annotations

import os
from typing import Any

from lightlib.checkpoint.directory.encoding import decode
from lightlib.checkpoint.directory.index import LARGEST, Index
from lightlib.checkpoint.directory.peers import Peers
from lightlib.checkpoint.directory.tensors import BLOCK, LazyTensor, Shards, damaged, read_tensors
from lightlib.checkpoint.directory.writer import save
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.content import CALLBACK_TENSORS, OURS, SHARDED
from lightlib.checkpoint.storage.label import Label
from lightlib.errors import CheckpointError

__all__ = ["label_of", "load", "save", "verify"]


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a checkpoint. Weights, optimizer states and tensors of callbacks are `LazyTensor`, to be read later.

    Of several processes, each compares the sizes of its share of the files: all of them on each would be a request for
    each pair of processes. Bytes are compared when they are read.

    Raises:
        CheckpointError: It is missing, incomplete, damaged, or not lightlib's.
    """
    where, peers = os.fspath(path), Peers(None, alone=False)
    index, shards = _index_of(where, peers.rank, peers.size), Shards(where)
    content = decode(index.content, lambda name: _lazy_tensor(name, index, shards))
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise damaged(where, "it has no 'state_dict'")
    ours = content.get(OURS)
    later = ours.pop(CALLBACK_TENSORS, None) if isinstance(ours, dict) else None
    read = {key: value if key in SHARDED else read_tensors(value) for key, value in content.items()}
    if later is not None:
        read[OURS][CALLBACK_TENSORS] = later
    return read


def label_of(path: str | os.PathLike[str]) -> Label | None:
    """Return the label of a checkpoint; None if it is incomplete, damaged, or not lightlib's.

    Only the index is read, and the sizes of the files are compared with it.
    """
    try:
        return _index_of(os.fspath(path)).label
    except (CheckpointError, OSError):
        return None


def verify(path: str | os.PathLike[str]) -> int:
    """Read a checkpoint from end to end, compare it with its checksums, and return their number.

    Raises:
        CheckpointError: It is missing, incomplete, damaged, or not lightlib's; the message states where.
    """
    where = os.fspath(path)
    index, shards = _index_of(where), Shards(where)
    decode(index.content, lambda name: _lazy_tensor(name, index, shards))
    count = 1
    chunks = [(chunk, name) for name, entry in index.tensors.items() for chunk in entry.chunks]
    for chunk, name in sorted(chunks, key=lambda pair: (pair[0].shard, pair[0].position)):
        for start in range(0, chunk.length, BLOCK):
            shards.read(chunk, start, min(start + BLOCK, chunk.length), name)
            count += 1
        if index.tensors[name].as_saved:
            _lazy_tensor(name, index, shards).read()
    return count


def _lazy_tensor(name: str, index: Index, shards: Shards) -> LazyTensor:
    entry = index.tensors.get(name)
    if entry is None:
        raise damaged(shards.folder, f"its index.json does not list {name[:80]!r}")
    return LazyTensor(name, entry.shape, entry.dtype, entry.chunks, shards, entry.as_saved)


def _index_of(path: str, rank: int = 0, size: int = 1) -> Index:
    """Return the index, after comparing the sizes of the files with it, or of one in `size` of them."""
    name = filesystem.join(path, filesystem.INDEX)
    try:
        with filesystem.open_for_reading(name) as file:
            data = file.read(LARGEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise _foreign(path) from None
    except OSError as error:
        raise CheckpointError(
            f"The checkpoint {path!r} cannot be read: {error}.",
            expected="a directory that this user may read.",
            fix="check the permissions, or use another checkpoint.",
        ) from error
    if len(data) > LARGEST:
        raise damaged(path, f"its index.json has more than {LARGEST} bytes")
    index = Index.of(data, path)
    checked = list(index.shards)[rank::size]
    sizes = filesystem.sizes_in(path, checked)
    for name in checked:
        if name not in sizes:
            raise damaged(path, f"{name!r} is missing, one of {len(index.shards)} files with tensors")
        if sizes[name] != index.shards[name]:
            raise damaged(path, f"{name!r} has {sizes[name]} bytes instead of {index.shards[name]}")
    return index


def _foreign(path: str) -> CheckpointError:
    """Return the error for a folder without our index, depending on its content."""
    names = filesystem.names_in(path)
    if ".metadata" in names and "meta.pt" in names:
        problem = "is a sharded checkpoint of Lightning, which can only be read by running code that it names"
        fix = f"python -m lightning.pytorch.utilities.consolidate_checkpoint {path}, and use the file."
    elif ".metadata" in names:
        problem = "was written by torch.distributed.checkpoint, and its metadata can only be read by running code"
        fix = f"python -m torch.distributed.checkpoint.format_utils dcp_to_torch {path} weights.pt, if you trust it."
    elif not names:
        problem = "is empty" if filesystem.exists(path) else "does not exist"
        fix = "use another checkpoint."
    elif any(name.startswith("shard-") for name in names):
        problem = "is not complete: it has no index.json, which is written last"
        fix = "use another checkpoint; the process that wrote this one was stopped, or a copy was not finished."
    else:
        problem = f"is a directory without an index.json: it has {', '.join(names[:6])}"
        fix = "give the path of the checkpoint itself, not of the directory that contains it."
    expected = "a directory that Trainer.save_checkpoint wrote, with its index.json."
    return CheckpointError(f"{path!r} {problem}.", expected=expected, fix=fix)
