"""Shards: loaders of all ranks of a data set that shards itself, after a change of their number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple


class Shards(NamedTuple):
    """This rank's place, and how to read the shards of any number of ranks.

    An epoch that two ranks began is read to its end as two ranks would read it, also by three: each rank reads both
    shards, in rounds of one batch of each, and keeps every third batch. The next epoch is sharded for three.

    Attributes:
        rank, size: This rank, and the number of ranks.
        resizes: Whether the library itself resumes with any number of ranks.
        loader: Returns the loader of a rank of so many; None if it resizes, or can read only the shard of this rank.
    """

    rank: int
    size: int
    resizes: bool = False
    loader: Callable[[int, int], Any] | None = None

    def loaders_of(self, size: int) -> list[Any]:
        """Return the loaders of `size` ranks."""
        assert self.loader is not None
        return [self.loader(rank, size) for rank in range(size)]

    def distributed(self, loaders: list[Any]) -> Iterator[Any]:
        """Iterate over this rank's share of the batches of all loaders, in complete rounds.

        Example:
            >>> list(Shards(1, 3).distributed([["a", "c", "e"], ["b", "d", "f"]]))
            ['b', 'e']
        """
        batches = chain.from_iterable(zip(*loaders, strict=False))
        while len(batches_of_round := list(islice(batches, self.size))) == self.size:
            yield batches_of_round[self.rank]
