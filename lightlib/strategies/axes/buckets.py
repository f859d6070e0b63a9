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
from lightlib.torch_private import has_gradient_hooks, set_gradient_sync, shadowed


class BucketOrder:
    """Makes a resumed run reduce its gradients in the same buckets as the run that it continues.

    torch arranges the buckets again after the first reduced backward, in the order in which gradients arrived. A
    backward of zeros in the saved order makes a new process do the same: docs/decisions/0022 has the full argument.
    """

    def __init__(self, ddp: DistributedDataParallel, module: nn.Module) -> None:
        self._names: list[str] | None = None
        self._arrived: dict[str, None] = {}
        self._handles: list[Any] = []
        self._ddp = ddp
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}

    @property
    def names(self) -> list[str] | None:
        """The parameters in the order in which their gradients arrived; None before the first backward."""
        if self._names is None and self._arrived:
            self._end_notes()
        return self._names

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Take note of the order in which gradients arrive inside; afterwards, if backward is called only then."""
        if not self._handles:
            for name, parameter in self._parameters.items():
                hook = parameter.register_post_accumulate_grad_hook(partial(self._note, name))  # type: ignore[no-untyped-call]
                self._handles.append(hook)
        try:
            yield
        except BaseException:
            self._end_notes()
            raise
        if self._arrived:
            self._end_notes()

    def _note(self, name: str, _: Tensor) -> None:
        self._arrived.setdefault(name)

    def _end_notes(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._names, self._arrived, self._handles = list(self._arrived) or None, {}, []

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
        self._names = list(names)


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
