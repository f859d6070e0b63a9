"""The only file that touches private or experimental names of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

__all__ = ["flattened_group", "found_inf", "is_view", "map_tensors", "set_gradient_sync"]


def flattened_group(mesh: DeviceMesh, names: tuple[str, ...], name: str) -> Any:
    """Return the group of the processes along several dimensions of `mesh` at once."""
    return mesh[names]._flatten(name).get_group()  # noqa: SLF001


def set_gradient_sync(ddp: DistributedDataParallel, sync: bool) -> None:
    """Say whether the next forward and backward of `ddp` reduce gradients, as its context `no_sync` does."""
    ddp.__dict__["require_backward_grad_sync"] = sync


def found_inf(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return what `scaler.unscale_(optimizer)` found: per device 0, or 1 after an overflow."""
    return list(scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values())  # type: ignore[attr-defined]  # noqa: SLF001


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Return `tree` (dicts, lists, tuples, … in each other) with each tensor replaced by what `function` returns."""
    return tree_map_only(Tensor, function, tree)


def is_view(tensor: Tensor) -> bool:
    """Return whether autograd knows `tensor` as a view of another one."""
    return tensor._is_view()  # noqa: SLF001
