"""Formats: reads, writes and verifies a checkpoint, whether it is a file or a directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lightlib import report
from lightlib.checkpoint.determined import from_determined
from lightlib.checkpoint.directory import reader
from lightlib.checkpoint.directory.tensors import read_tensors
from lightlib.checkpoint.file import archive, safetensors
from lightlib.checkpoint.file.read_errors import unreachable
from lightlib.checkpoint.lightning_upgrades import upgraded
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.label import Label
from lightlib.conventions import leniency
from lightlib.errors import CheckpointError, closest, few, nearest

FORMATS = ("file", "directory")


def is_trusted(weights_only: bool | None) -> bool:
    """Whether a file may hold arbitrary objects: with False; with None also by torch's variable, under compat.

    Lightning leaves the decision to torch, which reads TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD.
    """
    if weights_only is not None or not leniency().keeps_objects:
        return weights_only is False
    forced = os.environ.get("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "0").lower() in ("1", "y", "yes", "true")
    if forced:
        report.warn_once(
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD",
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD is set, so checkpoints are read with weights_only=False, which may run "
            "any code in them.\n  Expected: files from a source that you trust.\n"
            "  Fix: weights_only=False in the calls that need it, and no such variable.",
        )
    return forced


def save(
    content: Mapping[str, Any], path: str, label: Label, kind: str = "file", group: Any = None, alone: bool = False
) -> None:
    """Write a checkpoint: as `archive.save`, or with `kind="directory"` as the `save` of directories."""
    if kind == "directory":
        reader.save(content, path, label, group, alone)
    else:
        archive.save(content, path, label)


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether `path` exists; a `CheckpointError` means that it is a URL that cannot be accessed."""
    try:
        return filesystem.exists(path)
    except (ImportError, OSError, ValueError) as error:
        raise unreachable(str(path), error) from error


def read(path: str, map_location: Any = None, trust: bool = False) -> dict[str, Any]:
    """Read a checkpoint as `load` does, or a file that holds any other dict, such as the state of one module.

    Raises:
        CheckpointError: It is missing, damaged, or has objects that need `trust`.
    """
    return load(path, map_location, trust, of_any_kind=True)


def read_weights(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a checkpoint, or a file of weights alone, to the CPU; the weights are under "state_dict".

    Raises:
        CheckpointError: It is missing, damaged, has objects that need trust, or holds no tensor.
    """
    content: dict[str, Any] = read_tensors(read(os.fspath(path), "cpu"))
    if not isinstance(content.get("state_dict"), Mapping):
        content = {"state_dict": content}
    if not any(isinstance(value, Tensor) for value in content["state_dict"].values()):
        raise CheckpointError(
            f"{os.fspath(path)!r} holds no weights, but {few(sorted(map(str, content['state_dict'])))}.",
            expected='tensors by their names, alone or under "state_dict".',
            fix="save them: torch.save(model.state_dict(), path).",
        )
    return content


def load(path: Any, map_location: Any = None, trust: bool = False, *, of_any_kind: bool = False) -> dict[str, Any]:
    """Read a checkpoint, as `archive.load`; tensors of a directory are read later, to the device where they are needed.

    One that an old version of Lightning or Determined wrote comes in the layout of Lightning 2.6.

    Raises:
        CheckpointError: It is missing, damaged, not a checkpoint, or has objects that need `trust`.
    """
    kind = kind_of(path) if isinstance(path, (str, os.PathLike)) else "file"
    if kind == "directory":
        return reader.load(path)
    if kind == "safetensors":
        return safetensors.load(path)
    try:
        content = from_determined(archive.load(path, map_location, trust=trust, of_any_kind=of_any_kind))
        return upgraded(content)
    except FileNotFoundError as error:  # a broken link, or removed meanwhile
        raise missing(path) from error


def kind_of(path: str | os.PathLike[str]) -> str:
    """Return the kind of a checkpoint: ``"directory"``, ``"safetensors"`` or ``"file"``.

    Raises:
        CheckpointError: It does not exist.
    """
    if not exists(path):
        raise missing(path)
    if filesystem.is_folder(path):
        return "directory"
    return "safetensors" if os.fspath(path).endswith(safetensors.SUFFIX) else "file"


def label_of(path: str | os.PathLike[str]) -> Label | None:
    """Return the label of a checkpoint; None if it has none or the label is damaged."""
    return reader.label_of(path) if filesystem.is_folder(path) else archive.label_of(path)


def verify(path: str | os.PathLike[str]) -> None:
    """Read a checkpoint from end to end and compare it with its checksums.

    Raises:
        CheckpointError: It is missing or damaged; the message states where.
    """
    verify_kind = reader.verify if kind_of(path) == "directory" else archive.verify
    verify_kind(path)


def missing(path: Any) -> CheckpointError:
    """Return the error for a missing checkpoint, which lists the existing ones."""
    if filesystem.is_remote(path):
        return CheckpointError(
            f"There is no checkpoint {str(path)!r}.",
            expected="an existing file.",
            fix="correct the address; `ckpt_path=None` starts a new run.",
        )
    folder, name = os.path.split(str(path))
    existing = [entry for entry in filesystem.names_in(folder or ".") if entry.endswith(".ckpt") and entry[0] != "."]
    near = closest(name, existing)
    return CheckpointError(
        f"There is no checkpoint {str(path)!r}.{nearest(name, existing)}",
        expected=f"an existing file; in {folder or '.'!r} there are: {', '.join(existing[:8]) or 'no .ckpt files'}.",
        fix=f"use {os.path.join(folder, near)!r}." if near else "correct the path; `ckpt_path=None` starts a new run.",
    )
