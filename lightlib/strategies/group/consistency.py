"""Checks that all ranks have the same module, and gives them the same values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor

from lightlib.errors import MisconfigurationException
from lightlib.strategies.group.collectives import Collectives
from lightlib.torch_private import non_persistent_buffers


def check_equal(module: nn.Module, collectives: Collectives) -> None:
    """Refuse modules that differ between ranks in a name, shape, dtype or trainability; all ranks raise.

    Raises:
        MisconfigurationException: Names the ranks and the first difference.
    """
    described = _described(module)
    descriptions = collectives.all_gather_object(described)
    for rank, other in enumerate(descriptions):
        if other == descriptions[0]:
            continue
        names = [name for name in {**descriptions[0], **other} if descriptions[0].get(name) != other.get(name)]
        first = names[0] if names else "the order of the parameters"
        raise MisconfigurationException(
            f"The module differs over processes: {first!r} is {descriptions[0].get(first, 'absent')} on rank 0 and "
            f"{other.get(first, 'absent')} on rank {rank}.",
            expected="the same module on every rank: names, shapes, dtypes, requires_grad.",
            fix="build it from the same arguments on every rank; nothing in it may depend on the rank.",
        )


def _described(module: nn.Module) -> dict[str, str]:
    entries = {
        name: f"{str(p.dtype).removeprefix('torch.')}{list(p.shape)}{'' if p.requires_grad else ' frozen'}"
        for name, p in module.named_parameters()
    }
    return {**entries, **{f"buffer {name}": f"{b.dtype}{list(b.shape)}" for name, b in module.named_buffers()}}


def share_values(module: nn.Module, device: torch.device) -> None:
    """Give every process the values of the first one, tensor by tensor, wherever the module is.

    Tensors without memory, or already sharded, stay as they are.
    """
    for tensor in dict.fromkeys((*module.parameters(), *module.buffers())):
        if not tensor.is_meta and not isinstance(tensor, DTensor):
            _broadcast(tensor, device if tensor.device.type != device.type else tensor.device, None)


def share_buffers(module: nn.Module, group: Any) -> None:
    """Give the processes of `group` the buffers of its first one, as far as a checkpoint holds them.

    Running statistics, for instance, are those of the samples that a process has seen.
    """
    for _, buffer in _stored_buffers(module):
        _broadcast(buffer, buffer.device, group)


def _broadcast(tensor: Tensor, device: torch.device, group: Any) -> None:
    data = tensor.detach().to(device).contiguous()
    distributed.broadcast(data, group=group, group_src=0)
    if data.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(data)


def own_buffers(module: nn.Module, group: Any) -> dict[str, Tensor]:
    """Return the buffers that are not those of the first process of `group`, which are the ones in a checkpoint."""
    changed: dict[str, Tensor] = {}
    for name, buffer in _stored_buffers(module):
        first = buffer.detach().clone(memory_format=torch.contiguous_format)
        distributed.broadcast(first, group=group, group_src=0)
        if not torch.equal(first, buffer):
            changed[name] = buffer.detach().cpu().clone()
    return changed


def load_own_buffers(module: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    """Load the result of `own_buffers`."""
    for name, buffer in _stored_buffers(module):
        if name in buffers:
            buffer.detach().copy_(buffers[name])


def _stored_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers that a checkpoint holds and that are not sharded, with their names."""
    for prefix, part in module.named_modules():
        for name, buffer in part.named_buffers(prefix, recurse=False):
            stored = name.rpartition(".")[2] not in non_persistent_buffers(part)
            if stored and not buffer.is_meta and not isinstance(buffer, DTensor):
                yield name, buffer
