"""Peers: the processes that write one checkpoint together, and the exchange of their errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import distributed


@dataclass
class PeerFailure:
    """An error of one process: its message, and the error itself, which the other processes do not get."""

    text: str
    error: Exception | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"text": self.text, "error": None}


def attempted(call: Callable[[], Any], message_of: Callable[[Exception], str]) -> Any:
    """Return the result of `call`, or a PeerFailure with the message of its error."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  it is sent to the other processes, which wait for a result
        return PeerFailure(message_of(error), error)


class Peers:
    """The processes of a group (None: all), or only this one if it is `alone`; the first one decides."""

    def __init__(self, group: Any, alone: bool) -> None:
        several = not alone and distributed.is_available() and distributed.is_initialized()
        self.group = group
        self.size = distributed.get_world_size(group) if several else 1
        self.rank = distributed.get_rank(group) if several else 0

    @property
    def first(self) -> bool:
        """Whether this is the process that decides."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes on the first one; an empty list on the rest."""
        if self.size == 1:
            return [value]
        gathered: list[Any] | None = [None] * self.size if self.first else None
        distributed.gather_object(value, gathered, group=self.group, group_dst=0)
        if gathered is None:
            return []
        gathered[0] = value  # the object itself, not a copy that was sent
        return gathered

    def scatter(self, values: Sequence[Any]) -> Any:
        """Return the value that the first process has for this one; only the first process's `values` are used."""
        if self.size == 1:
            return values[0]
        output: list[Any] = [None]
        inputs = list(values) if self.first else None
        distributed.scatter_object_list(output, inputs, group=self.group, group_src=0)
        return values[0] if self.first else output[0]
