"""SeededSampler: base of samplers that draw the order of an epoch when it begins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import Sampler

from lightlib.samplers.checks import check_seed


class SeededSampler(Sampler[Any], ABC):
    """Base of samplers and batch samplers that draw the order of an epoch from one seed.

    A subclass has `order` and `__len__`. Everything random in `order` is drawn from its generator, so a run that is
    resumed within an epoch draws the same order again, and all processes draw the same.

    Args:
        seed: An int: the order of epoch e follows from ``seed + e`` alone; the Trainer calls `set_epoch`. None
            (default): each pass draws its seed from torch's global generator when it begins, as torch's RandomSampler
            does.

    Raises:
        MisconfigurationException: `seed` is neither None nor an int >= 0.

    Example:
        >>> class Reversed(SeededSampler):
        ...     def order(self, generator):
        ...         return reversed(range(3))
        ...     def __len__(self):
        ...         return 3
        >>> list(Reversed())
        [2, 1, 0]
    """

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self.seed = check_seed(type(self).__name__, seed)
        self.epoch = 0

    @abstractmethod
    def order(self, generator: torch.Generator) -> Iterable[Any]:
        """Return the indices of an epoch, or its batches of indices, drawn from `generator`."""

    @abstractmethod
    def __len__(self) -> int: ...

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch, which determines its order if there is a seed."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        yield from self.order(generator_of(self.seed, self.epoch))


def generator_of(seed: int | None, epoch: int) -> torch.Generator:
    """Return the generator of an epoch: of a seed, or of one that torch's global generator draws now."""
    if seed is None:
        return torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    return torch.Generator().manual_seed(seed + epoch)


def shuffled(size: int, generator: torch.Generator | None) -> torch.Tensor:
    """Return the numbers below `size` in a random order; in their own without a generator."""
    return torch.arange(size) if generator is None else torch.randperm(size, generator=generator)


def in_parts(indices: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Return consecutive parts of `size` indices; the last one may be shorter."""
    return [indices[at : at + size] for at in range(0, len(indices), size)]
