"""Operations on optimizers: how they take a closure, and their gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from lightlib.torch_private import is_profiled

_ZERO_GRAD = Optimizer.zero_grad  # torch's, also if it is patched later


def parameters_for(factory: Callable[..., Any], module: nn.Module) -> Any:
    """Return the first argument of an optimizer's factory: the module if its class takes it, or the parameters."""
    kind = factory.func if isinstance(factory, partial) else factory
    return module if getattr(kind, "takes_module", False) else module.parameters()


def closure_of(optimizer: Optimizer) -> str | None:
    """Return how `optimizer.step` uses a closure: "needs" it, "takes" it (third-party optimizers), or None.

    Optimizers of torch and lightlib that do not need a closure step the same with or without one. A third-party
    optimizer may evaluate the loss again, or raise without a closure.
    """
    step = inspect.unwrap(type(optimizer).step)
    parameters = [p for p in list(inspect.signature(step).parameters.values())[1:] if p.kind is not p.KEYWORD_ONLY]
    if not parameters or parameters[0].kind is inspect.Parameter.VAR_KEYWORD:
        return None
    if parameters[0].default is inspect.Parameter.empty and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        return "needs"
    return None if step.__module__.split(".")[0] in ("torch", "lightlib") else "takes"


def gradients(optimizers: Sequence[Optimizer]) -> list[torch.Tensor]:
    """Return all gradients that the optimizers will use, each once even if optimizers share parameters."""
    parameters = {id(p): p for o in optimizers for group in o.param_groups for p in group["params"]}
    return [p.grad for p in parameters.values() if p.grad is not None]


def scale_gradients(optimizers: Sequence[Any], factor: Any) -> None:
    """Multiply all gradients that the optimizers will use; an engine's optimizer does it by a method."""
    for optimizer in optimizers:
        if hasattr(optimizer, "scale_gradients"):
            optimizer.scale_gradients(factor)
    for gradient in gradients([optimizer for optimizer in optimizers if not hasattr(optimizer, "scale_gradients")]):
        gradient.mul_(factor)


def zeroing(optimizers: Sequence[Any]) -> Callable[[Any], None]:
    """Return the function that drops the gradients of one of these optimizers.

    torch's `Optimizer.zero_grad` records an event for torch's profiler even when that is off, which takes longer than
    dropping the gradients. It is called only while a profiler runs, or if an optimizer overrides or replaces it.
    """
    is_torchs = (getattr(optimizer.zero_grad, "__func__", None) is _ZERO_GRAD for optimizer in optimizers)
    return _drop_gradients if all(is_torchs) else methodcaller("zero_grad")


def _drop_gradients(optimizer: Optimizer) -> None:
    if is_profiled():
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
