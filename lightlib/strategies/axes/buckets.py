"""Bucket order: in which gradients arrive, and by which DistributedDataParallel arranges its buckets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lightlib import report
from lightlib.torch_private import has_gradient_hooks, set_gradient_sync, shadowed


class BucketOrder:
    """Makes a resumed run reduce its gradients in the same buckets as the run that it continues.

    torch arranges the buckets again after the first reduced backward, in the order in which gradients arrived. A
    backward of zeros in the saved order makes a new process do the same: docs/decisions/0022 has the full argument.

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

        with ExitStack() as hooks:
            for name, parameter in self._parameters.items():
                hook = parameter.register_post_accumulate_grad_hook(partial(note, name))  # type: ignore[no-untyped-call]
                hooks.callback(hook.remove)
            yield
        self.names = list(arrived) or None

    def rehearse(self, names: Sequence[str]) -> None:
        """Give torch the order of the run to resume; every process calls it, before its first batch."""
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
        with shadowed(self._ddp.module, {"step": partial(_chain, ordered)}):
            set_gradient_sync(self._ddp, True)
            self._ddp().backward()
        self._ddp.zero_grad()
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
        context.save_for_backward(parameter)
        return number.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, torch.zeros_like(*context.saved_tensors)
