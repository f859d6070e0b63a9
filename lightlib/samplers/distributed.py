"""Samplers that shard the indices of another sampler over processes, with Lightning's names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Dataset, DistributedSampler, Sampler

from lightlib.errors import MisconfigurationException


class _Drawn(Dataset[Any]):
    """One pass of a sampler, as a data set."""

    def __init__(self, sampler: Sampler[Any] | Iterable[Any]) -> None:
        if not isinstance(sampler, Sized):
            raise MisconfigurationException(
                f"{type(sampler).__name__} has no length, so it cannot be sharded over processes.",
                expected="a sampler with __len__.",
                fix="add __len__, or Trainer(use_distributed_sampler=False).",
            )
        self.sampler: Any = sampler
        self.drawn: list[Any] | None = None

    def __getitem__(self, index: int) -> Any:
        """Return the sampler's index at a position."""
        if self.drawn is None:
            self.draw()
        return (self.drawn or [])[index]

    def __len__(self) -> int:
        """Return the sampler's length."""
        return len(self.sampler)

    def draw(self) -> None:
        """Ask the sampler for its next pass."""
        self.drawn = list(self.sampler)


class DistributedSamplerWrapper(DistributedSampler[Any]):
    """Gives each process its share of a sampler's indices; the sampler shuffles, not this class.

    Args:
        sampler: With a length.
        args: Further arguments of torch's ``DistributedSampler``.
        kwargs: As `args`, by name.

    Example:
        >>> list(DistributedSamplerWrapper([3, 1, 2, 0], num_replicas=2, rank=1, shuffle=False))
        [1, 0]
    """

    def __init__(self, sampler: Sampler[Any] | Iterable[Any], *args: Any, **kwargs: Any) -> None:
        self._drawn = _Drawn(sampler)
        super().__init__(self._drawn, *args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        """Draw a pass and yield this process's share."""
        self._drawn.draw()
        return (self._drawn[index] for index in super().__iter__())

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch here and on the sampler, if that has the method."""
        super().set_epoch(epoch)
        call = getattr(self._drawn.sampler, "set_epoch", None)
        if callable(call):
            call(epoch)


class UnrepeatedDistributedSampler(DistributedSampler[Any]):
    """Torch's ``DistributedSampler`` without repeats: the last processes may have one sample less.

    Raises:
        ValueError: There are fewer samples than processes.

    Example:
        >>> [list(UnrepeatedDistributedSampler(range(3), num_replicas=2, rank=r, shuffle=False)) for r in (0, 1)]
        [[0, 2], [1]]
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        count = len(self.dataset)  # type: ignore[arg-type]
        if count < self.num_replicas:
            raise MisconfigurationException(
                f"{count} samples cannot be shared by {self.num_replicas} processes without repeats.",
                expected="at least one sample for each process.",
                fix="use fewer devices, or torch's DistributedSampler.",
            )
        self.num_samples = len(range(self.rank, count, self.num_replicas))
        self.total_size = count

    def __iter__(self) -> Iterator[Any]:
        """Yield this process's share, in the order that all processes agree on."""
        count = len(self.dataset)  # type: ignore[arg-type]
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.epoch)
            order = torch.randperm(count, generator=generator).tolist()
        else:
            order = list(range(count))
        return iter(order[self.rank : self.total_size : self.num_replicas])


class UnrepeatedDistributedSamplerWrapper(UnrepeatedDistributedSampler):
    """As :class:`DistributedSamplerWrapper`, without repeats."""

    def __init__(self, sampler: Sampler[Any] | Iterable[Any], *args: Any, **kwargs: Any) -> None:
        self._drawn = _Drawn(sampler)
        super().__init__(self._drawn, *args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        """Draw a pass and yield this process's share."""
        self._drawn.draw()
        return (self._drawn[index] for index in super().__iter__())
