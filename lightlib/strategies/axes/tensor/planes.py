"""Splits in two dimensions: each matrix over the rows and the columns of a mesh of processes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.nn import functional

from lightlib.errors import MisconfigurationException, check_word, wrong_type

MODES = ("1d", "2d")
NAMES = ("tensor_rows", "tensor_columns")
_FULL: tuple[Placement, ...] = (Replicate(), Replicate())
_BY_ROWS: tuple[Placement, ...] = (Shard(-1), Replicate())
_WEIGHTS: dict[str, tuple[Placement, ...]] = {"colwise": (Shard(0), Shard(1)), "rowwise": (Shard(1), Shard(0))}
_BIASES: dict[str, tuple[Placement, ...]] = {"colwise": (Shard(0), Replicate()), "rowwise": _FULL}


def check_mode(mode: str, dims: Any) -> None:
    """Refuse a mode that the axis does not have, and dims that are none.

    Raises:
        MisconfigurationException: A mode with a depth, which is a dimension of the data.
        UnknownNameError: There is no such mode.
        ArgumentTypeError: `dims` is no pair of numbers.
    """
    if mode in ("2.5d", "3d"):
        other = "replicate" if mode == "2.5d" else "shard"
        raise MisconfigurationException(
            f"Tensor(mode={mode!r}): the depth of {mode} splits the batch, and is no dimension of the tensor axis.",
            expected=f"mode='2d' next to {other}={{depth}}.",
            fix=f"MeshStrategy({other}=2, tensor=Tensor(4, mode='2d')), or "
            f"TensorParallelStrategy(4, mode={mode!r}, depth=2)",
        )
    check_word("Tensor", "mode", mode, MODES, fix="leave it out: '1d'.")
    pair = isinstance(dims, (tuple, list)) and len(dims) == 2 and all(type(dim) is int and dim > 1 for dim in dims)
    if dims is not None and not pair:
        raise wrong_type("Tensor", "dims", dims, "two numbers of at least 2: (rows, columns)", "(2, 2)")
    if dims is not None and mode == "1d":
        raise MisconfigurationException(
            f"Tensor(dims={dims!r}) with mode='1d'.", expected="dims with mode='2d'.", fix="Tensor(4, mode='2d')"
        )


def dims_of(size: int, given: tuple[int, int] | None) -> tuple[int, int]:
    """Return (rows, columns) of `size` processes: those given, else as near to a square as possible.

    Raises:
        MisconfigurationException: The numbers do not multiply to `size`, or `size` is prime.

    Example:
        >>> dims_of(8, None)
        (4, 2)
    """
    if given is not None:
        if math.prod(given) != size:
            raise MisconfigurationException(
                f"Tensor(dims={tuple(given)}) makes {math.prod(given)} processes, but tensor={size}.",
                expected=f"two numbers with the product {size}.",
                fix=f"Tensor({math.prod(given)}, mode='2d', dims={tuple(given)})",
            )
        return given
    columns = next(divisor for divisor in range(math.isqrt(size), 0, -1) if size % divisor == 0)
    if columns == 1:
        raise MisconfigurationException(
            f"tensor={size} with mode='2d': {size} processes make no rows and columns.",
            expected="a product of two numbers of at least 2: 4, 6, 8, …",
            fix="Tensor(4, mode='2d'), or mode='1d'",
        )
    return size // columns, columns


def check_layers(module: nn.Module, styles: Mapping[str, Any], columns: int) -> None:
    """Refuse layers that cannot be split in two dimensions.

    Raises:
        MisconfigurationException: Another style than colwise, rowwise and replicate; or sizes that do not divide.
    """
    for name, style in styles.items():
        if style not in (*_WEIGHTS, "replicate"):
            raise MisconfigurationException(
                f"The tensor plan makes {name} {style!r}, which has no form with mode='2d': it would need activations "
                "between layers in shards, which DTensor does not give to plain modules.",
                expected="'colwise', 'rowwise' or 'replicate'.",
                fix="Tensor(…, mode='1d'), or leave the layer out of the plan.",
            )
        reason = "" if style == "replicate" else odd_columns(name, module.get_submodule(name), style, columns)
        if reason:
            raise MisconfigurationException(
                f"tensor with mode='2d': {reason}.",
                expected=f"a multiple of {columns}.",
                fix="other dims, or mode='1d'",
            )


def odd_columns(name: str, layer: nn.Module, style: str, columns: int) -> str:
    """Return why the number of columns does not fit; empty if it does."""
    dimension = "in_features" if style == "colwise" else "out_features"
    width = getattr(layer, dimension)
    return f"{columns} does not divide {dimension}={width} of {name}" if width % columns else ""


def split(layer: nn.Linear, style: str, mesh: DeviceMesh) -> None:
    """Split the matrix of a Linear layer in both dimensions, its outputs (colwise) or inputs over the rows."""
    placements = {"weight": _WEIGHTS[style], "bias": _BIASES[style]}
    for name, parameter in list(layer.named_parameters(recurse=False)):
        shard = distribute_tensor(parameter.detach(), mesh, placements[name], src_data_rank=None)
        layer.register_parameter(name, nn.Parameter(shard, parameter.requires_grad))
    forward = MethodType(_first if style == "colwise" else _second, layer)
    layer.forward = forward  # type: ignore[method-assign]  # a wrapper would change the names


def _first(layer: nn.Linear, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  torch's name
    """Multiply the columns of the input; sum over the columns of the mesh."""
    mesh = _mesh(layer)
    x = DTensor.from_local(input, mesh, _FULL, run_check=False).redistribute(placements=(Replicate(), Shard(-1)))
    return _finished(layer, functional.linear(x, layer.weight), _BY_ROWS)


def _second(layer: nn.Linear, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  torch's name
    """Multiply the shard of the rows; sum over them, and gather the columns."""
    x = DTensor.from_local(input, _mesh(layer), _BY_ROWS, run_check=False)
    return _finished(layer, functional.linear(x, layer.weight), _FULL)


def _finished(layer: nn.Linear, output: Any, placements: tuple[Placement, ...]) -> torch.Tensor:
    output, bias = output.redistribute(placements=placements), vars(layer)["_parameters"]["bias"]
    # under autocast the output is in lower precision, as that of a Linear layer with its bias is
    local: torch.Tensor = (output if bias is None else output + bias.to(output.dtype)).to_local()
    return local


def _mesh(layer: nn.Linear) -> DeviceMesh:
    weight: Any = layer.weight
    mesh: DeviceMesh = weight.device_mesh
    return mesh
