"""NotedIndices: the samples of each batch, noted while the loaders draw them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader

from lightlib.data.index_stream import IndexStream


class NotedIndices:
    """The indices of the samples in each batch of a pass.

    They are noted when a loader draws them, so each sampler is read once, and workers may draw ahead.

    Args:
        loaders: The loaders that are read; those without a batch sampler, and those whose workers return batches out
            of order, have no indices.

    Attributes:
        batches: By loader, the indices of each batch that was read so far; None for a loader without indices.
        present: Those of the batch that was read last.
    """

    def __init__(self, loaders: Sequence[Any]) -> None:
        self._streams = [_stream(loader) for loader in loaders]
        self.batches: list[list[list[Any]] | None] = []
        self.present: list[Any] | None = None

    def follow(self, batches: Iterator[tuple[Any, int, int]]) -> Iterator[tuple[Any, int, int]]:
        """Yield the same items; before each one, its indices are known."""
        drawn = [None if stream is None else stream.note() for stream in self._streams]
        self.batches, self.present = [None if queue is None else [] for queue in drawn], None
        for item in batches:
            queue, noted = drawn[item[2]], self.batches[item[2]]
            self.present = None
            if queue is not None and noted is not None:
                self.present = queue.popleft()
                noted.append(self.present)
            yield item


def _stream(loader: Any) -> IndexStream | None:
    indices = getattr(loader, "batch_sampler", None)
    in_order = not getattr(loader, "num_workers", 0) or getattr(loader, "in_order", True)
    return indices if isinstance(loader, DataLoader) and isinstance(indices, IndexStream) and in_order else None
