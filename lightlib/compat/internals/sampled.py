"""Samples of a batch: the indices that a prediction loader's sampler gave, computed from the sampler."""

from __future__ import annotations

from itertools import islice
from typing import Any

from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from lightlib.errors import MisconfigurationException

__all__ = ["indices_of_batch"]


def indices_of_batch(data: Any, loader: int, number: int) -> list[int]:
    """Return the indices of the samples in batch `number` of a loader.

    Raises:
        MisconfigurationException: The loader has no sampler, or one that draws another order each time.
    """
    this = data.read[loader]
    batches = getattr(this, "batch_sampler", None)
    inner = getattr(batches, "sampler", None)
    if batches is None or isinstance(inner, (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)):
        kind = type(inner if batches is not None else this).__name__
        raise MisconfigurationException(
            f"The samples of a batch are read, but the prediction loader has {kind!r}.",
            expected="a loader with a batch sampler that gives the same order each time.",
            fix="DataLoader(dataset, batch_size=…, shuffle=False).",
        )
    return [int(index) for index in next(islice(iter(batches), number, None))]
