"""A pipeline without a schedule: a batch of any shape goes through all stages and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from lightlib.accelerators.accelerator import Accelerator
from lightlib.strategies.pipeline.stage import Call, Stage
from lightlib.tree import map_tensors, tensors_in

Observer = Callable[[int, Any, Any], None]


class Chain:
    """All stages in their order, wherever they are.

    Used for evaluation, and for the first look at a shape.

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
        self._exchange = accelerator.group_device(device)
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
