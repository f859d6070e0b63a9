"""Batches in Lightning's order of calls, if a strategy or precision overrides one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, enable_grad

from lightlib.core.optimization.optimizers import closure_of
from lightlib.core.optimization.window import closure_called_again, unusable
from lightlib.core.optimization.wrapper import LightningOptimizer
from lightlib.core.run import loop
from lightlib.core.run.optimization import Optimization
from lightlib_lightning.plugins import precision as precisions
from lightlib_lightning.plugins.overriding import overridden

__all__ = ["BACKWARD", "STEPPING", "change_calls"]

BACKWARD = ("backward", "pre_backward", "post_backward")
STEPPING = ("optimizer_step",)


def change_calls(strategy: Any, optimization: Optimization) -> None:
    """Replace those calls of the loop that the user's strategy or precision overrides; the rest stays."""
    precision = strategy.precision
    by_precision = overridden(precision, precisions.BACKWARD) if isinstance(precision, precisions.Precision) else []
    backward, manual = optimization.backward, optimization.manual_backward
    if by_precision or overridden(strategy, BACKWARD):
        backward = partial(_backward, strategy, optimization)
        manual = partial(_manual_backward, strategy, optimization)
    steps = bool(overridden(strategy, STEPPING))
    if isinstance(precision, precisions.Precision):
        steps = steps or bool(overridden(precision, precisions.STEPPING))
    run_batch, step_method = optimization.run_batch, optimization.step_method
    handles, removable = optimization.handles, optimization.removable
    if steps:
        handles = [
            LightningOptimizer(
                optimizer, partial(_step, strategy), optimization.module.toggled_optimizer, optimization.complete
            )
            for optimizer in optimization.optimizers
        ]
        if run_batch is loop.automatic:
            removable = [*removable, *map(partial(_noting, optimization), optimization.optimizers)]
        if run_batch is not loop.manual:
            run_batch, step_method = _batch, step_method or _step_of_handle
    optimization.call(run_batch, backward, manual, step_method, handles, removable)


def _noting(optimization: Optimization, optimizer: Any) -> Any:
    return optimizer.register_step_post_hook(optimization.window.note_step)


def _backward(strategy: Any, optimization: Optimization, output: Any, parts: int = 1) -> None:
    """Differentiate the output of a step by the strategy's `backward`."""
    loss = optimization.window.loss_of(output, parts)
    if loss is not None:
        optimizer = optimization.optimizers[0] if optimization.optimizers else None
        strategy.backward(loss, optimizer)


def _manual_backward(strategy: Any, optimization: Optimization, loss: Any, *args: Any, **kwargs: Any) -> None:
    if not isinstance(loss, Tensor) or not loss.requires_grad:
        raise unusable(loss, "manual_backward got")
    optimization.window.loss = loss.detach()
    strategy.backward(loss, None, *args, **kwargs)


def _step(strategy: Any, optimizer: Any, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
    """Run `self.optimizers().step()`, or the step that the loop takes, by the strategy's `optimizer_step`."""
    return strategy.optimizer_step(optimizer, closure or _nothing, **kwargs)


def _nothing() -> None:
    """Stand for the closure of a step without one."""


def _step_of_handle(epoch: int, batch_idx: int, handle: Any, closure: Callable[[], Any]) -> None:  # noqa: ARG001  the hook's signature
    handle.step(closure)


def _batch(run: Any, batch: Any, i: int, steps_now: bool) -> Any:
    """Run one batch; when its window closes, each optimizer steps by the strategy, which calls the closure."""
    optimization = run.optimization
    window = optimization.window
    outputs: list[Any] = []

    @enable_grad()
    def forward_backward() -> Any:
        if run.plan.window_starts(run.progress) or not window.planned:
            loop.open_window(run)
        elif outputs:
            raise closure_called_again(run.plan.accumulate)
        outputs.append(run.strategy.forward_backward(batch, i, optimization.backward, steps_now))
        if steps_now and window.taken:
            loop.close_window(optimization)
        if any(map(closure_of, optimization.optimizers)):  # it reads the loss, so all processes get the same
            return optimization.loss_of_all()
        return None if window.value is None else window.value / window.planned

    if not steps_now:
        forward_backward()
        return outputs[-1]
    owner: list[Any] = []
    for handle in optimization.handles:

        def once(handle: Any = handle) -> Any:
            owner[:] = owner or [handle]
            return forward_backward() if owner[0] is handle else window.value

        optimization.step_method(run.progress.epoch, i, handle, once)
    if not outputs:  # an override may skip the batch
        return None
    if optimization.scaler is not None and window.taken:
        optimization.scaler.update()
    window.stepped = window.stepped and bool(window.taken)
    if window.stepped:
        optimization.schedules.step_batch(run.progress)
    return outputs[-1]
