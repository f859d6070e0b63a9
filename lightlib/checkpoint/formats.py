"""Formats: a checkpoint is a file or a directory; what is asked of one goes to the right code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from lightlib.checkpoint.file import archive, safetensors
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.label import Label
from lightlib.errors import CheckpointError, closest, nearest

__all__ = ["FORMATS", "exists", "label_of", "load", "missing", "save", "verify"]

FORMATS = ("file", "directory")


def save(
    content: Mapping[str, Any], path: str, label: Label, kind: str = "file", group: Any = None, alone: bool = False
) -> None:
    """Write a checkpoint: under its name it is whole, or not there.

    Args:
        content: Tensors, plain values and containers of them.
        path: A local path or a URL.
        label: Which run writes it, and when.
        kind: ``"file"``: this process writes all. ``"directory"``: every process calls this and writes its part.
        group: The processes that write a directory. Default: all.
        alone: This process writes a directory by itself, whatever others there are.

    Raises:
        CheckpointWriteError: It could not be written; what was there before is as it was.
    """
    if kind == "directory":
        _directories().save(content, path, label, group, alone)
    else:
        archive.save(content, path, label)


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is anything at `path`.

    Raises:
        CheckpointError: It is a URL that cannot be reached.
    """
    try:
        return filesystem.exists(path)
    except (ImportError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{str(path)!r} cannot be reached: {error}",
            expected="a path, or a URL whose protocol fsspec knows, with the package for it installed.",
            fix="pip install s3fs for s3://, gcsfs for gs://, adlfs for abfs://; or use a local path.",
        ) from error


def load(path: Any, map_location: Any = None, trust: bool = False) -> dict[str, Any]:
    """Read a checkpoint. Nothing in it is run, unless `trust` says that it may be.

    Args:
        path: A local path, a URL, or an open file.
        map_location: As in torch.load; tensors of a directory are read later, to where they are needed.
        trust: Also take Python objects that can only be read by running code that the file names.

    Raises:
        CheckpointError: It is missing, damaged, no checkpoint, or holds objects that only a trusted file may hold.
    """
    named = isinstance(path, (str, os.PathLike))
    if named and not exists(path):
        raise missing(path)
    if named and filesystem.is_folder(path):
        return _directories().load(path)  # type: ignore[no-any-return]
    if named and os.fspath(path).endswith(safetensors.SUFFIX):
        return safetensors.load(path)
    try:
        return archive.load(path, map_location, trust=trust)
    except FileNotFoundError as error:  # a link to nothing, or removed in this moment
        raise missing(path) from error


def label_of(path: str | os.PathLike[str]) -> Label | None:
    """Return which run wrote a checkpoint; None for what has no label or is damaged where it should be."""
    return (_directories() if filesystem.is_folder(path) else archive).label_of(path)  # type: ignore[no-any-return]


def verify(path: str | os.PathLike[str]) -> None:
    """Read a checkpoint from end to end and compare it with its checksums.

    Raises:
        CheckpointError: It is missing or damaged; the text says where.
    """
    if not exists(path):
        raise missing(path)
    (_directories() if filesystem.is_folder(path) else archive).verify(path)


def missing(path: Any) -> CheckpointError:
    """Return the error for a checkpoint that is not there, with those that are."""
    if filesystem.is_remote(path):
        return CheckpointError(
            f"There is no checkpoint {str(path)!r}.",
            expected="an existing file.",
            fix="correct the address; `ckpt_path=None` starts from nothing.",
        )
    folder, name = os.path.split(str(path))
    there = sorted(one for one in filesystem.names_in(folder or ".") if one.endswith(".ckpt") and one[0] != ".")
    near = closest(name, there)
    return CheckpointError(
        f"There is no checkpoint {str(path)!r}.{nearest(name, there)}",
        expected=f"an existing file; in {folder or '.'!r} there are: {', '.join(there[:8]) or 'no .ckpt files'}.",
        fix=f"use {os.path.join(folder, near)!r}."
        if near
        else "correct the path; `ckpt_path=None` starts from nothing.",
    )


def _directories() -> ModuleType:
    from lightlib.checkpoint.directory import reader  # optional: torch.distributed.checkpoint takes time to import

    return reader
