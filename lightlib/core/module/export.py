"""Exports of a module: ONNX, torch.export, and support for torch.jit.script."""

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

from lightlib import optional, report
from lightlib.errors import MisconfigurationException
from lightlib.tree import to_device

if TYPE_CHECKING:
    from lightlib.core.module.module import Module

_OF_ONNX = ("onnx", "onnxscript", "onnx_ir")


def arguments_of(sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments that an example input gives `forward`."""
    if isinstance(sample, Mapping):
        return (), dict(sample)
    return (tuple(sample), {}) if isinstance(sample, tuple) else ((sample,), {})


@contextmanager
def evaluating(module: Module) -> Iterator[None]:
    """Put every submodule into evaluation mode, without gradients, and restore each mode afterwards."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        set_modes(modes)


def set_modes(modes: Mapping[nn.Module, bool]) -> None:
    """Put each of these modules, and not those within it, into training mode (True) or evaluation mode."""
    for part, mode in modes.items():
        part.training = mode


def _refuse_sharded(module: Module, name: str) -> None:
    trainer = module._trainer  # noqa: SLF001  the property raises without a Trainer
    if trainer is not None and not trainer.strategy.runs_alone:
        kind = type(module).__name__.removeprefix("FSDP")
        raise MisconfigurationException(
            f"{kind}.{name} was called while the module is sharded over processes.",
            expected="a module that is complete in this process.",
            fix=f'trainer.save_checkpoint("model.ckpt") on all processes, then in a program with one process '
            f'{kind}.load_from_checkpoint("model.ckpt").{name}(…).',
        )


def _sample(
    module: Module, example: Any, name: str, argument: str = "input_sample"
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    sample = module.example_input_array if example is None else example
    if sample is None:
        raise MisconfigurationException(
            f"{type(module).__name__}.{name} has no input to trace with.",
            expected=f"`{argument}`, or `self.example_input_array` set in __init__.",
            fix=f"module.{name}(path, {argument}=torch.randn(1, 28, 28))",
        )
    return arguments_of(to_device(sample, module.device))


def to_onnx(
    module: Module, file_path: str | Path | IO[bytes] | None, input_sample: Any, options: dict[str, Any]
) -> Any:
    """Export `forward` to ONNX; a file is written on rank zero only; see `Module.to_onnx`."""
    if file_path is None and not options.get("dynamo"):
        raise MisconfigurationException(
            "to_onnx got no file_path.",
            expected="a path, or dynamo=True to get an ONNXProgram back.",
            fix='module.to_onnx("model.onnx")',
        )
    _refuse_sharded(module, "to_onnx")
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
        raise optional.missing(error.name, f"{type(module).__name__}.to_onnx", error=error) from error


def to_torch_export(module: Module, file_path: str | Path | None, input_sample: Any, options: dict[str, Any]) -> Any:
    """Export `forward` with torch.export; a file is written on rank zero only; see `Module.to_torch_export`."""
    _refuse_sharded(module, "to_torch_export")
    args, kwargs = _sample(module, input_sample, "to_torch_export")
    with evaluating(module):
        program = torch.export.export(module, args, kwargs, **options)
    if file_path is not None and not report.rank_zero_only.rank:
        torch.export.save(program, str(file_path))
    return program


def to_torchscript(
    module: Module, file_path: str | Path | None, method: str | None, example_inputs: Any, options: dict[str, Any]
) -> Any:
    """Compile `forward` with TorchScript; a file is written on rank zero only; see `Module.to_torchscript`."""
    if method not in ("script", "trace"):
        raise MisconfigurationException(
            f"to_torchscript(method={method!r}): there is no such method.",
            expected="'script', which reads the code, or 'trace', which runs it.",
            fix='module.to_torchscript(method="trace", example_inputs=torch.randn(1, 28, 28))',
        )
    _refuse_sharded(module, "to_torchscript")
    with evaluating(module):
        if method == "script":
            script = torch.jit.script(module, **options)
        else:
            args, kwargs = _sample(module, example_inputs, "to_torchscript", "example_inputs")
            twin = scriptable(module, type(module))
            script = torch.jit.trace(  # type: ignore[no-untyped-call]
                twin, args or None, example_kwarg_inputs=kwargs or None, **options
            )
    if file_path is not None and not report.rank_zero_only.rank:
        torch.jit.save(script, str(file_path))
    return script


def to_tensorrt(
    module: Module,
    file_path: Any,
    input_sample: Any,
    ir: str,
    saving: dict[str, Any],
    default_device: str | torch.device,
    options: dict[str, Any],
) -> Any:
    """Compile `forward` with TensorRT; a file is written on rank zero only; see `Module.to_tensorrt`."""
    torch_tensorrt = optional.load("torch_tensorrt", f"{type(module).__name__}.to_tensorrt")
    if ir == "ts" and saving["output_format"] != "torchscript":
        raise MisconfigurationException(
            f"to_tensorrt(ir='ts', output_format={saving['output_format']!r}): TorchScript has one format.",
            expected="output_format='torchscript' with ir='ts'.",
            fix="module.to_tensorrt(path, ir='ts', output_format='torchscript')",
        )
    device, there = module.device, torch.device(default_device)
    if device.type != "cuda" and there.type != "cuda":
        raise MisconfigurationException(
            f"to_tensorrt: the module is on {device}, and default_device={str(there)!r}.",
            expected="a CUDA device: TensorRT compiles on it.",
            fix="module.to_tensorrt(path, default_device='cuda')",
        )
    _refuse_sharded(module, "to_tensorrt")
    try:
        module.to(device if device.type == "cuda" else there)
        args, kwargs = _sample(module, input_sample, "to_tensorrt")
        with evaluating(module):
            compiled = torch_tensorrt.compile(module, ir=ir, inputs=[*args, *kwargs.values()], **options)
    finally:
        module.to(device)
    if file_path is not None and not report.rank_zero_only.rank:
        if ir == "ts":
            torch.jit.save(compiled, file_path)
        else:
            torch_tensorrt.save(compiled, file_path, inputs=[*args, *kwargs.values()], **saving)
    return compiled


def scriptable(module: Module, kind: type) -> Any:
    """Return a shallow copy of `module` that torch.jit.script can read; parameters and buffers are shared.

    torch.jit.script reads `trainer` of each module of `kind`, which must not raise, and tries to resolve annotations as
    types. It also writes prepared submodules into their parents, so these are copied too.
    """
    copies: dict[int, Any] = {}

    def copied(part: Any) -> Any:
        if part is None or isinstance(part, torch.jit.ScriptModule):
            return part
        if id(part) not in copies:
            children = part._modules  # noqa: SLF001  also those that are None
            new_children = {name: copied(child) for name, child in children.items()}
            copies[id(part)] = part
            if isinstance(part, kind) or any(new_children[name] is not child for name, child in children.items()):
                copies[id(part)] = twin = copy.copy(part)
                twin.__dict__["_modules"] = new_children
                if isinstance(part, kind):
                    twin.__dict__.update(_trainer=SimpleNamespace(), __annotations__=_annotations(twin, kind))
        return copies[id(part)]

    return copied(module)


def _annotations(module: nn.Module, kind: type) -> dict[str, Any]:
    """Return the annotations of the user's classes and a harmless one, since without any torch would read ours."""
    user_classes = takewhile(lambda cls: cls is not kind, type(module).__mro__)
    annotations = next((present for cls in user_classes if (present := inspect.get_annotations(cls))), {})
    return {**annotations, "forward": nn.Module.__annotations__["forward"]}
