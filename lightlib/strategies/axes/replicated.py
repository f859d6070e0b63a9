"""Optimizers with DTensors and with plain parameters, which all processes of the mesh have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.optim import Optimizer

from lightlib.torch_private import unscale_in_place


def step_together(optimizer: Optimizer) -> Callable[[], None]:
    """Have `optimizer` step all its parameters at once, by hooks around its step; return how to undo that.

    torch refuses lists of both kinds otherwise: those of ``foreach=True``, its default on GPUs, and of ``fused=True``.
    """
    step = ExitStack()
    if not _has_both(optimizer):
        return step.close

    def enter(*_: Any) -> None:
        step.enter_context(implicit_replication())

    before = optimizer.register_step_pre_hook(enter)
    after = optimizer.register_step_post_hook(lambda *_: step.close())

    def undo() -> None:
        before.remove()
        after.remove()
        step.close()  # a step that has failed has not left

    return undo


def unscale(scaler: torch.amp.GradScaler, optimizer: Optimizer, device: torch.device) -> None:
    """Divide the gradients of `optimizer` by the scale, and look for an overflow in those of this process.

    Where it has none, as on a stage of a pipeline with frozen layers only, it has seen no overflow.
    """
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if trained and not _has_both(optimizer):
        scaler.unscale_(optimizer)
        return
    with torch.no_grad():
        local = [_local_gradient(parameter) for parameter in trained] or [_zero(device)]
        unscale_in_place(scaler, optimizer, local)


def _has_both(optimizer: Optimizer) -> bool:
    """Return whether some parameters are DTensors, and some are not."""
    kinds = {isinstance(parameter, DTensor) for group in optimizer.param_groups for parameter in group["params"]}
    return len(kinds) == 2


def _zero(device: torch.device) -> torch.Tensor:
    zero = torch.zeros((), device=device)
    zero.grad = torch.zeros_like(zero)
    return zero


def _local_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Return a tensor with this process's shard of the gradient of `parameter` as its gradient."""
    if not isinstance(parameter.grad, DTensor):
        return parameter
    gradient = parameter.grad.to_local()
    holder = gradient.detach()
    holder.grad = gradient
    return holder
