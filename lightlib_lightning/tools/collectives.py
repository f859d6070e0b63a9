"""Lightning's collectives: torch's operations between processes, as methods of an object."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Any, ClassVar

import torch.distributed as dist
from torch import Tensor
from typing_extensions import Self

from lightlib.torch_private import number_of_groups

__all__ = ["Collective", "SingleDeviceCollective", "TorchCollective"]


class Collective(ABC):
    """Base: it owns a group of processes once `create_group` was called."""

    def __init__(self) -> None:
        self._group: Any = None

    @property
    @abstractmethod
    def rank(self) -> int:
        """The rank of this process within the group."""

    @property
    @abstractmethod
    def world_size(self) -> int:
        """The processes of the group."""

    @property
    def group(self) -> Any:
        """The group.

        Raises:
            RuntimeError: There is none.
        """
        if self._group is None:
            raise RuntimeError(f"`{type(self).__name__}` does not own a group. Fix: collective.create_group().group")
        return self._group

    @abstractmethod
    def broadcast(self, tensor: Tensor, src: int) -> Tensor:
        """Send a tensor from one process to all."""

    @abstractmethod
    def all_reduce(self, tensor: Tensor, op: str) -> Tensor:
        """Reduce a tensor over all processes."""

    @abstractmethod
    def reduce(self, tensor: Tensor, dst: int, op: str) -> Tensor:
        """Reduce a tensor onto one process."""

    @abstractmethod
    def all_gather(self, tensor_list: list[Tensor], tensor: Tensor) -> list[Tensor]:
        """Gather the tensors of all processes on all."""

    @abstractmethod
    def gather(self, tensor: Tensor, gather_list: list[Tensor], dst: int = 0) -> list[Tensor]:
        """Gather the tensors of all processes on one."""

    @abstractmethod
    def scatter(self, tensor: Tensor, scatter_list: list[Tensor], src: int = 0) -> Tensor:
        """Send one tensor of a list to each process."""

    @abstractmethod
    def reduce_scatter(self, output: Tensor, input_list: list[Tensor], op: str) -> Tensor:
        """Reduce lists of tensors, one result for each process."""

    @abstractmethod
    def all_to_all(self, output_tensor_list: list[Tensor], input_tensor_list: list[Tensor]) -> list[Tensor]:
        """Send one tensor of a list from each process to each."""

    @abstractmethod
    def send(self, tensor: Tensor, dst: int, tag: int = 0) -> None:
        """Send a tensor to a process."""

    @abstractmethod
    def recv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> Tensor:
        """Receive a tensor."""

    @abstractmethod
    def barrier(self, device_ids: list[int] | None = None) -> None:
        """Wait for all processes."""

    @classmethod
    @abstractmethod
    def is_available(cls) -> bool:
        """Whether it can be used here."""

    @classmethod
    @abstractmethod
    def is_initialized(cls) -> bool:
        """Whether the processes have met."""

    @classmethod
    @abstractmethod
    def init_group(cls, **kwargs: Any) -> None:
        """Let all processes meet."""

    @classmethod
    @abstractmethod
    def new_group(cls, **kwargs: Any) -> Any:
        """Return a new group."""

    @classmethod
    @abstractmethod
    def destroy_group(cls, group: Any) -> None:
        """End a group."""

    def setup(self, **kwargs: Any) -> Self:
        """Let all processes meet, unless they have, and return this object."""
        if not self.is_initialized():
            self.init_group(**kwargs)
        return self

    def create_group(self, **kwargs: Any) -> Self:
        """Make the group that this object owns, and return this object.

        Raises:
            RuntimeError: It owns one already.
        """
        if self._group is not None:
            raise RuntimeError(f"`{type(self).__name__}` already owns a group. Fix: teardown() first.")
        self._group = self.new_group(**kwargs)
        return self

    def teardown(self) -> Self:
        """End the group, and return this object.

        Raises:
            RuntimeError: There is none.
        """
        if self._group is None:
            raise RuntimeError(f"`{type(self).__name__}` does not own a group to destroy. Fix: create_group() first.")
        self.destroy_group(self._group)
        self._group = None
        return self


class SingleDeviceCollective(Collective):
    """The collectives of one process: they return their arguments."""

    rank = 0
    world_size = 1

    def broadcast(self, tensor: Tensor, *_: Any, **__: Any) -> Tensor:
        """Return the tensor."""
        return tensor

    all_reduce = reduce = scatter = recv = broadcast

    def reduce_scatter(self, output: Tensor, *_: Any, **__: Any) -> Tensor:
        """Return the first argument."""
        return output

    def all_gather(self, tensor_list: list[Tensor], tensor: Tensor, **_: Any) -> list[Tensor]:
        """Return the tensor in a list."""
        return [tensor]

    def gather(self, tensor: Tensor, *_: Any, **__: Any) -> list[Tensor]:
        """Return the tensor in a list."""
        return [tensor]

    def all_to_all(self, output_tensor_list: list[Tensor], *_: Any, **__: Any) -> list[Tensor]:
        """Return the first argument."""
        return output_tensor_list

    def send(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def barrier(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    @classmethod
    def is_available(cls) -> bool:
        """Return True."""
        return True

    @classmethod
    def is_initialized(cls) -> bool:
        """Return True."""
        return True

    @classmethod
    def init_group(cls, **kwargs: Any) -> None:
        """Do nothing."""

    @classmethod
    def new_group(cls, **_: Any) -> Any:
        """Return an object that stands for the group."""
        return object()

    @classmethod
    def destroy_group(cls, group: Any) -> None:
        """Do nothing."""


class TorchCollective(Collective):
    """The operations of ``torch.distributed``; the group is that of all processes unless it owns one."""

    manages_default_group: ClassVar[bool] = False
    addr_key = "MASTER_ADDR"
    port_key = "MASTER_PORT"

    @property
    def group(self) -> Any:
        """Its group, or that of all processes."""
        return self._group if self._group is not None else dist.GroupMember.WORLD

    @property
    def rank(self) -> int:
        """The rank of this process within the group."""
        return dist.get_rank(self.group)

    @property
    def world_size(self) -> int:
        """The processes of the group."""
        return dist.get_world_size(self.group)

    def broadcast(self, tensor: Tensor, src: int) -> Tensor:
        """Send a tensor from one process to all, in place."""
        dist.broadcast(tensor, src, group=self.group)
        return tensor

    def all_reduce(self, tensor: Tensor, op: Any = "sum") -> Tensor:
        """Reduce a tensor over all processes, in place."""
        dist.all_reduce(tensor, op=_operation(op), group=self.group)
        return tensor

    def reduce(self, tensor: Tensor, dst: int, op: Any = "sum") -> Tensor:
        """Reduce a tensor onto one process, in place."""
        dist.reduce(tensor, dst, op=_operation(op), group=self.group)
        return tensor

    def all_gather(self, tensor_list: list[Tensor], tensor: Tensor) -> list[Tensor]:
        """Gather the tensors of all processes into a list on all."""
        dist.all_gather(tensor_list, tensor, group=self.group)
        return tensor_list

    def gather(self, tensor: Tensor, gather_list: list[Tensor], dst: int = 0) -> list[Tensor]:
        """Gather the tensors of all processes into a list on one; all but `dst` pass an empty list."""
        dist.gather(tensor, gather_list or None, dst, group=self.group)
        return gather_list

    def scatter(self, tensor: Tensor, scatter_list: list[Tensor], src: int = 0) -> Tensor:
        """Send one tensor of a list to each process; all but `src` pass an empty list."""
        dist.scatter(tensor, scatter_list or None, src, group=self.group)
        return tensor

    def reduce_scatter(self, output: Tensor, input_list: list[Tensor], op: Any = "sum") -> Tensor:
        """Reduce lists of tensors, one result for each process."""
        dist.reduce_scatter(output, input_list, op=_operation(op), group=self.group)
        return output

    def all_to_all(self, output_tensor_list: list[Tensor], input_tensor_list: list[Tensor]) -> list[Tensor]:
        """Send one tensor of a list from each process to each."""
        dist.all_to_all(output_tensor_list, input_tensor_list, group=self.group)
        return output_tensor_list

    def send(self, tensor: Tensor, dst: int, tag: int = 0) -> None:
        """Send a tensor to a process."""
        dist.send(tensor, dst, tag=tag, group=self.group)

    def recv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> Tensor:
        """Receive a tensor, in place."""
        dist.recv(tensor, src, tag=tag, group=self.group)
        return tensor

    def all_gather_object(self, object_list: list[Any], obj: Any) -> list[Any]:
        """Gather the objects of all processes into a list on all."""
        dist.all_gather_object(object_list, obj, group=self.group)
        return object_list

    def broadcast_object_list(self, object_list: list[Any], src: int, device: Any = None) -> list[Any]:
        """Send a list of objects from one process to all, in place."""
        dist.broadcast_object_list(object_list, src, group=self.group, device=device)
        return object_list

    def gather_object(self, obj: Any, object_gather_list: list[Any], dst: int = 0) -> list[Any]:
        """Gather the objects of all processes into a list on one."""
        dist.gather_object(obj, object_gather_list or None, dst, group=self.group)
        return object_gather_list

    def scatter_object_list(
        self, scatter_object_output_list: list[Any], scatter_object_input_list: list[Any], src: int = 0
    ) -> list[Any]:
        """Send one object of a list to each process."""
        dist.scatter_object_list(scatter_object_output_list, scatter_object_input_list, src, group=self.group)
        return scatter_object_output_list

    def barrier(self, device_ids: list[int] | None = None) -> None:
        """Wait for all processes of the group; a process outside of it returns at once."""
        if self.group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.barrier(group=self.group, device_ids=device_ids)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait for all processes; the error names those that do not come."""
        dist.monitored_barrier(group=self.group, timeout=timeout, wait_all_ranks=wait_all_ranks)

    def setup(self, main_address: str | None = None, main_port: str | None = None, **kwargs: Any) -> Self:
        """Let all processes meet, unless they have, and return this object.

        Args:
            main_address: Of rank 0, if MASTER_ADDR does not name it.
            main_port: Of rank 0, if MASTER_PORT does not.
            kwargs: Of ``torch.distributed.init_process_group``.
        """
        if self.is_initialized():
            return self
        variables = {self.addr_key: main_address, self.port_key: main_port}
        added = {key: str(value) for key, value in variables.items() if value is not None and key not in os.environ}
        os.environ.update(added)
        try:
            super().setup(**kwargs)
        finally:
            for key in added:
                os.environ.pop(key, None)
        self._manage(True)
        return self

    def teardown(self) -> Self:
        """End the group, and the group of all processes if `setup` made it and it is the last one."""
        member = self.group is not dist.GroupMember.NON_GROUP_MEMBER
        if self._group is not None:
            super().teardown()
        if self.manages_default_group:
            if member and dist.is_initialized() and number_of_groups() == 1:
                dist.destroy_process_group()
            self._manage(dist.is_initialized())
        return self

    @classmethod
    def _manage(cls, whether: bool) -> None:
        cls.manages_default_group = whether

    @classmethod
    def is_available(cls) -> bool:
        """Whether torch was built with it."""
        return dist.is_available()

    @classmethod
    def is_initialized(cls) -> bool:
        """Whether the processes have met."""
        return cls.is_available() and dist.is_initialized()

    @classmethod
    def init_group(cls, **kwargs: Any) -> None:
        """Let all processes meet: ``torch.distributed.init_process_group``."""
        dist.init_process_group(**kwargs)

    @classmethod
    def new_group(cls, **kwargs: Any) -> Any:
        """Return a new group: ``torch.distributed.new_group``."""
        return dist.new_group(**kwargs)

    @classmethod
    def destroy_group(cls, group: Any) -> None:
        """End a group; does nothing on a process that is not in it."""
        if group is not None and group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


def _operation(op: Any) -> Any:
    """Return torch's operation of a name."""
    if not isinstance(op, str):
        return op
    operation = getattr(dist.ReduceOp, op.upper(), None)
    if operation is None:
        raise ValueError(f"op={op!r} is no operation of torch.distributed.ReduceOp. Fix: 'sum', 'avg', 'min' or 'max'.")
    return operation
