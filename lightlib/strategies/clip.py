"""Norms and clipping of gradients of parameters that are sharded in several ways at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_value_, get_total_norm
from torch.optim import Optimizer

from lightlib.strategies.axes.axis import LocalParameters

_Pair = tuple[Any, Any]  # a parameter, and its gradient or itself


def clip(optimizer: Optimizer, value: float, algorithm: str, local: Sequence[LocalParameters] = ()) -> Tensor | None:
    """Clip the gradients of `optimizer` in place; return their norm before, when the algorithm is ``"norm"``.

    Args:
        optimizer: Whose parameters are clipped; plain tensors and DTensors on any meshes.
        value: The largest norm of all gradients together (2-norm), or the largest absolute value.
        local: The parameters that only this process of a group holds, for each such group; in one order on all ranks.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if algorithm == "value":
        for group in _by_mesh([(p, p.grad) for p in parameters]):
            clip_grad_value_([p for p, _ in group], value)
        return None
    device = parameters[0].grad.device if parameters else torch.device("cpu")
    norm = norms([[(p, p.grad) for p in parameters]], device, local)[0]
    factor = torch.clamp(value / (norm + 1e-6), max=1.0)  # as torch.nn.utils.clip_grads_with_norm_
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad.mul_(factor.to(parameter.grad.device))
    return norm


def norms(groups: Sequence[Sequence[_Pair]], device: torch.device, local: Sequence[LocalParameters] = ()) -> Tensor:
    """Return the 2-norm of each group over all processes, with one reduction for each of `local`.

    Args:
        groups: Pairs of a parameter and a tensor that is placed as it is; as many groups on all ranks.
        device: Of the result.
        local: As for :func:`clip`.
    """
    squares = torch.stack([torch.stack([_squares(kind, device) for kind in _kinds(group, local)]) for group in groups])
    for index, local_part in enumerate(local):
        summed = [kind for kind in range(2 ** len(local)) if kind & 2**index]
        reduced = squares[:, summed].contiguous()
        distributed.all_reduce(reduced, group=local_part.group)
        squares[:, summed] = reduced
    return squares.sum(1).sqrt()


def _kinds(group: Sequence[_Pair], local: Sequence[LocalParameters]) -> list[list[_Pair]]:
    """Return the pairs by the groups in which their parameters are local, as bits."""
    kinds: list[list[_Pair]] = [[] for _ in range(2 ** len(local))]
    for pair in group:
        kinds[sum(2**index for index, local_part in enumerate(local) if pair[0] in local_part)].append(pair)
    return kinds


def _squares(pairs: Sequence[_Pair], device: torch.device) -> Tensor:
    squares = torch.zeros((), device=device)
    for group in _by_mesh(pairs):
        norm = get_total_norm([tensor for _, tensor in group])
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        squares = squares + norm.to(device).square()
    return squares


def _by_mesh(pairs: Sequence[_Pair]) -> list[list[_Pair]]:
    """Return the pairs in lists, in each of which torch can work on all tensors at once."""
    groups: dict[Any, list[_Pair]] = {}
    for pair in pairs:
        tensor = pair[1]
        key = (tensor.device_mesh, str(tensor.placements)) if isinstance(tensor, DTensor) else tensor.device
        groups.setdefault(key, []).append(pair)
    return list(groups.values())
