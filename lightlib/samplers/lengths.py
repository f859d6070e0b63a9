"""Samplers that put samples of similar lengths into one batch, so that little of it is padding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch

from lightlib.errors import MisconfigurationException, check_int, wrong_type, wrong_value
from lightlib.samplers.checks import numbers_of
from lightlib.samplers.seeded import SeededSampler, in_parts, shuffled

_MOST_BATCHES = 50  # in a group that is sorted


class LengthGroupedSampler(SeededSampler):
    """Samples of similar lengths next to each other, in random order otherwise.

    The shuffled samples are cut into groups of some batches, and each group is sorted by length, longest first. The
    longest sample of all comes first, so that a batch that does not fit into memory fails at once.

    Args:
        lengths: The length of each sample.
        batch_size: Of the loader, times the number of processes.
        batches_per_group: How many batches are sorted together: more waste less padding, and are less random.
            Default: 50, or a quarter of the data if that is less.
        seed: As for :class:`SeededSampler`.

    Raises:
        MisconfigurationException: `lengths` are no whole numbers >= 0, or another argument is out of range.

    Example:
        >>> lengths = [5, 1, 9, 3]
        >>> [lengths[i] for i in LengthGroupedSampler(lengths, batch_size=2, batches_per_group=2)]
        [9, 5, 3, 1]
    """

    def __init__(
        self, lengths: Any, batch_size: int, batches_per_group: int | None = None, *, seed: int | None = None
    ) -> None:
        super().__init__(seed)
        owner = type(self).__name__
        self.lengths = numbers_of(owner, "lengths", lengths, 0)
        check_int(owner, "batch_size", batch_size, 1)
        if batches_per_group is None:
            batches_per_group = max(1, min(len(self.lengths) // (batch_size * 4), _MOST_BATCHES))
        self.group = batch_size * check_int(owner, "batches_per_group", batches_per_group, 1)

    def __len__(self) -> int:
        return len(self.lengths)

    def order(self, generator: torch.Generator) -> Iterable[int]:
        """Return all indices, sorted by length within each group."""
        groups = list(in_parts(shuffled(len(self.lengths), generator), self.group))
        groups = [group[self.lengths[group].argsort(descending=True, stable=True)] for group in groups]
        longest = max(range(len(groups)), key=lambda i: int(self.lengths[groups[i][0]]))
        first = groups.pop(longest)
        return torch.cat([first, *groups]).tolist()


class BucketBatchSampler(SeededSampler):
    """Batches of samples from one bucket of lengths, in random order.

    Pass it to a DataLoader as ``batch_sampler``. The number of batches is the same in every epoch. With several
    processes each takes complete batches.

    Args:
        lengths: The length of each sample.
        batch_size: Samples per batch; leave it out with `max_tokens`.
        max_tokens: The most that a padded batch holds: samples × the longest length of the bucket.
        boundaries: The longest length of each bucket, ascending; longer samples form one more bucket. An int makes so
            many buckets of equally many samples. Default 8.
        drop_last: Leave out the incomplete batch of each bucket. Default False.
        seed: As for :class:`SeededSampler`.

    Raises:
        MisconfigurationException: Neither or both of `batch_size` and `max_tokens`; a sample is longer than
            `max_tokens`; boundaries that do not ascend; or another argument is out of range.

    Example:
        >>> sampler = BucketBatchSampler([1, 9, 2, 8, 1], batch_size=2, boundaries=[4])
        >>> sorted(sorted(batch) for batch in sampler), len(sampler)
        ([[0, 2], [1, 3], [4]], 3)
    """  # noqa: RUF002  a multiplication sign is meant

    def __init__(
        self,
        lengths: Any,
        batch_size: int | None = None,
        *,
        max_tokens: int | None = None,
        boundaries: int | Sequence[int] = 8,
        drop_last: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        owner = type(self).__name__
        self.lengths, self.drop_last = numbers_of(owner, "lengths", lengths, 0), drop_last
        if (batch_size is None) == (max_tokens is None):
            raise MisconfigurationException(
                f"{owner}(batch_size={batch_size!r}, max_tokens={max_tokens!r}).",
                expected="one of the two.",
                fix=f"{owner}(lengths, batch_size=32)",
            )
        for name, value in (("batch_size", batch_size), ("max_tokens", max_tokens)):
            if value is not None:
                check_int(owner, name, value, 1)
        longest = int(self.lengths.max())
        if max_tokens is not None and longest > max_tokens:
            raise MisconfigurationException(
                f"{owner}(max_tokens={max_tokens}), but the longest sample has the length {longest}.",
                expected=f"at least {longest}.",
                fix=f"{owner}(lengths, max_tokens={longest}), or leave out longer samples.",
            )
        bounds = torch.tensor(_bounds(owner, boundaries, self.lengths))
        bucket = torch.bucketize(self.lengths, bounds)
        self._buckets = [torch.nonzero(bucket == number).flatten() for number in sorted(set(bucket.tolist()))]
        self._sizes = [
            max_tokens // max(1, int(self.lengths[bucket].max())) if max_tokens is not None else batch_size or 1
            for bucket in self._buckets
        ]

    def __len__(self) -> int:
        pairs = zip(self._buckets, self._sizes, strict=True)
        return sum(len(bucket) // size if self.drop_last else -(-len(bucket) // size) for bucket, size in pairs)

    def order(self, generator: torch.Generator) -> Iterable[list[int]]:
        """Return the batches of an epoch."""
        batches = []
        for indices, size in zip(self._buckets, self._sizes, strict=True):
            batches += [
                batch.tolist()
                for batch in in_parts(indices[shuffled(len(indices), generator)], size)
                if len(batch) == size or not self.drop_last
            ]
        return [batches[i] for i in shuffled(len(batches), generator).tolist()]


def _bounds(owner: str, boundaries: Any, lengths: torch.Tensor) -> list[int]:
    """Return the longest length of each bucket but the last."""
    if isinstance(boundaries, int) and not isinstance(boundaries, bool):
        check_int(owner, "boundaries", boundaries, 1)
        ordered = lengths.sort().values
        ends = [len(ordered) * number // boundaries - 1 for number in range(1, boundaries)]
        return sorted({int(ordered[end]) for end in ends if end >= 0})
    whole = isinstance(boundaries, (list, tuple)) and all(type(boundary) is int for boundary in boundaries)
    if not whole:
        fix = f"{owner}(lengths, batch_size=32, boundaries=[64, 128, 256])"
        raise wrong_type(owner, "boundaries", boundaries, "an int (a number of buckets), or a list of lengths", fix=fix)
    if any(low >= high for low, high in pairwise(boundaries)):
        raise wrong_value(owner, "boundaries", boundaries, "lengths that ascend", f"{sorted(set(boundaries))!r}")
    return list(boundaries)
