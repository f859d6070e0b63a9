"""Gradients that wait for an optimizer step when a checkpoint is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from lightlib.callbacks.summary.training_memory import local_part
from lightlib.core.module.overrides import overrides

if TYPE_CHECKING:
    from lightlib.core.run.run import Run

_ZERO = 0  # in place of a gradient that is zero


def waiting_gradients(run: Run) -> dict[str, Any]:
    """Return this rank's gradients that a later step will use, by parameter; 0 in place of one that is zero.

    Within an accumulation window these are all. Where the module clears gradients itself, they are those of the
    optimizers that did not step in the last batch: a step uses up its gradients.
    """
    if run.window_open():
        parameters: Iterable[nn.Parameter] = run.module.parameters()
    elif run.module.automatic_optimization and not overrides(run.module, run.hooks.module_base, "optimizer_zero_grad"):
        return {}
    else:
        window = run.optimization.window
        done = window.steppers if window.stepped else ()
        waiting = [optimizer for optimizer in run.optimization.optimizers if id(optimizer) not in done]
        parameters = (parameter for each in waiting for group in each.param_groups for parameter in group["params"])
    ids = {id(parameter) for parameter in parameters if parameter.grad is not None}
    gradients = {
        name: local_part(parameter.grad).detach()
        for name, parameter in run.module.named_parameters()
        if id(parameter) in ids
    }
    return {name: gradient if _has_values(gradient) else _ZERO for name, gradient in gradients.items()}


def restore_gradients(run: Run, gradients: Mapping[str, Any]) -> None:
    """Put the gradients of this rank's checkpoint in place."""
    parameters = dict(run.module.named_parameters())
    for name, saved in gradients.items():
        parameter = parameters[name]
        if isinstance(saved, Tensor) and saved.is_sparse:  # of an nn.Embedding(…, sparse=True), which stays sparse
            parameter.grad = saved.to(parameter.device)
            continue
        gradient = parameter.detach().clone()
        local: Tensor = local_part(gradient)
        local.zero_() if isinstance(saved, int) else local.copy_(saved)
        parameter.grad = gradient


def _has_values(gradient: Tensor) -> bool:
    return gradient.is_sparse or bool(gradient.any())
