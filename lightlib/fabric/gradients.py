"""Gradients: backward and clipping of a Fabric, on any strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_

from lightlib.errors import ArgumentTypeError, MisconfigurationException, owned_by, shown, wrong_type
from lightlib.fabric.placement import Placement
from lightlib.fabric.refusals import OWNER, needs_model, without_graph
from lightlib.fabric.wrapped import FabricModule, FabricOptimizer
from lightlib.precision.precision import Precision
from lightlib.precision.scaler import Scaler
from lightlib.strategies.strategy import Strategy


def backward(
    placements: Sequence[Placement],
    scaler: Scaler | None,
    tensor: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    placement: Placement | None,
) -> None:
    """Differentiate `tensor`, by the engine of a module if it has one; see `Fabric.backward`."""
    error = without_graph(tensor, bool(args) or "gradient" in kwargs)
    if error is not None:
        raise error
    if placement is not None:
        by = placement.by
    elif len(placements) == 1:
        by = placements[0].by
    else:
        by = next((placement.by for placement in placements if placement.by is not None), None)
        if by is not None:
            raise needs_model(len(placements), placements[0].strategy)
    if scaler is not None:
        tensor = scaler.scale(tensor)
    (tensor.backward if by is None else _engines(by, tensor))(*args, **kwargs)


def _engines(by: Any, tensor: Tensor) -> Any:
    def run(*args: Any, **kwargs: Any) -> None:
        if args or kwargs:
            raise MisconfigurationException(
                f"fabric.backward got further arguments ({', '.join(['…'] * len(args) + list(kwargs))}), and the "
                "strategy's engine runs the backward pass.",
                expected="the loss alone.",
                fix="fabric.backward(loss), or strategy='fsdp'.",
            )
        by(tensor)

    return run


@dataclass(frozen=True)
class Limits:
    """The arguments of `Fabric.clip_gradients`."""

    clip_val: float | None
    max_norm: float | None
    norm_type: float
    error_if_nonfinite: bool

    def __post_init__(self) -> None:
        if (self.clip_val is None) == (self.max_norm is None):
            raise MisconfigurationException(
                f"fabric.clip_gradients got clip_val={self.clip_val} and max_norm={self.max_norm}.",
                expected="exactly one of the two.",
                fix="fabric.clip_gradients(model, optimizer, max_norm=1.0)",
            )
        value = self.max_norm if self.clip_val is None else self.clip_val
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            name = "max_norm" if self.clip_val is None else "clip_val"
            raise wrong_type("fabric.clip_gradients", name, value, "a number", 1.0)


def clip(scaler: Scaler | None, strategy: Strategy, inner: Any, limits: Limits) -> Tensor | None:
    """Clip the gradients of the optimizer `inner`, which the strategy steps; see `Fabric.clip_gradients`."""
    with owned_by(OWNER):
        if scaler is not None:
            scaler.unscale(inner)
        if limits.clip_val is not None:
            strategy.clip_gradients(inner, limits.clip_val, "value")
            return None
        assert limits.max_norm is not None, "one of the limits is given"
        if limits.norm_type == 2.0:
            norm = strategy.clip_gradients(inner, limits.max_norm, "norm")
        else:
            norm = clip_grad_norm_(_unsharded(inner, limits.norm_type), limits.max_norm, limits.norm_type)
    assert norm is not None, "clipping by norm returns the norm"
    skips_steps = scaler is not None or hasattr(inner, "engine")  # an engine's norm is known after its step
    if limits.error_if_nonfinite and not skips_steps:
        _refuse_nonfinite(norm, limits.norm_type)
    return norm


def wrapped_optimizer(optimizer: Any) -> FabricOptimizer:
    """Return an optimizer that is wrapped.

    Raises:
        ArgumentTypeError: It is not.
    """
    if type(optimizer) is not FabricOptimizer:
        expected = "an optimizer that fabric.setup or fabric.setup_optimizers returned"
        fix = "model, optimizer = fabric.setup(model, optimizer)"
        raise wrong_type("fabric.clip_gradients", "optimizer", optimizer, expected, fix=fix)
    return optimizer


def _refuse_nonfinite(norm: Tensor, norm_type: float) -> None:
    if not bool(norm.isfinite()):
        raise RuntimeError(
            f"The gradients have the norm {float(norm)} (of order {norm_type}).\n  Expected: a finite norm.\n"
            "  Fix: look for the first loss that is infinite or NaN; error_if_nonfinite=False continues anyway."
        )


def _unsharded(optimizer: Any, norm_type: float) -> list[Tensor]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(isinstance(parameter, DTensor) for parameter in parameters) or hasattr(optimizer, "engine"):
        raise MisconfigurationException(
            f"fabric.clip_gradients got norm_type={norm_type}, and the parameters are sharded over processes.",
            expected="norm_type=2.0, which is computed over all shards.",
            fix="leave norm_type out, or clip_val=… clips each gradient.",
        )
    return parameters


def placement_of(call: str, module: Any) -> Placement:
    """Return the placement of a wrapped module.

    Raises:
        ArgumentTypeError: It is not wrapped.
    """
    if not isinstance(module, FabricModule):
        raise ArgumentTypeError(
            f"fabric.{call} got {shown(module) if not isinstance(module, torch.nn.Module) else type(module).__name__}.",
            expected="a module that fabric.setup or fabric.setup_module returned.",
            fix="model = fabric.setup(model)",
        )
    return vars(module)["_placement"]  # type: ignore[no-any-return]


def tensor_context(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """Return a context that creates tensors on `device` and in the dtype of `precision`."""
    stack = ExitStack()
    stack.enter_context(device)
    stack.enter_context(precision.init_context())
    return stack
