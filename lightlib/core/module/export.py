"""Exports of a module: ONNX, torch.export, and what torch.jit.script needs."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

import torch
from torch import nn

from lightlib import report
from lightlib.errors import MisconfigurationException
from lightlib.tree import to_device

if TYPE_CHECKING:
    from lightlib.core.module.module import Module

__all__ = ["arguments_of", "evaluating", "scriptable", "to_onnx", "to_torch_export"]

_OF_ONNX = ("onnx", "onnxscript", "onnx_ir")


def arguments_of(sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments for `forward` that an example input stands for."""
    if isinstance(sample, Mapping):
        return (), dict(sample)
    return (tuple(sample), {}) if isinstance(sample, tuple) else ((sample,), {})


@contextmanager
def evaluating(module: Module) -> Iterator[None]:
    """Put every submodule into evaluation mode without gradients, and give each its own mode back."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def _refuse_spread(module: Module, name: str) -> None:
    trainer = module._trainer  # noqa: SLF001  without the error where there is none
    if trainer is not None and not trainer.strategy.runs_alone:
        kind = type(module).__name__.removeprefix("FSDP")
        raise MisconfigurationException(
            f"{kind}.{name} was called while the module is spread over processes.",
            expected="a module that is whole in this process.",
            fix=f'trainer.save_checkpoint("model.ckpt") on all processes, then in a program of one process '
            f'{kind}.load_from_checkpoint("model.ckpt").{name}(…).',
        )


def _sample(module: Module, given: Any, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    sample = module.example_input_array if given is None else given
    if sample is None:
        raise MisconfigurationException(
            f"{type(module).__name__}.{name} has no input to trace with.",
            expected="`input_sample`, or `self.example_input_array` set in __init__.",
            fix=f"module.{name}(path, input_sample=torch.randn(1, 28, 28))",
        )
    return arguments_of(to_device(sample, module.device))


def to_onnx(
    module: Module, file_path: str | Path | IO[bytes] | None, input_sample: Any, options: dict[str, Any]
) -> Any:
    """Export `forward` to ONNX, where a file is written on rank zero only; see `Module.to_onnx`."""
    if file_path is None and not options.get("dynamo"):
        raise MisconfigurationException(
            "to_onnx got no file_path.",
            expected="a path, or dynamo=True to get an ONNXProgram back.",
            fix='module.to_onnx("model.onnx")',
        )
    _refuse_spread(module, "to_onnx")
    if file_path is not None and report.rank_zero_only.rank:
        return None
    args, kwargs = _sample(module, input_sample, "to_onnx")
    if kwargs:
        options = {"kwargs": kwargs, **options}
    path = str(file_path) if isinstance(file_path, Path) else file_path
    try:
        with evaluating(module):
            return torch.onnx.export(module, args, path, **options)  # type: ignore[arg-type]
    except ModuleNotFoundError as error:
        if error.name not in _OF_ONNX:
            raise
        raise MisconfigurationException(
            f"{type(module).__name__}.to_onnx needs the package {error.name}, which is not installed.",
            expected="onnx and onnxscript, with which torch writes ONNX.",
            fix="pip install onnx onnxscript",
        ) from error


def to_torch_export(module: Module, file_path: str | Path | None, input_sample: Any, options: dict[str, Any]) -> Any:
    """Export `forward` with torch.export; a file is written on rank zero only; see `Module.to_torch_export`."""
    _refuse_spread(module, "to_torch_export")
    args, kwargs = _sample(module, input_sample, "to_torch_export")
    with evaluating(module):
        program = torch.export.export(module, args, kwargs, **options)
    if file_path is not None and not report.rank_zero_only.rank:
        torch.export.save(program, str(file_path))
    return program


def scriptable(module: Module, kind: type) -> Any:
    """Return a shallow copy of `module` that torch.jit.script can read; parameters and buffers are shared.

    torch.jit.script asks each module of `kind` for its `trainer`, which must not raise, and takes annotations for types
    that it has to know. It writes what it prepares into the modules that hold it, so these are copied too.
    """
    known: dict[int, Any] = {}

    def copied(part: Any) -> Any:
        if part is None or isinstance(part, torch.jit.ScriptModule):
            return part
        if id(part) not in known:
            inside = {name: copied(one) for name, one in part._modules.items()}  # noqa: SLF001  children, None too
            known[id(part)] = part
            if isinstance(part, kind) or any(inside[name] is not one for name, one in part._modules.items()):  # noqa: SLF001  as above
                known[id(part)] = twin = copy.copy(part)
                twin.__dict__["_modules"] = inside
                if isinstance(part, kind):
                    twin.__dict__.update(_trainer=SimpleNamespace(), __annotations__=_annotations(twin, kind))
        return known[id(part)]

    return copied(module)


def _annotations(module: nn.Module, kind: type) -> dict[str, Any]:
    """Return the annotations of the user's classes, with one that says nothing: without any, ours would be read."""
    users = takewhile(lambda one: one is not kind, type(module).__mro__)
    own = next((found for one in users if (found := inspect.get_annotations(one))), {})
    return {**own, "forward": nn.Module.__annotations__["forward"]}
