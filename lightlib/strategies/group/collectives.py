"""Collectives between processes; with one process, each is the identity."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from lightlib.accelerators.accelerator import Accelerator
from lightlib.accelerators.lookup import of
from lightlib.errors import wrong_value

T = TypeVar("T")
_OPERATIONS = ("mean", "avg", "sum", "min", "max")


class Collectives:
    """Collective operations over the processes of a strategy.

    Attributes:
        size: How many they are.
        group: Their `torch.distributed` group; None is all processes.
    """

    size: int = 1
    group: Any = None

    def barrier(self, name: str | None = None) -> None:
        """Return when every process has called this."""
        raise NotImplementedError

    def broadcast(self, obj: T, src: int = 0) -> T:
        """Return the object of process `src`, on every process."""
        raise NotImplementedError

    def all_gather_object(self, obj: T) -> list[T]:
        """Return the objects of all processes, in the order of their ranks."""
        raise NotImplementedError

    def reduce(self, tensor: Tensor | Any, group: Any = None, reduce_op: str = "mean") -> Tensor | Any:
        """Return the mean, sum, min or max of `tensor` over all processes."""
        raise NotImplementedError

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """Return the tensors of all processes, stacked along a new first dimension."""
        raise NotImplementedError

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002  (Lightning's name)
        """Return whether all (or any) of the processes decided so."""
        raise NotImplementedError


class SingleProcess(Collectives):
    """One process, without other ranks."""

    def barrier(self, name: str | None = None) -> None:
        return None

    def broadcast(self, obj: T, src: int = 0) -> T:
        return obj

    def all_gather_object(self, obj: T) -> list[T]:
        return [obj]

    def reduce(self, tensor: Tensor | Any, group: Any = None, reduce_op: str = "mean") -> Tensor | Any:
        return tensor

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        return tensor

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002  (Lightning's name)
        return decision


class ProcessGroup(Collectives):
    """The processes of a `torch.distributed` group.

    Args:
        device: The device on which numbers are exchanged: that of this process.
        group: The group; None is all processes.
        accelerator: The kind of `device`; None: found by its type.
    """

    def __init__(self, device: torch.device, group: Any = None, accelerator: Accelerator | None = None) -> None:
        self._accelerator = accelerator or of(device)
        self.device, self.group = device, group
        self.size = distributed.get_world_size(group)

    def barrier(self, name: str | None = None) -> None:
        distributed.barrier(self.group, device_ids=self._accelerator.device_ids(self.device))

    def broadcast(self, obj: T, src: int = 0) -> T:
        box = [obj]
        distributed.broadcast_object_list(
            box, group=self.group, group_src=src, device=self._accelerator.group_device(self.device)
        )
        return box[0]

    def all_gather_object(self, obj: T) -> list[T]:
        objects: list[Any] = [None] * self.size
        distributed.all_gather_object(objects, obj, group=self.group)
        return objects

    def reduce(self, tensor: Tensor | Any, group: Any = None, reduce_op: str = "mean") -> Tensor | Any:
        operation = str(reduce_op).rsplit(".", 1)[-1].lower()
        if operation not in _OPERATIONS:
            fix = "strategy.reduce(value, reduce_op='mean')"
            raise wrong_value("reduce", "reduce_op", reduce_op, "'mean', 'sum', 'min' or 'max'", fix=fix)
        group = self.group if group is None else group
        local = torch.as_tensor(tensor)
        whole = not local.is_floating_point() and not local.is_complex()
        value = local.detach().to(self.device, torch.float32 if whole and operation in ("mean", "avg") else None)
        value = value.clone() if value.data_ptr() == local.data_ptr() else value
        plain = {"min": distributed.ReduceOp.MIN, "max": distributed.ReduceOp.MAX}
        distributed.all_reduce(value, plain.get(operation, distributed.ReduceOp.SUM), group=group)
        if operation in ("mean", "avg"):
            value /= distributed.get_world_size(group)
        return value.to(local.device)

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        group = self.group if group is None else group
        moved = tensor.to(self.device).contiguous()
        if sync_grads:
            from torch.distributed.nn.functional import (  # optional: torch.distributed.nn, slow to import
                all_gather as all_gather_with_gradients,
            )

            gathered: Any = all_gather_with_gradients(moved, group or distributed.group.WORLD)  # type: ignore[no-untyped-call]
            return torch.stack(tuple(gathered)).to(tensor.device)
        rank_tensors = [torch.empty_like(moved) for _ in range(distributed.get_world_size(group))]
        distributed.all_gather(rank_tensors, moved.detach(), group=group)
        return torch.stack(rank_tensors).to(tensor.device)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002  (Lightning's name)
        vote = torch.tensor(int(decision), device=self.device)
        distributed.all_reduce(vote, group=self.group)
        return int(vote) == self.size if all else int(vote) > 0
