"""Prefetch: copies the next batch to a device with streams while the current one is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

END = object()


class Prefetch:
    """Copies the next batch to a device on a side stream while the current one is used.

    Note:
        Only for loaders with workers: without them the data set would draw its random numbers before the previous
        step draws its own, and the run would differ from the same run on a CPU.
    """

    def __init__(self, device: torch.device, move: Callable[[Any, int], Any]) -> None:
        self._device, self._move = device, move
        self._streams: Any = torch.get_device_module(device)
        self._side = self._streams.Stream(device)
        self._iterator: Iterator[Any] = iter(())
        self._next: Any = END

    @property
    def ended(self) -> bool:
        return self._next is END

    def start(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self._advance()

    def take(self) -> Any:
        current = self._streams.current_stream(self._device)
        current.wait_stream(self._side)
        self._side.wait_stream(current)  # memory of a dropped batch is reused only after the steps that read it
        batch = self._next
        self._advance()
        return batch

    def stop(self) -> None:
        """Drop the iterator, which ends its workers, and the prefetched batch."""
        self._iterator, self._next = iter(()), END

    def _advance(self) -> None:
        batch = next(self._iterator, END)
        if batch is not END:
            with self._streams.stream(self._side):
                batch = self._move(batch, 0)
        self._next = batch
