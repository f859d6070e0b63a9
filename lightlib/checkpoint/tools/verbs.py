"""Operations on a checkpoint outside of a run: load, verify, convert, consolidate, export."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, Literal, cast

import torch

from lightlib import report
from lightlib.checkpoint import formats, lightning
from lightlib.checkpoint.determined import to_determined
from lightlib.checkpoint.directory import reader
from lightlib.checkpoint.directory.tensors import read_tensors
from lightlib.checkpoint.file import archive, hdf5, safetensors
from lightlib.checkpoint.file.records import SharedReader, layout
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.content import FROZEN, OURS
from lightlib.checkpoint.storage.label import Label
from lightlib.checkpoint.tools.inspection import plural, size_text
from lightlib.errors import CheckpointWriteError, MisconfigurationException, UnknownNameError, closest, few
from lightlib.tree import map_tensors

FORMATS = ("file", "directory", "safetensors")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}


def load(path: str | os.PathLike[str], map_location: Any = None, trust: bool = False) -> dict[str, Any]:
    """Read a full checkpoint into memory: a file, also Lightning's, a directory, or a safetensors file.

    Args:
        path: A local path or a URL.
        map_location: As in torch.load. Tensors of a directory and of safetensors are on the CPU unless it is a device.
        trust: Also read Python objects that can only be read by running code that the file names.

    Returns:
        The content, with the weights under ``"state_dict"``.

    Raises:
        CheckpointError: It is missing, damaged, not a checkpoint, or needs trust.
    """
    name = os.fspath(path)
    content, kind = formats.load(name, map_location, trust), formats.kind_of(name)
    if kind == "directory":
        content = read_tensors(content)
    if kind != "file" and isinstance(map_location, (str, torch.device)):
        content = map_tensors(lambda tensor: tensor.to(map_location), content)
    return content


@dataclass(frozen=True)
class Verified:
    """The result of `verify`.

    Attributes:
        path: The checkpoint.
        bytes: Its size.
        checksums: How many checksums were compared.
        note: The part that could not be checked; empty if every byte is covered.
    """

    path: str
    bytes: int
    checksums: int
    note: str = ""

    def __str__(self) -> str:
        compared = f", {plural(self.checksums, 'checksum')} compared" if self.checksums else ""
        text = f"{self.path}: {'intact' if self.checksums else 'no damage found'}. {size_text(self.bytes)}{compared}"
        return f"{text}; {self.note}." if self.note else f"{text}."


def verify(path: str | os.PathLike[str]) -> Verified:
    """Read a checkpoint from end to end and compare it with its checksums.

    A file of another program is also read, to see that it is a checkpoint.

    Args:
        path: A file, also Lightning's, a directory, or a safetensors file; a local path or a URL.

    Raises:
        CheckpointError: It is missing, damaged, or not a checkpoint; the message states where.

    Example:
        >>> import torch
        >>> from lightlib.checkpoint import verify
        >>> torch.save({"state_dict": {"weight": torch.zeros(2)}}, "plain.ckpt")
        >>> print(verify("plain.ckpt").note)
        it has no lightlib checksum: torch.save's CRC-32 of each record was compared
    """
    name = os.fspath(path)
    kind, size = formats.kind_of(name), filesystem.size_of(name)
    if kind == "safetensors":
        safetensors.outline(name)
        return Verified(name, size, 0, "safetensors has no checksums: its header and its length fit each other")
    if kind == "directory":
        return Verified(name, size, reader.verify(name))
    count = archive.verify(name)
    return Verified(name, size, count) if count else Verified(name, size, *_checksums_of_torch(name))


def _checksums_of_torch(path: str) -> tuple[int, str]:
    """Return how many checksums torch.save wrote into a file that is not ours, and the note for `Verified`."""
    with filesystem.open_for_reading(path) as file:
        if file.read(len(archive.ZIP)) != archive.ZIP:
            return 0, "it has no checksums (the format of torch before 1.6)"
        records = [record for record in layout(SharedReader(file)) if record.size > 0]
    if not any(record.crc for record in records):
        return 0, "it has no checksums (torch.serialization.set_crc32_options)"
    return len(records), "it has no lightlib checksum: torch.save's CRC-32 of each record was compared"


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    format: Literal["file", "directory", "safetensors"] | None = None,  # noqa: A002  the name that users look for
    *,
    prefix: str = "",
    overwrite: bool = False,
    trust: bool = False,
) -> None:
    """Write a checkpoint in another format; its content, including Lightning's keys, is unchanged.

    It is read fully into memory and verified. A file of Determined comes in Lightning's layout.

    Args:
        source: A file, also Lightning's or Determined's, or a directory.
        target: Where to write; its folder is made.
        format: ``"file"``, ``"directory"`` or ``"safetensors"`` (only weights). Default: safetensors for a target of
            that suffix, else a directory from a file, and a file from a directory.
        prefix: Put in front of the names of the weights, for instance ``"model."`` for a model that becomes an
            attribute of a module.
        overwrite: Whether an existing target may be replaced, in one step. A folder without a checkpoint never is.
        trust: Also read Python objects that can only be read by running code that the file names.

    Raises:
        CheckpointError: The source is missing, damaged, not a checkpoint, or needs trust.
        CheckpointWriteError: The target exists or cannot be written.
        MisconfigurationException: The format does not exist or does not fit the target's suffix.
    """
    old, new = os.fspath(source), os.fspath(target)
    if format is not None and format not in FORMATS:
        raise UnknownNameError("format", format, FORMATS, fix="convert(source, target, format='directory')")
    suffixed = new.endswith(safetensors.SUFFIX)
    if format is not None and suffixed != (format == "safetensors"):
        raise MisconfigurationException(
            f"The target {new!r} has the wrong suffix for format={format!r}.",
            expected=f"a name that ends in {safetensors.SUFFIX} for format='safetensors', and only for that.",
            fix=f"convert(source, {new.removesuffix(safetensors.SUFFIX) + ('' if suffixed else safetensors.SUFFIX)!r})",
        )
    if suffixed and prefix:
        raise MisconfigurationException(
            f"convert(…, {new!r}, prefix={prefix!r}): safetensors are exported under their names.",
            expected="a prefix for a checkpoint file or directory.",
            fix="convert to a file first, and export that.",
        )
    if suffixed:
        return export(old, new, overwrite=overwrite, trust=trust)
    kind = formats.kind_of(old)
    if kind == "safetensors":
        raise MisconfigurationException(
            f"{old!r} has only weights, so it cannot be converted to a checkpoint.",
            expected="a checkpoint file or a checkpoint directory.",
            fix="load it with Module.load_from_checkpoint, which reads it as it is.",
        )
    target_format = format or ("file" if kind == "directory" else "directory")
    _check_target(old, new, overwrite, "folder" if target_format == "directory" else "file")
    content = load(old, "cpu", trust)
    if prefix:
        content["state_dict"] = {f"{prefix}{name}": value for name, value in content["state_dict"].items()}
        if FROZEN in content:
            left_out = {f"{prefix}{name}": value for name, value in content[FROZEN]["tensors"].items()}
            content[FROZEN] = {**content[FROZEN], "tensors": left_out}
    formats.save(content, new, label_in(content), target_format, alone=True)
    return None


def consolidate(directory: str | os.PathLike[str], file: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a directory as one file, which `torch.load`, Lightning and every strategy read.

    Raises:
        CheckpointError: The directory is missing, damaged, or not a checkpoint.
        CheckpointWriteError: The file exists or cannot be written.
        MisconfigurationException: The source is not a directory.
    """
    name = os.fspath(directory)
    if filesystem.exists(name) and not filesystem.is_folder(name):
        raise MisconfigurationException(
            f"{name!r} is already a file.",
            expected="a checkpoint directory.",
            fix=f"use {name!r} as it is, or convert({name!r}, …) for another format.",
        )
    convert(name, file, "file", overwrite=overwrite)


def export(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    strip: str = "",
    dtype: Literal["float32", "float16", "bfloat16", "float64"] | None = None,
    layout: Literal["determined"] | None = None,
    overwrite: bool = False,
    trust: bool = False,
) -> None:
    """Write only the weights as safetensors or HDF5, under their names; or a checkpoint in another program's layout.

    Weights that share memory are each written in full. Other values are omitted, with a warning.

    Args:
        source: A file, also Lightning's, or a directory.
        target: A name that ends in ``.safetensors``, or in ``.h5`` or ``.hdf5``, which has a data set for each weight;
            with a layout any other name.
        strip: A prefix to remove from names, for instance ``"model."``; other names are unchanged.
        dtype: ``"float32"``, ``"float16"``, ``"bfloat16"`` or ``"float64"`` for all floating-point weights. Default:
            unchanged.
        layout: ``"determined"``: weights, optimizers, schedules and callbacks in the four entries of Determined's
            PyTorchTrial (``models_state_dict``, …). Names that begin with ``models.0.``, … are several models.
        overwrite: Whether an existing target may be replaced, in one step.
        trust: Also read Python objects that can only be read by running code that the file names.

    Raises:
        CheckpointError: The source is missing, damaged, not a checkpoint, or needs trust.
        CheckpointWriteError: The target exists or cannot be written.
        MisconfigurationException: The suffix, dtype, layout or prefix is wrong, or the format's package is missing.
    """
    old, new = os.fspath(source), os.fspath(target)
    if layout is not None:
        _check_layout(layout, new, dtype)
        formats.kind_of(old)
        _check_target(old, new, overwrite, "file")
        _export_determined(load(old, "cpu", trust), old, new, strip)
        return
    if not new.endswith((safetensors.SUFFIX, *hdf5.SUFFIXES)):
        raise MisconfigurationException(
            f"The target {new!r} does not end in {safetensors.SUFFIX} or .h5.",
            expected=f"a name with the suffix {safetensors.SUFFIX}, or .h5 for HDF5.",
            fix=f"export(source, {os.path.splitext(new)[0] + safetensors.SUFFIX!r})",
        )
    if dtype is not None and dtype not in DTYPES:
        raise UnknownNameError("dtype", dtype, DTYPES, fix="export(source, target, dtype='bfloat16')")
    formats.kind_of(old)  # raises if it is missing
    _check_target(old, new, overwrite, "file")
    content = load(old, "cpu", trust)
    if left_out := (content.get(FROZEN) or {}).get("tensors"):
        report.warn(
            f"{old!r} leaves out {len(left_out)} frozen weights ({few(list(left_out))}), which {new!r} lacks as well.\n"
            "  Fix: load it with load_from_checkpoint, and save the state_dict of the module.",
            report.PossibleUserWarning,
        )
    state = content["state_dict"]
    omitted = [str(name) for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if omitted:
        report.warn(f"{', '.join(map(repr, omitted))} of {old!r} are not tensors and are not written to {new!r}.")
    weights = {str(name): value for name, value in state.items() if isinstance(value, torch.Tensor)}
    tensors = _stripped(weights, strip, old)
    if dtype is not None:
        kind = DTYPES[dtype]
        tensors = {name: value.to(kind) if value.is_floating_point() else value for name, value in tensors.items()}
    metadata = {name: str(content[name]) for name in safetensors.NOTED if isinstance(content.get(name), int)}
    writer = safetensors if new.endswith(safetensors.SUFFIX) else hdf5
    writer.save(tensors, new, {"format": "pt", **metadata})


def _check_layout(layout: object, target: str, dtype: object) -> None:
    if layout != "determined":
        raise UnknownNameError("layout", layout, ("determined",), fix="export(source, target, layout='determined')")
    if dtype is not None or target.endswith(safetensors.SUFFIX):
        other = f"dtype={dtype!r}" if dtype is not None else f"the target {target!r}"
        raise MisconfigurationException(
            f"export got layout='determined' and {other}.",
            expected="weights for safetensors, or a checkpoint in the layout of another program.",
            fix="export(source, 'state_dict.pth', layout='determined')",
        )


def _export_determined(content: dict[str, Any], source: str, target: str, strip: str) -> None:
    if "MixedPrecision" in content:
        report.warn(f"The state of the loss scaler in {source!r} is not written to {target!r}.")
    weights = _stripped({str(name): value for name, value in content["state_dict"].items()}, strip, source)
    converted = to_determined({**content, "state_dict": weights})

    def produce(file: BinaryIO) -> None:
        torch.save(converted, cast("IO[bytes]", file))

    filesystem.write(target, produce)


def _stripped(tensors: dict[str, Any], prefix: str, source: str) -> dict[str, Any]:
    if not prefix:
        return tensors
    heads = {name.split(".")[0] + "." for name in tensors if "." in name}
    if not any(name.startswith(prefix) for name in tensors):
        raise MisconfigurationException(
            f"No weight in {source!r} has a name that begins with {prefix!r}.",
            expected=f"one of the prefixes {', '.join(sorted(map(repr, heads))[:6]) or '(there are none)'}.",
            fix=f"export(source, target, strip={closest(prefix, heads, next(iter(sorted(heads)), ''))!r})",
        )
    short = {name.removeprefix(prefix): value for name, value in tensors.items()}
    if len(short) < len(tensors) or "" in short:
        twice = next(name for name in tensors if name == prefix or name.removeprefix(prefix) in {*tensors} - {name})
        raise MisconfigurationException(
            f"Without {prefix!r} the weight {twice!r} would have the name of another one, or an empty name.",
            expected="a prefix that can be removed without making two names equal.",
            fix="export(source, target), without strip, which keeps the names.",
        )
    return short


def _check_target(source: str, target: str, overwrite: bool, kind: str) -> None:
    """Refuse an existing target before anything is read; `kind` is that of the new one, "file" or "folder"."""
    if not filesystem.exists(target):
        return
    if _place(source) == _place(target):
        raise MisconfigurationException(
            f"Source and target are the same: {target!r}.",
            expected="another name for the target.",
            fix="write to another file; the source is unchanged.",
        )
    present_kind = "folder" if filesystem.is_folder(target) else "file"
    if overwrite and present_kind == kind:
        return
    raise CheckpointWriteError(
        f"The {present_kind} {target!r} already exists.",
        expected=f"a new name; nothing is overwritten{f' by a {kind}' if overwrite else ''}.",
        fix=f"choose another name, or {'remove it first' if overwrite else 'pass overwrite=True (--overwrite)'}.",
    )


def _place(path: str) -> str:
    return path.rstrip("/") if filesystem.is_remote(path) else os.path.realpath(filesystem.local_path(path))


def label_in(content: dict[str, Any]) -> Label:
    """Return the label of the checkpoint, or one without a run if lightlib did not write it."""
    alone = "optimizer_states" not in content
    try:
        ours = content.get(OURS)
        if ours is not None and "label" in ours:
            return Label.of(ours["label"])
        where = ours["progress"] if ours is not None else lightning.position(content)
        return Label(epoch=where["epoch"], batch=where["batch"], step=where["step"], weights_only=alone)
    except (AttributeError, KeyError, TypeError, ValueError):
        return Label(weights_only=alone)
