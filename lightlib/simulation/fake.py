"""Copies of modules and batches: tensors with shapes and dtypes, but without values and memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from lightlib.errors import MisconfigurationException
from lightlib.tree import map_tensors, tensors_in


def module_without_values(module: nn.Module) -> Any:
    """Return a copy of `module`; its tensors are made by the present context, on the CPU.

    Raises:
        MisconfigurationException: The module cannot be copied, or has lazy layers.
    """
    tensors = [*module.parameters(), *module.buffers()]
    for part in module.modules():
        tensors += tensors_in([value for value in vars(part).values() if not isinstance(value, nn.Module)])
    if any(isinstance(tensor, UninitializedParameter) for tensor in tensors):
        raise MisconfigurationException(
            f"{type(module).__name__} has lazy layers, whose shapes nothing knows before a batch.",
            expected="parameters with shapes.",
            fix="run one batch before: module(batch).",
        )
    copies: dict[int, Any] = {id(tensor): _without_values(tensor) for tensor in tensors}
    try:
        copied = copy.deepcopy(module, copies)
    except Exception as error:
        raise MisconfigurationException(
            f"{type(module).__name__} cannot be copied: {type(error).__name__}: {error}",
            expected="a module that copy.deepcopy copies: a plan never changes the one that it gets.",
            fix="open files and connections in `setup`.",
        ) from error
    return copied.train()


def batch_without_values(batch: Any, size: int | None = None) -> Any:
    """Return a copy of `batch`, with another number of samples if `size` is given."""
    present = samples_of(batch)

    def resized(tensor: Tensor) -> Tensor:
        shape = list(tensor.shape)
        if size is not None and shape and shape[0] == present:
            shape[0] = size
        return torch.empty(shape, dtype=tensor.dtype)

    if size is not None and isinstance(batch, list) and batch and not isinstance(batch[0], Tensor):
        batch = [batch[index % len(batch)] for index in range(size)]  # a list of samples
        return map_tensors(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype), batch)
    return map_tensors(resized, batch)


def samples_of(batch: Any) -> int | None:
    """Return the number of samples of a batch: the first dimension of its first tensor that has one."""
    if isinstance(batch, list) and batch and not isinstance(batch[0], Tensor):
        return len(batch)
    return next((int(tensor.shape[0]) for tensor in tensors_in([batch]) if tensor.ndim), None)


def _without_values(tensor: Tensor) -> Tensor:
    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty.requires_grad_(tensor.requires_grad)


@contextmanager
def moved_by_assignment() -> Iterator[None]:
    """Let `module.to(…)` and its relatives assign new tensors: torch would swap them, which is not possible here."""
    with mock.patch.object(nn.Module, "_apply", _apply):
        yield


def _apply(module: nn.Module, function: Any, recurse: bool = True) -> nn.Module:
    done: dict[int, Tensor] = {}
    for part in module.modules() if recurse else [module]:
        for tensors in (part._parameters, part._buffers):  # noqa: SLF001  as torch's own method does
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = _applied(tensor, function, done)
    return module


def _applied(tensor: Tensor, function: Any, done: dict[int, Tensor]) -> Any:
    if id(tensor) not in done:
        with torch.no_grad():
            applied = function(tensor)
        same = applied.dtype == tensor.dtype and applied.device == tensor.device
        if not same and isinstance(tensor, nn.Parameter):
            applied = nn.Parameter(applied, tensor.requires_grad)
        done[id(tensor)] = tensor if same else applied
    return done[id(tensor)]
