"""Memory of one process: parameters, gradients and optimizer state, measured where they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from lightlib.callbacks.summary.training_memory import local_part, reshard
from lightlib.tree import tensors_in


def memory_of(module: nn.Module, optimizers: Iterable[Optimizer] | Optimizer = ()) -> dict[str, int]:
    """Return the bytes that this process holds of parameters, gradients and optimizer state.

    Of a sharded parameter only the local shard counts; gathered parameters of FSDP are dropped first, as when
    a checkpoint is written, so call this between two steps. Buffers and activations are not counted, and what is on the
    meta device has no bytes.

    Args:
        module: As a strategy has placed it, or any other.
        optimizers: One or several, as ``trainer.optimizers`` lists them.

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(3, 2)
        >>> optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
        >>> memory_of(layer, optimizer)
        {'parameters': 32, 'gradients': 0, 'optimizer_state': 0}
        >>> layer(torch.ones(3)).sum().backward()
        >>> optimizer.step()
        >>> memory_of(layer, optimizer)
        {'parameters': 32, 'gradients': 32, 'optimizer_state': 32}
    """
    reshard(module)
    parameters = list(module.parameters())
    several = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
    states = [
        [optimizer.state, getattr(getattr(optimizer, "optim", None), "state", {})] for optimizer in several
    ]  # the second with ZeRO
    state = tensors_in(states)
    return {
        "parameters": sum(map(_bytes, parameters)),
        "gradients": sum(_bytes(parameter.grad) for parameter in parameters if parameter.grad is not None),
        "optimizer_state": sum(_bytes(tensor) for tensor in {id(tensor): tensor for tensor in state}.values()),
    }


def _bytes(tensor: Any) -> int:
    part = local_part(tensor)
    return 0 if part.is_meta else int(part.numel() * part.element_size())
