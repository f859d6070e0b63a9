"""Tensors by parameter name: matches those of a checkpoint with the parameters of this process."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from lightlib.checkpoint.directory.tensors import LazyTensor


def with_parameters(
    module: nn.Module, tensors: Mapping[str, Any], known: Collection[str] = ()
) -> Iterator[tuple[str, Any, nn.Parameter]]:
    """Yield the name, the tensor and the parameter for each tensor of a parameter of this process.

    `tensors` are those of all processes; other processes may have the names that are `known`.

    Raises:
        TypeError: A value is no tensor.
        ValueError: A name is no parameter's on any process, or a shape differs from the parameter's.
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for name, value in tensors.items():
        if name not in parameters:
            if name not in known:
                raise ValueError(f"{name!r} is not a parameter")
            continue
        parameter = parameters[name]
        if not isinstance(value, (Tensor, LazyTensor)):
            raise TypeError(f"{name!r} is of type {type(value).__name__}")
        if value.shape != parameter.shape:
            raise ValueError(f"{name!r} has shape {tuple(value.shape)}, the parameter {tuple(parameter.shape)}")
        yield name, value, parameter
