"""SimulatedReplicas: memory and messages of DistributedDataParallel, which makes buckets in C++."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn

_MEGABYTE = 2**20
_FIRST = 1.0  # megabytes of the first bucket, which is sent while backward has just begun


class SimulatedReplicas(nn.Module):
    """Takes the place of DistributedDataParallel, with the same arguments.

    Gradients live in buckets that exist from the beginning (`gradient_as_bucket_view`), or are copied into them. A
    bucket is reduced when all of its gradients are there:
    https://docs.pytorch.org/docs/stable/notes/ddp.html.

    Attributes:
        buckets: The memory of all buckets.
        require_backward_grad_sync: Whether the next backward reduces gradients; set from outside.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Any = None,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        gradient_as_bucket_view: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.module, self.require_backward_grad_sync = module, True
        self._group, self._as_view = process_group, gradient_as_bucket_view
        sends = options.get("forward_sync_buffers", options.get("broadcast_buffers", True))
        self._sent = [*module.buffers()] if sends else []
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        parts = _parts(trained[::-1], (bucket_cap_mb or 25) * _MEGABYTE)
        self.buckets = [part[0].new_empty(sum(p.numel() for p in part), dtype=part[0].dtype) for part in parts]
        self._waiting = [len(part) for part in parts]
        self._missing = list(self._waiting)
        for index, part in enumerate(parts):
            views = torch.split(self.buckets[index].detach(), [parameter.numel() for parameter in part])
            for parameter, view in zip(part, views, strict=True):
                shaped = view.view_as(parameter)
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    lambda parameter, index=index, view=shaped: self._arrived(parameter, index, view)
                )

    def forward(self, *args: Any) -> Any:
        for buffer in self._sent:
            distributed.broadcast(buffer, group=self._group, group_src=0)
        return self.module(*args)

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        """Do nothing: messages of a hook are not simulated."""

    def _arrived(self, parameter: Tensor, index: int, view: Tensor) -> None:
        assert parameter.grad is not None, "it was accumulated"
        if self._as_view and parameter.grad is not view:
            view.copy_(parameter.grad)
            parameter.grad = view
        elif not self._as_view and self.require_backward_grad_sync:
            view.copy_(parameter.grad)
        if not self.require_backward_grad_sync:
            return
        self._missing[index] -= 1
        if not self._missing[index]:
            self._missing[index] = self._waiting[index]
            distributed.all_reduce(self.buckets[index], group=self._group)


def _parts(parameters: list[nn.Parameter], limit: float) -> list[list[nn.Parameter]]:
    """Return the parameters in lists of one dtype, each of which is closed once it has `limit` bytes."""
    parts: list[list[nn.Parameter]] = []
    size, full = 0, _FIRST * _MEGABYTE
    for parameter in parameters:
        if not parts or size >= full or parts[-1][0].dtype != parameter.dtype:
            full = limit if parts else full
            parts.append([])
            size = 0
        parts[-1].append(parameter)
        size += parameter.numel() * parameter.element_size()
    return parts
