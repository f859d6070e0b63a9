"""IndexStream: the indices that a loader's sampler draws, which a resumed run draws again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import chain, islice
from typing import Any

from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lightlib.data.generators import generators_in, present_state, set_present_state
from lightlib.data.seed import set_rng_state
from lightlib.data.sharding import DataShard, ShardedSampler, inner_sampler, is_plain_batches, shared_rng
from lightlib.data.workers import Placed, Seeding
from lightlib.samplers.distributed import (
    DistributedSamplerWrapper,
    UnrepeatedDistributedSampler,
    UnrepeatedDistributedSamplerWrapper,
)
from lightlib.samplers.passes import InfiniteSampler, RepeatSampler
from lightlib.samplers.seeded import SeededSampler

# These draw all their random numbers at the first `next`, or from generators of their own.
_DRAW_AT_ONCE = (
    *(SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler),
    *(InfiniteSampler, RepeatSampler),
    *(DistributedSampler, DistributedSamplerWrapper),
    *(UnrepeatedDistributedSampler, UnrepeatedDistributedSamplerWrapper),
)
_RECENT = 1024  # items that are remembered: more than workers are given in advance
_LARGEST_BATCH = 2**32  # batches of a custom batch sampler get numbers that are this far apart


class IndexStream:
    """The indices that a loader's sampler draws, with the state of the generators that drew them.

    A sampler draws its permutation at the first `next`, inside the generator below, for any number of workers. The
    stream keeps the state of the generators at that moment. From the restored state it draws the same permutation, and
    skips the first `skip` items without loading any data. With several processes it is the first one's state.

    Args:
        share: None when no processes have to agree: one process, or nothing random.
        seeding: Seeds the workers; None without workers. With it, items carry their position in the epoch.
        place: The rank and world size, if the user has sharded the samples.

    Attributes:
        state: Of the generators when this pass began; None before the sampler has drawn.
    """

    def __init__(
        self,
        indices: Any,
        share: DataShard | None = None,
        data: Any = None,
        seeding: Seeding | None = None,
        place: tuple[int, int] = (0, 1),
    ) -> None:
        self.indices, self.share, self.seeding, self.place = indices, share, seeding, place
        self._skip: int | None = None  # None: draw a new permutation
        self._pending: list[Any] = []  # drawn but not used by the saved run, for its workers
        self._draws_late = _draws_late(indices)
        self._recent: deque[Any] = deque(maxlen=_RECENT)
        self._ready: list[Iterable[Any]] = []
        self._drawing: Iterator[Iterable[Any]] = iter(())
        self._drawn_so_far = 0
        self._noted: deque[list[Any]] | None = None
        self.state: dict[str, Any] | None = None
        self.generators = list(generators_in({"sampler": indices}, (data,)).values())

    def __len__(self) -> int:
        return len(self.indices)

    def __getattr__(self, name: str) -> Any:
        if name in ("indices", "__setstate__"):
            raise AttributeError(name)
        return getattr(self.indices, name)

    def __iter__(self) -> Iterator[Any]:
        self._drawing = self._drawn()
        self._ready = []
        self._recent.clear()  # of the pass before: this one may be saved before it draws
        self._drawn_so_far = 0
        return chain.from_iterable(chain(self._ready, self._drawing))  # then no Python of ours runs

    def start_epoch(self) -> None:
        """Forget the state of the previous epoch: the sampler has not drawn yet."""
        self.state = None

    def resume_at(self, skip: int, state: dict[str, Any] | None, pending: Iterable[Any] = ()) -> None:
        """Let the next iteration draw from `state`, where it is known, and skip the items that were used.

        Args:
            skip: How many items the saved run used.
            state: The generators' state at the start of its pass.
            pending: Items that it had drawn but not used.
        """
        if state is not None:
            self.state = state
        self._skip = skip if skip or state is not None else None
        self._pending = list(pending)

    def note(self) -> deque[list[Any]]:
        """Note the indices of each batch as it is drawn, from the next pass on, in the returned queue."""
        self._noted = deque()
        return self._noted

    def draw_now(self) -> None:
        """Draw everything that the saved run had drawn now, rather than at the first item."""
        self._ready += islice(self._drawing, 1)

    def _drawn(self) -> Iterator[Iterable[Any]]:
        """Yield once: the sampler's items from the start position on."""
        present = present_state(self.generators)
        saved, skip = self.state if self._skip is not None else None, self._skip or 0
        if saved is not None:
            set_present_state(self.generators, saved)
        drawing = (
            None
            if saved or self.share is None
            else shared_rng(self.share, present, partial(set_present_state, self.generators))
        )
        pending, self._pending = self._pending, []
        with drawing or nullcontext(present) as state:
            drawn, used = iter(self.indices), skip + len(pending)
            deque(islice(drawn, used), maxlen=0)
            first = [] if used else list(islice(drawn, 1))  # most samplers draw all their numbers at the first item
        if self._skip is None:
            self.state = state
        else:
            set_rng_state(present["global"])
        self._skip = None
        items: Iterator[Any] = chain(pending, first, drawn)
        self._drawn_so_far = skip
        if self._draws_late:
            items = self._remembered(items)
        if self._noted is not None:
            self._noted.clear()
            items = _noting(items, self._noted)
        if self.seeding is None:
            yield items
            return
        key, positions = self.seeding.key(), self._positions()
        yield (Placed(index, key, *positions(number)) for number, index in enumerate(items, skip))

    def _positions(self) -> Callable[[int], tuple[int, int]]:
        """Return a function from an item's number to its first sample's position in the epoch, and the stride."""
        indices, (rank, size) = self.indices, self.place
        if isinstance(indices, ShardedSampler):
            indices, rank, size, by_sample = indices.items, indices.share.rank, indices.share.size, False
        else:
            by_sample = True
        if not is_plain_batches(indices):
            each = 1 if self.seeding is None or not self.seeding.in_batches else _LARGEST_BATCH
            return lambda number: ((number * size + rank) * each, size if each == 1 else 1)
        batch = indices.batch_size
        if not by_sample:
            return lambda number: ((number * size + rank) * batch, 1)
        if isinstance(indices.sampler, ShardedSampler):
            rank, size = indices.sampler.share.rank, indices.sampler.share.size
        return lambda number: (number * batch * size + rank, size)

    def _remembered(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._recent.append(item)
            self._drawn_so_far += 1
            yield item

    def drawn_ahead(self, used: int) -> list[Any]:
        """Return the items that were drawn for workers and not used, where a sampler draws as it is read."""
        count = self._drawn_so_far - used
        return list(self._recent)[-count:] if count > 0 else []


def _noting(batches: Iterator[Any], queue: deque[list[Any]]) -> Iterator[Any]:
    """Yield the same batches of indices, and append a list of each one to `queue`."""
    for batch in batches:
        indices = batch.tolist() if hasattr(batch, "tolist") else list(batch)
        queue.append([index.item() if hasattr(index, "item") else index for index in indices])
        yield indices if isinstance(batch, Iterator) else batch  # it has been used up


def draws_at_once(indices: Any) -> bool:
    """Whether a sampler, or that of a plain batch sampler, draws all its random numbers at the first `next`."""
    sampler = _drawing_sampler(indices)
    return type(sampler) in _DRAW_AT_ONCE or type(sampler).__iter__ is SeededSampler.__iter__


def is_random(indices: Any) -> bool:
    """Whether a sampler, or that of a plain batch sampler, may draw random numbers."""
    return type(_drawing_sampler(indices)) is not SequentialSampler


def _drawing_sampler(indices: Any) -> Any:
    inner = inner_sampler(indices)
    return indices if inner is None else inner


def _draws_late(indices: Any) -> bool:
    """Whether a sampler may draw from the global generators as it is read; a sharded one draws isolated from them."""
    return not isinstance(_drawing_sampler(indices), ShardedSampler) and not draws_at_once(indices)
