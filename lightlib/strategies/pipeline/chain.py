"""A pipeline without a schedule: a batch of any shape goes through all stages and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from lightlib.accelerators.accelerator import Accelerator
from lightlib.strategies.pipeline.stage import Call, Stage
from lightlib.torch_private import flattened, structured
from lightlib.tree import map_tensors, tensors_in

__all__ = ["Chain"]

Observer = Callable[[int, Any, Any], None]


class Chain:
    """All stages in their order, wherever they are.

    Used for evaluation, for the first look at a shape, and for odd batches.

    Args:
        ranks: The process (within the group) of each stage.
        stages: Those of this process, by index.
    """

    def __init__(
        self,
        group: Any,
        ranks: Sequence[int],
        stages: Mapping[int, Stage],
        device: torch.device,
        accelerator: Accelerator,
    ) -> None:
        self.group, self.ranks, self.stages = group, ranks, stages
        self.device, self.accelerator = device, accelerator
        self.rank = distributed.get_rank(group)
        # Layers of later stages that need more than the stage before sends get it from the step's own call.
        self.captures = self.rank == ranks[0] or any(stage.split.kind != "chain" for stage in stages.values())

    def forward(self, call: Call | None, observe: Observer | None = None) -> Any:
        """Return the output of the last stage on the process that has it; other ranks ignore their result."""
        value: Any = None
        for index in sorted(self.stages):
            if index and self.ranks[index - 1] != self.rank:
                value = self.receive(self.ranks[index - 1])
            received, value = value, self.stages[index](value, call)
            if observe is not None:
                observe(index, received, value)
            if index + 1 < len(self.ranks) and self.ranks[index + 1] != self.rank:
                self.send(value, self.ranks[index + 1])
        return value

    def forward_backward(self, call: Call | None, loss_of: Callable[[Any], Tensor]) -> None:
        """Run one micro-batch forward, differentiate `loss_of(output)` and run it back, alone."""
        inputs: dict[int, list[Tensor]] = {}
        outputs: dict[int, list[Tensor]] = {}
        value: Any = None
        for index in sorted(self.stages):
            if index:
                value = value if self.ranks[index - 1] == self.rank else self.receive(self.ranks[index - 1])
                leaves, structure = flattened(value)
                leaves = [_leaf(leaf) for leaf in leaves]
                inputs[index] = _differentiable(leaves)
                value = structured(leaves, structure)
            value = self.stages[index](value, call)
            outputs[index] = _differentiable(flattened(value)[0])
            if index + 1 < len(self.ranks) and self.ranks[index + 1] != self.rank:
                self.send(value, self.ranks[index + 1])
        gradients: list[Tensor] = []
        for index in sorted(self.stages, reverse=True):
            if index + 1 == len(self.ranks):
                torch.autograd.backward(loss_of(value))
            else:
                if self.ranks[index + 1] != self.rank:
                    gradients = self.receive(self.ranks[index + 1])
                pairs = [(o, g) for o, g in zip(outputs[index], gradients, strict=True) if o.requires_grad]
                if pairs:
                    torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
            if index:
                gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in inputs[index]]
                if self.ranks[index - 1] != self.rank:
                    self.send(gradients, self.ranks[index - 1])

    def send(self, value: Any, rank: int) -> None:
        """Send a tree of tensors and plain values to another process of the pipeline."""
        sent = map_tensors(lambda tensor: tensor.detach().contiguous(), value)
        described = map_tensors(lambda tensor: tensor.to("meta"), sent)
        distributed.send_object_list([described], group=self.group, group_dst=rank, device=self._exchange)
        for tensor in tensors_in([sent]):
            distributed.send(tensor, group=self.group, group_dst=rank)

    def receive(self, rank: int) -> Any:
        """Return the tree that another process of the pipeline sends."""
        box: list[Any] = [None]
        distributed.recv_object_list(box, group=self.group, group_src=rank, device=self._exchange)

        def filled(described: Tensor) -> Tensor:
            tensor = torch.empty_like(described, device=self.device)
            distributed.recv(tensor, group=self.group, group_src=rank)
            return tensor

        return map_tensors(filled, box[0])

    @property
    def _exchange(self) -> torch.device | None:
        return self.accelerator.group_device(self.device)


def _leaf(value: Any) -> Any:
    """Return a tensor as the beginning of a graph of its own."""
    if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
        return value.detach().requires_grad_()
    return value


def _differentiable(leaves: Sequence[Any]) -> list[Tensor]:
    return [one for one in leaves if isinstance(one, Tensor) and (one.is_floating_point() or one.is_complex())]
