"""Peers: the processes that write one checkpoint, and how what fails on one of them is known to all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import distributed

__all__ = ["Failure", "Peers", "attempted"]


@dataclass
class Failure:
    """What one process could not do.

    Attributes:
        text: What it says of it.
        error: The error itself; None on the other processes.
    """

    text: str
    error: Exception | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"text": self.text, "error": None}


def attempted(call: Callable[[], Any], worded: Callable[[Exception], str]) -> Any:
    """Return what `call` returns, or its Failure."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  the others wait to hear of it
        return Failure(worded(error), error)


class Peers:
    """The processes of a group, of which the first one decides.

    Args:
        group: Of `torch.distributed`; None is all processes, or this one where there are no others.
        alone: This process only, whatever others there are. Default False.
    """

    def __init__(self, group: Any = None, alone: bool = False) -> None:
        there = not alone and distributed.is_available() and distributed.is_initialized()
        self.group = group
        self.size = distributed.get_world_size(group) if there else 1
        self.rank = distributed.get_rank(group) if there else 0

    @property
    def first(self) -> bool:
        """Whether this is the process that decides."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes on the first one; none on the others."""
        if self.size == 1:
            return [value]
        found: list[Any] | None = [None] * self.size if self.first else None
        distributed.gather_object(value, found, group=self.group, group_dst=0)
        if found is None:
            return []
        found[0] = value  # the very object, not a copy that was sent
        return found

    def scatter(self, values: Sequence[Any]) -> Any:
        """Return this process's one of the values that the first process has for all; what others give is ignored."""
        if self.size == 1:
            return values[0]
        box: list[Any] = [None]
        given = list(values) if self.first else None
        distributed.scatter_object_list(box, given, group=self.group, group_src=0)
        return values[0] if self.first else box[0]
