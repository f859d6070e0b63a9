"""Bucket order: in which gradients arrive, and by which DistributedDataParallel arranges its buckets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lightlib import report
from lightlib.torch_private import has_gradient_hooks, set_gradient_sync

__all__ = ["BucketOrder"]


class BucketOrder:
    """Makes a resumed run reduce its gradients in the same buckets as the run that it continues.

    torch arranges the buckets again after the first reduced backward, in the order in which the gradients of
    rank 0 arrived (https://docs.pytorch.org/docs/stable/notes/ddp.html). The place of a gradient in its bucket decides
    in which order three or more processes add it up, and so its last bits. A process that has just been started would
    have torch's first arrangement once more; a backward of zeros in the order of then gives it the second.

    Args:
        ddp: Not used yet.
        module: Whose parameters it has, by their names.

    Attributes:
        names: Of the parameters, in the order in which their gradients arrived; None before the first backward.
    """

    def __init__(self, ddp: DistributedDataParallel, module: nn.Module) -> None:
        self.names: list[str] | None = None
        self._ddp = ddp
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Take note of the order in which gradients arrive inside."""
        arrived: dict[str, None] = {}

        def note(name: str, _: Tensor) -> None:
            arrived.setdefault(name)

        handles: list[Any] = []
        for name, parameter in self._parameters.items():
            hook = parameter.register_post_accumulate_grad_hook(partial(note, name))  # type: ignore[no-untyped-call]
            handles.append(hook)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        self.names = list(arrived) or None

    def rehearse(self, names: Sequence[str]) -> None:
        """Give torch the order of the resumed run; every process calls it, before its first batch.

        Args:
            names: What `names` was in that run.
        """
        if self.names is not None or set(names) != set(self._parameters):
            return
        ordered = [self._parameters[name] for name in names]
        if any(has_gradient_hooks(parameter) for parameter in ordered):
            report.warn(
                "Parameters have gradient hooks of their own, which a backward of zeros would call: the buckets of "
                "DistributedDataParallel are arranged from the beginning, and sums over processes may differ from "
                "those of the saved run in their last bits. Register the hooks in on_train_start to avoid it."
            )
            return
        wrapped, ddp = self._ddp.module.__dict__, self._ddp
        step = wrapped.get("step")
        wrapped["step"] = partial(_chain, ordered)
        try:
            set_gradient_sync(ddp, True)
            ddp().backward()
        finally:
            wrapped["step"] = step
            for parameter in ordered:
                parameter.grad = None  # where torch keeps it
        self.names = list(names)


def _chain(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return a 0 that is differentiated to gradients of 0, parameter by parameter."""
    end = torch.zeros((), device=parameters[0].device, requires_grad=True)
    for parameter in reversed(parameters):
        end = _Link.apply(end, parameter)  # type: ignore[no-untyped-call]
    return end


class _Link(torch.autograd.Function):
    """Passes on a number; the gradient of the parameter is 0, and there before those of earlier links."""

    @staticmethod
    def forward(context: Any, number: Tensor, parameter: Tensor) -> Tensor:
        context.parameter = parameter
        return number.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, torch.zeros_like(context.parameter)
