"""Samplers of other passes over the data: shuffled, endless, repeated, or without their beginning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import Sampler

from lightlib.errors import MisconfigurationException, check_int
from lightlib.samplers.checks import check_sampler, size_of
from lightlib.samplers.seeded import SeededSampler, shuffled

_APART = 1_000_003  # passes between the streams of two epochs; torch uses the lower 32 bits of a seed


class ShuffleSampler(SeededSampler):
    """All samples once per epoch, in an order that follows from the seed and the epoch alone.

    torch's RandomSampler draws from the global generator, so whatever else a program draws before changes its order.
    This one is the same in any program.

    Args:
        data: The data set, or any collection with a length.
        seed: Default 0. None draws a seed from the global generator at each pass.

    Raises:
        MisconfigurationException: `data` has no length or no samples, or the seed is no int >= 0.

    Example:
        >>> sampler = ShuffleSampler(range(4), seed=1)
        >>> first = list(sampler)
        >>> first == list(sampler), sorted(first)
        (True, [0, 1, 2, 3])
    """

    def __init__(self, data: Any, seed: int | None = 0) -> None:
        super().__init__(seed)
        self.num_samples = size_of(type(self).__name__, data)

    def __len__(self) -> int:
        return self.num_samples

    def order(self, generator: torch.Generator) -> Iterable[int]:
        """Return a permutation."""
        return shuffled(self.num_samples, generator).tolist()


class InfiniteSampler(Sampler[int]):
    """An endless stream of samples: one pass over the data after the other, each in another order.

    With `num_samples` an epoch is so many samples of the stream, and the next epoch continues where it ended: epochs
    of any length see all samples equally often. Without it an epoch has no end: use ``Trainer(max_steps=…)``, or
    ``limit_train_batches``, with which each epoch begins a stream of its own.

    Args:
        data: The data set, or any collection with a length.
        num_samples: Samples per epoch, over all processes. Default None: no end.
        shuffle: Draw another order for each pass. Default True.
        seed: The seed of the stream, which is one for all epochs. Default 0.

    Raises:
        MisconfigurationException: `data` has no length or no samples, or a number is out of range.

    Example:
        >>> sampler = InfiniteSampler(range(3), num_samples=4, shuffle=False)
        >>> list(sampler)
        [0, 1, 2, 0]
        >>> sampler.set_epoch(1)
        >>> list(sampler)
        [1, 2, 0, 1]
    """

    def __init__(self, data: Any, num_samples: int | None = None, *, shuffle: bool = True, seed: int = 0) -> None:
        super().__init__()
        owner = type(self).__name__
        self.size = size_of(owner, data)
        self.num_samples = None if num_samples is None else check_int(owner, "num_samples", num_samples, 1)
        self.seed, self.shuffle, self.epoch = check_int(owner, "seed", seed, 0), shuffle, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch, which determines its place in the stream."""
        self.epoch = epoch

    def __len__(self) -> int:
        if self.num_samples is None:
            raise TypeError(f"{type(self).__name__} has no length: num_samples is None.")
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        if self.num_samples is None:
            return self._from(0, self.seed + self.epoch * _APART)
        return islice(self._from(self.epoch * self.num_samples, self.seed), self.num_samples)

    def _from(self, position: int, seed: int) -> Iterator[int]:
        number, used = divmod(position, self.size)
        while True:
            generator = torch.Generator().manual_seed(seed + number) if self.shuffle else None
            yield from shuffled(self.size, generator)[used:].tolist()
            number, used = number + 1, 0


class RepeatSampler(Sampler[Any]):
    """Several passes of another sampler in one epoch, each drawn again: long epochs of small data.

    The orders of all passes are drawn when the epoch begins.

    Args:
        sampler: A sampler or batch sampler with an end. If it has `set_epoch`, the passes get numbers of their own.
        times: How many passes. For an endless stream use :class:`InfiniteSampler`.

    Raises:
        MisconfigurationException: `sampler` cannot be iterated, or `times` is no int >= 1.

    Example:
        >>> list(RepeatSampler(range(2), times=3))
        [0, 1, 0, 1, 0, 1]
    """

    def __init__(self, sampler: Any, times: int) -> None:
        super().__init__()
        owner = type(self).__name__
        self.sampler, self.times, self.epoch = check_sampler(owner, sampler), check_int(owner, "times", times, 1), 0

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch, for the sampler that is repeated."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.sampler) * self.times

    def __iter__(self) -> Iterator[Any]:
        orders = []
        for number in range(self.times):
            if hasattr(self.sampler, "set_epoch"):
                self.sampler.set_epoch(self.epoch * self.times + number)
            orders.append(list(self.sampler))
        for order in orders:
            yield from order


class SkipSampler(Sampler[Any]):
    """Another sampler without its first items, in every epoch: to continue data that another program has begun.

    A run that lightlib resumes skips by itself. Skip before sharding: the number is of samples over all processes.

    Args:
        sampler: A sampler or batch sampler.
        skip: How many items to leave out at the beginning.

    Raises:
        MisconfigurationException: `sampler` cannot be iterated, or `skip` is negative, or leaves nothing.

    Example:
        >>> list(SkipSampler(range(5), skip=3))
        [3, 4]
    """

    def __init__(self, sampler: Any, skip: int) -> None:
        super().__init__()
        owner = type(self).__name__
        self.sampler, self.skip = check_sampler(owner, sampler), check_int(owner, "skip", skip, 0)
        try:
            total = len(sampler)
        except TypeError:
            return
        if skip >= total:
            raise MisconfigurationException(
                f"{owner}(skip={skip}) leaves none of {total} items.",
                expected=f"a number below {total}.",
                fix=f"{owner}(sampler, skip={skip % total if total else 0})",
            )

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch of the other sampler, if that has `set_epoch`."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return max(0, len(self.sampler) - self.skip)

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.sampler), self.skip, None)
