"""Inspection: the content of a checkpoint, read without its tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from lightlib.checkpoint import formats, lightning
from lightlib.checkpoint.determined import from_determined
from lightlib.checkpoint.file import archive, safetensors
from lightlib.checkpoint.lightning_upgrades import upgraded
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.content import FROZEN, lightlib_state
from lightlib.checkpoint.storage.label import Label
from lightlib.errors import CheckpointError
from lightlib.report import MASK, is_secret
from lightlib.tree import children

_TO_RESUME = ("optimizer_states", "lr_schedulers", "callbacks")
_LARGEST = 5


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: its shape, its dtype by name (``"float32"``), and its bytes."""

    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True)
class Part:
    """One entry of a checkpoint, for instance ``"optimizer_states"``.

    Attributes:
        name: Its key.
        tensors, elements, bytes: How many tensors it has, with how many numbers, and their bytes. Tensors that share
            memory are each counted, but their bytes only once.
    """

    name: str
    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class Inspection:
    """The content of a checkpoint. `print` shows it; `as_dict` returns plain values.

    Attributes:
        path: Its path or URL.
        kind: ``"file"``, ``"directory"`` or ``"safetensors"``.
        bytes: Its size.
        writer: The program that wrote it, with its version; empty if unknown.
        label: The run that wrote it, and its position; None without.
        epoch, epoch_batch, batch, step: The position of the run: completed epochs, batches in this epoch and in total,
            optimizer steps; None if unknown.
        versions: Versions of the packages that wrote it, by name.
        strategy, precision, world_size: How it was trained, and by how many processes; None if unknown.
        resumable: Whether a run can resume from it; otherwise it has only weights.
        parts: Its entries that have tensors or states.
        tensors: The weights: shape, dtype and bytes by name.
        hyperparameters, datamodule_hyperparameters: Values whose names look like secrets are masked.
        callbacks: The callbacks whose states it has.
        left_out: Frozen weights that it does not have, because the module or a file has them.
    """

    path: str
    kind: str
    bytes: int
    writer: str
    label: Label | None
    resumable: bool
    epoch: int | None = None
    epoch_batch: int | None = None
    batch: int | None = None
    step: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    strategy: str | None = None
    precision: str | None = None
    world_size: int | None = None
    parts: tuple[Part, ...] = ()
    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    datamodule_hyperparameters: dict[str, Any] = field(default_factory=dict)
    callbacks: tuple[str, ...] = ()
    left_out: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return everything as values that JSON supports."""
        plain = {**asdict(self), "label": None if self.label is None else self.label.as_dict()}
        for name in ("hyperparameters", "datamodule_hyperparameters"):
            plain[name] = _mapped(_json, plain[name])
        return plain

    def __str__(self) -> str:
        return "\n".join(f"  {head:<11} {text}".rstrip() for head, text in self._lines()).lstrip()

    def _lines(self) -> Iterator[tuple[str, str]]:
        word = {"file": "a file", "directory": "a directory", "safetensors": "a safetensors file"}[self.kind]
        yield "", f"{shown_name(self.path)}: {word}{self.writer and f' of {self.writer}'}, {size_text(self.bytes)}"
        if self.label is not None and self.label.run:
            yield "run", f"{shown_name(self.label.run)}, save {self.label.serial}"
        if self.step is not None:
            yield "position", self._position()
        how = [self.strategy, self.precision, *(f"{name} {text}" for name, text in self.versions.items())]
        if self.world_size is not None:
            how.insert(0, plural(self.world_size, "process", "processes"))
        if any(how):
            yield "written by", ", ".join(shown_name(text) for text in how if text)
        if self.left_out:
            yield "left out", f"{plural(self.left_out, 'frozen weight')}, which the module or its source has"
        yield "resume", "yes" if self.resumable else "no: it has only weights (load_from_checkpoint)"
        yield from _under("parts", _columns([_row(part) for part in self.parts]))
        largest = sorted(self.tensors.items(), key=lambda item: (-item[1].bytes, item[0]))[:_LARGEST]
        rows = [[shown_name(name), f"{info.dtype} {list(info.shape)}", size_text(info.bytes)] for name, info in largest]
        yield from _under("largest", _columns(rows))
        for head, params in (("hparams", self.hyperparameters), ("data module", self.datamodule_hyperparameters)):
            yield from _under(head, [f"{shown_name(name)} = {_short(value)}" for name, value in params.items()])
        yield from _under("callbacks", [shown_name(name) for name in self.callbacks])

    def _position(self) -> str:
        parts = [] if self.epoch is None else [f"epoch {self.epoch}"]
        if self.epoch_batch:
            parts.append(f"{plural(self.epoch_batch, 'batch', 'batches')} into it")
        if self.batch is not None:
            parts.append(f"{plural(self.batch, 'batch', 'batches')} in total")
        return ", ".join([*parts, plural(self.step or 0, "step")])


def inspect(path: str | os.PathLike[str], trust: bool = False) -> Inspection:
    """Return the content of a checkpoint: a file of lightlib or of Lightning, a directory, or a safetensors file.

    No tensor is read, so a large checkpoint costs little. Checksums are not compared; `verify` does that.

    Args:
        path: A local path or a URL.
        trust: Also read Python objects that can only be read by running code that the file names.

    Raises:
        CheckpointError: It is missing, visibly damaged, not a checkpoint, or needs trust.

    Example:
        >>> import torch
        >>> from lightlib.checkpoint import inspect
        >>> torch.save({"state_dict": {"weight": torch.zeros(2, 3)}}, "weights.ckpt")
        >>> inspection = inspect("weights.ckpt")
        >>> inspection.tensors["weight"].shape, inspection.tensors["weight"].dtype, inspection.resumable
        ((2, 3), 'float32', False)
    """
    name = os.fspath(path)
    kind = formats.kind_of(name)
    if kind == "safetensors":
        tensors, metadata, size = safetensors.outline(name)
        noted = {key: int(value) for key, value in metadata.items() if key in safetensors.NOTED and value.isdigit()}
        content: dict[str, Any] = {"state_dict": tensors, **noted}
    elif kind == "directory":
        content, size = formats.load(name), filesystem.size_of(name)
    else:
        content = upgraded(from_determined(archive.load(name, map_location="meta", trust=trust, check=False)))
        size = filesystem.size_of(name)
    try:
        return _inspection(name, kind, size, content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{name!r} is damaged or written by another program: {type(error).__name__}: {error}.",
            expected="a checkpoint that Trainer.save_checkpoint or Lightning wrote.",
            fix="use another checkpoint.",
        ) from error


def _inspection(path: str, kind: str, size: int, content: dict[str, Any]) -> Inspection:
    ours = lightlib_state(content)
    lightning_version = content.get("pytorch-lightning_version")
    setting = ours.get("setting") or {}
    if ours:
        writer, versions = f"lightlib (format {int(ours['format'])})", {"torch": str(ours.get("torch", "?"))}
        where = {name: int(ours["progress"][name]) for name in ("epoch", "epoch_batch", "batch", "step")}
    elif "loops" in content:
        writer, versions = f"Lightning {lightning_version}" if lightning_version else "", {}
        where = {name: n for name, n in lightning.position(content).items() if name != "validated"}
    else:
        writer, versions = "", {}
        where = {"step": int(content["global_step"])} if "global_step" in content else {}
    label = Label.of(ours["label"]) if "label" in ours else None
    states = [*content.get("callbacks", {}), *ours.get("callback_tensors", {})]
    return Inspection(
        path=path,
        kind=kind,
        bytes=size,
        writer=writer,
        label=label,
        **where,
        versions=versions,
        strategy=setting.get("strategy"),
        precision=setting.get("precision"),
        world_size=ours.get("world_size"),
        resumable=all(name in content for name in _TO_RESUME),
        parts=tuple(_part(str(name), part) for name, part in content.items() if _is_state(name, part)),
        left_out=len((content.get(FROZEN) or {}).get("tensors") or ()),
        tensors={str(name): _info(value) for name, value in content["state_dict"].items() if _is_tensor(value)},
        hyperparameters=_mapped(_masked, dict(content.get("hyper_parameters") or {})),
        datamodule_hyperparameters=_mapped(_masked, dict(content.get("datamodule_hyper_parameters") or {})),
        callbacks=tuple(dict.fromkeys(str(name) for name in states)),
    )


def _is_state(name: Any, part: Any) -> bool:
    return isinstance(part, (Mapping, list)) and len(part) > 0 and not str(name).endswith("hyper_parameters")


def _is_tensor(value: Any) -> bool:
    return isinstance(getattr(value, "dtype", None), torch.dtype)


def _info(value: Any) -> TensorInfo:
    shape = tuple(int(size) for size in value.shape)
    return TensorInfo(shape, str(value.dtype).removeprefix("torch."), value.numel() * value.dtype.itemsize)


def _part(name: str, part: Any) -> Part:
    tensors = list(_tensors(part))
    once = {_memory(tensor): tensor.numel() * tensor.dtype.itemsize for tensor in tensors}
    return Part(name, len(tensors), sum(tensor.numel() for tensor in tensors), sum(once.values()))


def _memory(tensor: Any) -> tuple[Any, ...]:
    """Return a key that is the same for tensors that share memory."""
    if not isinstance(tensor, torch.Tensor):
        return (id(tensor),)
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape)  # noqa: SLF001  its identity


def _tensors(value: Any) -> Iterator[Any]:
    if _is_tensor(value):
        yield value
    else:
        for child in children(value):
            yield from _tensors(child)


def _mapped(leaf: Callable[[Any, Any], Any], value: Any, name: Any = "") -> Any:
    """Return nested dicts and lists with `leaf(name, value)` in place of each other value; `name` is its key."""
    if isinstance(value, Mapping):
        return {str(key): _mapped(leaf, part, key) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(leaf, part, name) for part in value]
    return leaf(name, value)


def _masked(name: Any, value: Any) -> Any:
    return MASK if is_secret(name, value) else value


def _json(name: Any, value: Any) -> Any:  # noqa: ARG001  as `_masked`
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)


def _row(part: Part) -> list[str]:
    sizes = plural(part.tensors, "tensor"), plural(part.elements, "number"), size_text(part.bytes)
    return [shown_name(part.name), *(sizes if part.tensors else ("no tensors", "", ""))]


def _columns(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _under(head: str, lines: list[str]) -> Iterator[tuple[str, str]]:
    for k, line in enumerate(lines):
        yield ("" if k else head), line


def _short(value: Any) -> str:
    text = shown_name(repr(value))
    return text if len(text) <= 80 else f"{text[:79]}…"


def shown_name(text: str) -> str:
    r"""Return a text from a file with terminal control characters escaped.

    Example:
        >>> print(shown_name("net\x1b[2J"))
        net\x1b[2J
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in str(text))


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Return a count with its noun: '1 step', '1,200 batches'."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def size_text(count: int) -> str:
    """Return a number of bytes with a unit: '12 bytes', '3.4 MB'."""
    if count < 1000:
        return plural(count, "byte")
    power = 1
    while count >= 999.95 * 1000**power and power < 4:
        power += 1
    return f"{count / 1000**power:.1f} {'kMGT'[power - 1]}B"
