"""Collectives: what processes tell each other; with one process, each is the identity."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import Tensor

__all__ = ["Collectives", "SingleProcess"]

T = TypeVar("T")


class Collectives:
    """What a strategy can ask of all its processes."""

    def barrier(self, name: str | None = None) -> None:
        """Return when every process has called this."""
        raise NotImplementedError

    def broadcast(self, obj: T, src: int = 0) -> T:
        """Return the object of process `src`, on every process."""
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
    """One process has nobody to ask."""

    def barrier(self, name: str | None = None) -> None:
        return None

    def broadcast(self, obj: T, src: int = 0) -> T:
        return obj

    def reduce(self, tensor: Tensor | Any, group: Any = None, reduce_op: str = "mean") -> Tensor | Any:
        return tensor

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        return tensor

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002  (Lightning's name)
        return decision
