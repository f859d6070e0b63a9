"""Branches: a layer of parallel branches; and BranchAxis, which shards the branches over processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn

from lightlib.errors import MisconfigurationException
from lightlib.strategies import Axis, AxisContext, LocalParameters

__all__ = ["BranchAxis", "Branches"]


class Branches(nn.Module):
    """Averages the outputs of several branches of the same kind.

    Args:
        make_branch: Returns a new branch.
        count: The number of branches.
    """

    def __init__(self, make_branch: Callable[[], nn.Module], count: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(make_branch() for _ in range(count))
        self.local = range(count)
        self._group: Any = None

    def shard(self, group: Any) -> None:
        """Keep the branches of this process of a group; the rest loses its parameters."""
        count, size = len(self.branches), distributed.get_world_size(group)
        first = distributed.get_rank(group) * count // size
        self._group, self.local = group, range(first, first + count // size)
        for index in range(count):
            if index not in self.local:
                self.branches[index] = nn.Identity()  # keeps the index, and so the names of the rest

    def forward(self, x: Tensor) -> Tensor:
        if self._group is not None:
            x = _SumGradients.apply(x, self._group)
        outputs = torch.stack([self.branches[index](x) for index in self.local]).sum(0) / len(self.branches)
        return outputs if self._group is None else _Sum.apply(outputs, self._group)


class BranchAxis(Axis):
    """Gives each process along the dimension ``branch`` some of the branches of each `Branches` layer.

    Args:
        size: The number of processes; it divides the number of branches.

    Raises:
        MisconfigurationException: The module has no `Branches`, or their number cannot be divided.
    """

    name = "branch"
    order = 60  # further inside than `tensor`: its processes exchange activations in each layer
    divides_parameters = True

    def __init__(self, size: int) -> None:
        self.size = size
        self._group: Any = None
        self._layers: list[Branches] = []

    def check(self, module: nn.Module, site: AxisContext) -> None:
        layers = _layers(module)
        counts = [len(layer.branches) for layer in layers]
        if not layers or any(count % self.size for count in counts):
            raise MisconfigurationException(
                f"branch={self.size} with a {type(module).__name__} whose Branches layers have {counts} branches.",
                expected=f"at least one layer, each with a multiple of {self.size} branches.",
                fix=f"Branches(make_branch, count={2 * self.size})",
            )

    def apply(self, module: nn.Module, site: AxisContext) -> None:
        self._group, self._layers = site.mesh[self.name].get_group(), _layers(module)
        for layer in self._layers:
            layer.shard(self._group)

    def local_parameters(self) -> LocalParameters:
        branches = [layer.branches[index] for layer in self._layers for index in layer.local]
        return LocalParameters(self._group, {id(parameter) for one in branches for parameter in one.parameters()})


def _layers(module: nn.Module) -> list[Branches]:
    return [layer for layer in module.modules() if isinstance(layer, Branches)]


class _Sum(torch.autograd.Function):
    """Sums the outputs of all processes; the gradient of the sum is that of each output."""

    @staticmethod
    def forward(_: Any, x: Tensor, group: Any) -> Tensor:
        total = x.clone()
        distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _SumGradients(torch.autograd.Function):
    """Returns its input, and sums the gradients that it has on all processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone()
        distributed.all_reduce(total, group=ctx.group)
        return total, None
