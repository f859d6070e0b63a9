"""Exchanges between processes through which gradients flow: gather, split, and heads against sequence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed

_Operation = Callable[[Tensor], Tensor]


def all_to_all(x: Tensor, given: list[int], taken: list[int], group: Any) -> Tensor:
    """Return the rows that all processes have for this one: `taken` from each; they get `given` of its own."""
    return _applied(x, partial(_all_to_all, given, taken, group), partial(_all_to_all, taken, given, group))


def gathered(x: Tensor, dim: int, group: Any) -> Tensor:
    """Return the parts of all processes, joined along `dim`, to work on which every process does the same."""
    return _applied(x, partial(_gather, dim, group), partial(_shard, dim, group))


def shard_of(x: Tensor, dim: int, group: Any) -> Tensor:
    """Return this process's part of `x`, which is the same on all of them and divides evenly."""
    return _applied(x, partial(_shard, dim, group), partial(_gather, dim, group))


def to_heads(x: Tensor, group: Any) -> Tensor:
    """Return (…, heads / n, length * n, width) for (…, heads, length, width): full sequences of some heads."""
    return _applied(x, partial(_swap, -3, -2, group), partial(_swap, -2, -3, group))


def to_sequence(x: Tensor, group: Any) -> Tensor:
    """Undo `to_heads`: return all heads of a shard of the sequence."""
    return _applied(x, partial(_swap, -2, -3, group), partial(_swap, -3, -2, group))


def scaled_gradient(x: Tensor, factor: float) -> Tensor:
    """Return `x`, and multiply its gradient by `factor`."""
    return _applied(x, lambda x: x.view_as(x), lambda gradient: gradient * factor)


def _applied(x: Tensor, operation: _Operation, to_gradient: _Operation) -> Tensor:
    return _Applied.apply(x, operation, to_gradient)  # type: ignore[no-any-return, no-untyped-call]


class _Applied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, operation: _Operation, to_gradient: _Operation) -> Tensor:
        ctx.to_gradient = to_gradient
        return operation(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.to_gradient(gradient), None, None


def _all_to_all(sent: list[int], taken: list[int], group: Any, x: Tensor) -> Tensor:
    output = x.new_empty((sum(taken), *x.shape[1:]))
    distributed.all_to_all_single(output, x.contiguous(), taken, sent, group=group)
    return output


def _gather(dim: int, group: Any, x: Tensor) -> Tensor:
    parts = [
        torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(distributed.get_world_size(group))
    ]
    distributed.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim)


def _shard(dim: int, group: Any, x: Tensor) -> Tensor:
    return x.chunk(distributed.get_world_size(group), dim)[distributed.get_rank(group)].clone()


def _swap(cut: int, joined: int, group: Any, x: Tensor) -> Tensor:
    """Cut along one dimension, exchange the pieces, and join them along another dimension."""
    chunks = torch.stack(x.chunk(distributed.get_world_size(group), cut))
    taken = torch.empty_like(chunks)
    distributed.all_to_all_single(taken, chunks, group=group)
    return torch.cat(tuple(taken), joined)
