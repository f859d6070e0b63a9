"""OptimizerInBackward: steps each parameter within the backward pass and frees its gradient at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightlib.callbacks.callback import Callback
from lightlib.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
from lightlib.errors import MisconfigurationException

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

_HOOKS = ("on_after_backward", "on_before_optimizer_step", "optimizer_step", "optimizer_zero_grad")


class OptimizerInBackward(Callback):
    """Steps each parameter within the backward pass, as soon as its gradient is complete, and frees the gradient.

    So the gradients of all layers never exist at the same time. The numbers stay the same. After the backward pass no
    parameter has a gradient: `on_before_optimizer_step` of callbacks, and those that measure gradients, see none.

    Raises:
        MisconfigurationException: When training starts: gradients are clipped, accumulated or scaled, the module
            optimizes by hand or has a hook between the backward pass and the step, there are several processes, or an
            optimizer steps all parameters at once.

    Example:
        >>> OptimizerInBackward()
        OptimizerInBackward()
    """

    def __init__(self) -> None:
        super().__init__()
        self._hooks: list[Any] = []

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        reason = _reason(trainer, pl_module)
        if reason:
            raise MisconfigurationException(
                f"OptimizerInBackward steps a parameter before the other gradients exist, but {reason}.",
                expected="one device, automatic optimization, and steps of one batch without clipping or loss scaling.",
                fix="leave out OptimizerInBackward, or that.",
            )
        for optimizer in trainer.optimizers:
            for index, group in enumerate(optimizer.param_groups):
                step = partial(_step, optimizer, index)
                trained = [parameter for parameter in group["params"] if parameter.requires_grad]
                self._hooks += [parameter.register_post_accumulate_grad_hook(step) for parameter in trained]

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._remove()

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        self._remove()

    def _remove(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()


def _step(optimizer: torch.optim.Optimizer, index: int, parameter: Tensor) -> None:
    with _alone(optimizer, index, parameter):
        optimizer.step()
    parameter.grad = None


@contextmanager
def _alone(optimizer: torch.optim.Optimizer, index: int, parameter: Tensor) -> Iterator[None]:
    """Leave one parameter in the groups for a while, so that a step does not look at all of them."""
    full = [group["params"] for group in optimizer.param_groups]
    for i, group in enumerate(optimizer.param_groups):
        group["params"] = [parameter] if i == index else []
    try:
        yield
    finally:
        for group, parameters in zip(optimizer.param_groups, full, strict=True):
            group["params"] = parameters


def _reason(trainer: Trainer, module: Module) -> str:
    """Return why the steps need all gradients; empty if they do not."""
    run = trainer.run
    assert run is not None
    optimization = run.optimization
    if not module.automatic_optimization:
        return "automatic_optimization=False: training_step calls the optimizer"
    if optimization.clip is not None:
        return f"gradients are clipped (gradient_clip_val={trainer.gradient_clip_val})"
    if any(isinstance(callback, GradientAccumulationScheduler) for callback in trainer.callbacks):
        return "a GradientAccumulationScheduler accumulates them"
    if trainer.strategy.reduces_after_batch:
        return "a batch is trained in micro-batches, and repeated if they do not fit"
    if trainer.accumulate_grad_batches != 1:
        return f"accumulate_grad_batches={trainer.accumulate_grad_batches}"
    if optimization.scaler is not None:
        return "the loss is scaled, and an overflow must skip the step of all parameters"
    if trainer.world_size > 1:
        return f"there are {trainer.world_size} processes, and gradients are reduced after they are complete"
    for optimizer in optimization.optimizers:
        package = type(optimizer).__module__.partition(".")[0]
        if package not in ("torch", "lightlib") or isinstance(optimizer, torch.optim.LBFGS):
            return f"{type(optimizer).__name__} steps all parameters at once, or counts its steps"
    for name in _HOOKS:
        if name in vars(module) or getattr(type(module), name) is not getattr(run.hooks.module_base, name):
            return f"{type(module).__name__}.{name} expects all gradients, or decides on the step"
    return ""
