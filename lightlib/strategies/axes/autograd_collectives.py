"""Exchanges between processes through which gradients flow: gather, split, and heads against sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

__all__ = ["all_to_all", "gathered", "scaled_gradient", "shard_of", "to_heads", "to_sequence"]


def all_to_all(x: Tensor, given: list[int], taken: list[int], group: Any) -> Tensor:
    """Return the rows that all processes have for this one: `taken` from each; they get `given` of its own."""
    return _AllToAll.apply(x, given, taken, group)  # type: ignore[no-any-return, no-untyped-call]


def gathered(x: Tensor, dim: int, group: Any) -> Tensor:
    """Return the parts of all processes, joined along `dim`, to work on which every process does the same."""
    return _Gather.apply(x, dim, group)  # type: ignore[no-any-return, no-untyped-call]


def shard_of(x: Tensor, dim: int, group: Any) -> Tensor:
    """Return this process's part of `x`, which is the same on all of them and divides evenly."""
    return _Shard.apply(x, dim, group)  # type: ignore[no-any-return, no-untyped-call]


def to_heads(x: Tensor, group: Any) -> Tensor:
    """Return (…, heads / n, length * n, width) for (…, heads, length, width): full sequences of some heads."""
    return _Swap.apply(x, -3, -2, group)  # type: ignore[no-any-return, no-untyped-call]


def to_sequence(x: Tensor, group: Any) -> Tensor:
    """Undo `to_heads`: return all heads of a shard of the sequence."""
    return _Swap.apply(x, -2, -3, group)  # type: ignore[no-any-return, no-untyped-call]


def scaled_gradient(x: Tensor, factor: float) -> Tensor:
    """Return `x`, and multiply its gradient by `factor`."""
    return _ScaledGradient.apply(x, factor)  # type: ignore[no-any-return, no-untyped-call]


def _gather(x: Tensor, dim: int, group: Any) -> Tensor:
    parts = [
        torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(distributed.get_world_size(group))
    ]
    distributed.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim)


def _shard(x: Tensor, dim: int, group: Any) -> Tensor:
    return x.chunk(distributed.get_world_size(group), dim)[distributed.get_rank(group)].clone()


def _all_to_all(x: Tensor, given: list[int], taken: list[int], group: Any) -> Tensor:
    output = x.new_empty((sum(taken), *x.shape[1:]))
    distributed.all_to_all_single(output, x.contiguous(), taken, given, group=group)
    return output


# torch's functions keep on `ctx` what their backward needs.
class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, given: list[int], taken: list[int], group: Any) -> Tensor:
        ctx.given, ctx.taken, ctx.group = given, taken, group
        return _all_to_all(x, given, taken, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _all_to_all(gradient, ctx.taken, ctx.given, ctx.group), None, None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Any) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return _gather(x, dim, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _shard(gradient, ctx.dim, ctx.group), None, None


class _Shard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Any) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return _shard(x, dim, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _gather(gradient, ctx.dim, ctx.group), None, None


class _Swap(torch.autograd.Function):
    """Cuts along one dimension, exchanges the pieces, and joins them along another dimension."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cut: int, joined: int, group: Any) -> Tensor:
        ctx.cut, ctx.joined, ctx.group = cut, joined, group
        return _swap(x, cut, joined, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _swap(gradient, ctx.joined, ctx.cut, ctx.group), None, None, None


def _swap(x: Tensor, cut: int, joined: int, group: Any) -> Tensor:
    given = torch.stack(x.chunk(distributed.get_world_size(group), cut))
    taken = torch.empty_like(given)
    distributed.all_to_all_single(taken, given, group=group)
    return torch.cat(tuple(taken), joined)


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.factor, None
