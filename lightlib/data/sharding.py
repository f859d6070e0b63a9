"""Sharding: how a loader's order is drawn alike on all processes, dealt among them, and remembered."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import chain, cycle, islice
from typing import Any, Protocol

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    IterDataPipe,
    MapDataPipe,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lightlib import report
from lightlib.data.generators import generators_in, set_generator_state, state_of_generator
from lightlib.data.prefetch import END
from lightlib.data.seed import rng_state, set_rng_state
from lightlib.data.worker_signals import Undisturbed, started_undisturbed
from lightlib.data.workers import Placed, Seeding, WorkerStart, in_worker, users_own
from lightlib.errors import MisconfigurationException

__all__ = [
    "DataShard",
    "Ends",
    "IndexStream",
    "ShardedBatchSampler",
    "ShardedSampler",
    "batch_size_of_loader",
    "is_dealt",
    "is_not_sharded",
    "is_plain",
    "is_plain_batches",
    "is_read_by_index",
    "kind_of",
    "say_once",
    "stream",
    "with_smaller_batches",
]

# These draw all their random numbers at the first `next`, or from generators of their own.
_DRAW_AT_ONCE = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_BLOCK = 1024
_RECENT = 1024  # items that are remembered: more than workers are given in advance
_LARGEST_BATCH = 2**32  # the places of samples in batches of a sampler of the user's own are counted by batch
_SIZES, _RANKS = ("num_replicas", "_num_replicas", "world_size", "_world_size"), ("rank", "_rank")
_SHARD_THEMSELVES = ("litdata", "streaming", "webdataset")  # packages whose data sets ask torch.distributed


class Ends(Protocol):
    """What is used of a `lightlib.launch.watch.watch.Watch`."""

    def follow_data(self, given: Callable[[], int]) -> None: ...
    def end_of_data(self, batches: int) -> dict[int, int]: ...


@dataclass(frozen=True)
class DataShard:
    """Which part of the data this process reads, and how the processes talk about it.

    Attributes:
        rank, size: The place among those that read different batches. Processes with the same rank read the same.
        broadcast: Returns the first process's object on every process.
        gather: Returns the objects of all processes, in the order of their ranks.
        deals: Whether the loaders' batches are dealt here. False: every loader is read as it is.
        ends: Tells whether the data of all processes end after equally many batches; None where nobody can.
    """

    rank: int
    size: int
    broadcast: Callable[[Any], Any]
    gather: Callable[[Any], list[Any]]
    deals: bool = True
    ends: Ends | None = None


@cache
def say_once(message: str) -> None:
    """Say `message`, unless this program has said it before."""
    report.info(message)


@contextmanager
def _drawing_alike(
    share: DataShard, present: dict[str, Any], give_back: Callable[[Any], None]
) -> Iterator[dict[str, Any]]:
    """Let all processes draw what the first one draws; those with other random numbers than it go on with theirs."""
    state = share.broadcast(present)
    give_back(state)
    yield state
    if not state["global"]["torch"].equal(present["global"]["torch"]):
        set_rng_state(present["global"])


class ShardedSampler:
    """Every n-th of some items, from the place of this process on.

    Items are read in rounds of one per process, so that all processes have read equally far.

    Args:
        items: A sampler, a batch sampler or a sequence.
        share: The place of this process.
        last: What becomes of a last round that is too short: ``"fill"`` it up with the first items, as
            DistributedSampler does, ``"drop"`` it, or ``"keep"`` it, so that some processes have one item less.
        block: How many items at a time are drawn with the global generators as the items left them; 0 when they draw
            nothing after the first. On each process other code draws in between.
    """

    def __init__(self, items: Any, share: DataShard, last: str, block: int = 0) -> None:
        self.items, self.share, self.last, self.block = items, share, last, block

    def __getattr__(self, name: str) -> Any:
        if name in ("items", "__setstate__"):
            raise AttributeError(name)
        return getattr(self.items, name)

    def __len__(self) -> int:
        share, total = self.share, len(self.items)
        if self.last == "keep":
            return len(range(share.rank, total, share.size))
        return total // share.size if self.last == "drop" else -(-total // share.size)

    def __iter__(self) -> Iterator[Any]:
        in_memory = isinstance(self.items, Sequence)
        for item in self._deal(iter(range(len(self.items))) if in_memory else self._drawn()):
            yield self.items[item] if in_memory else item

    def _deal(self, items: Iterator[Any]) -> Iterator[Any]:
        rank, size = self.share.rank, self.share.size
        first: list[Any] = []
        while dealt := list(islice(items, size)):
            if len(dealt) < size:
                self.end_short(dealt)
                dealt += islice(cycle(first or list(dealt)), size - len(dealt) if self.last == "fill" else 0)
                if self.last == "drop":
                    return
            if self.last == "fill":
                first = first or list(dealt)
            if rank < len(dealt):
                yield dealt[rank]

    def end_short(self, dealt: list[Any]) -> None:
        """Take note of a last round that is too short."""

    def _drawn(self) -> Iterator[Any]:
        items = iter(self.items)
        if not self.block:
            yield from items
            return
        own = None
        while True:
            outside = rng_state()
            if own is not None:
                set_rng_state(own)
            block = list(islice(items, self.block))
            if own is not None:
                own = rng_state()
                set_rng_state(outside)
            else:
                own = rng_state()
            yield from block
            if len(block) < self.block:
                return


class ShardedBatchSampler(ShardedSampler):
    """Every n-th batch of a loader that can only be read as a whole.

    Attributes:
        spare: The first batch of a last round that was too short, also where this process got none of it.
    """

    def __init__(self, items: Any, share: DataShard, training: bool, name: str = "training") -> None:
        in_memory = isinstance(items, Sequence)
        draws_here = not in_memory and not getattr(items, "num_workers", 0)
        super().__init__(items, share, "drop" if training else "keep", share.size if draws_here else 0)
        self.name, self.spare = name, END
        if not in_memory and share.size > 1:
            say_once(
                f"{name.capitalize()} data: every process reads the whole {kind_of(items)} and keeps one batch in "
                f"{share.size}. To read less, shard in the data set itself (by trainer.global_rank and "
                "trainer.world_size) and use Trainer(use_distributed_sampler=False)."
            )

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.items, Sequence):
            yield from super().__iter__()
            return
        with _drawing_alike(self.share, {"global": rng_state()}, lambda state: set_rng_state(state["global"])):
            dealt = super().__iter__()
            first = next(dealt, END)
        if first is not END:
            yield first
            yield from dealt

    def end_short(self, dealt: list[Any]) -> None:
        if self.last == "drop":
            report.warn(
                f"The last {len(dealt)} {self.name} batches of the epoch are dropped: {self.share.size} processes take "
                f"{self.share.size} at a time.",
                report.PossibleUserWarning,
            )
        else:
            self.spare = self.items[dealt[0]] if isinstance(self.items, Sequence) else dealt[0]


def kind_of(loader: Any) -> str:
    """Return what a loader is, for messages."""
    data = users_own(getattr(loader, "dataset", None))
    return type(loader).__name__ if data is None else f"{type(loader).__name__} over {type(data).__name__}"


class IndexStream:
    """The indices that a loader's sampler draws, with a memory: which generators drew them, and where to begin.

    A sampler draws its permutation at the first `next`, inside of the generator below, whatever the number of workers.
    The state of the generators at that moment is kept; given back, it draws the same permutation, of which the first
    `skip` items are passed over without loading any data. With several processes it is the first one's state.

    Args:
        indices: A sampler or batch sampler.
        share: None when there is nobody to agree with: one process, or nothing random.
        data: The data set, whose own generators are not the sampler's.
        seeding: From what workers are seeded; None without workers. Then the items say where in the epoch they stand.
        place: The place of this process and their number, where the user has dealt the samples.
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
        self.skip: int | None = None  # None: draw anew
        self.pending: list[Any] = []  # what the saved run had drawn and not used, for its workers
        self._draws_late = _draws_late(indices)
        self._recent: deque[Any] = deque(maxlen=_RECENT)
        self._ready: list[Iterable[Any]] = []
        self._drawing: Iterator[Iterable[Any]] = iter(())
        self._drawn_so_far = 0
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
        return chain.from_iterable(self._parts(self._ready, self._drawing))  # then no Python of ours runs

    def _parts(self, ready: list[Any], drawing: Iterator[Iterable[Any]]) -> Iterator[Iterable[Any]]:
        yield from ready
        yield from drawing

    def come_to_place(self) -> None:
        """Draw what the saved run had drawn now, and not at the first item."""
        self._ready += islice(self._drawing, 1)

    def _drawn(self) -> Iterator[Iterable[Any]]:
        """Yield once: what the sampler draws from where it is to begin."""
        present = self._present()
        again, skip = self.state if self.skip is not None else None, self.skip or 0
        if again is not None:
            self._give_back(again)
        alike = None if again or self.share is None else _drawing_alike(self.share, present, self._give_back)
        pending, self.pending = self.pending, []
        with alike or nullcontext(present) as state:
            drawn, passed = iter(self.indices), skip + len(pending)
            deque(islice(drawn, passed), maxlen=0)
            first = [] if passed else list(islice(drawn, 1))  # most samplers draw all they draw at the first item
        if self.skip is None:
            self.state = state
        else:
            set_rng_state(present["global"])
        self.skip = None
        items: Iterator[Any] = chain(pending, first, drawn)
        self._recent.clear()
        self._drawn_so_far = skip
        if self._draws_late:
            items = self._remembered(items)
        if self.seeding is None:
            yield items
            return
        key, places = self.seeding.key(), self._places()
        yield (Placed(index, key, *places(number)) for number, index in enumerate(items, skip))

    def _places(self) -> Callable[[int], tuple[int, int]]:
        """Return a function of an item's number, which gives its first sample's place in the epoch and the next's."""
        own, (rank, size) = self.indices, self.place
        if isinstance(own, ShardedSampler):
            own, rank, size, by_sample = own.items, own.share.rank, own.share.size, False
        else:
            by_sample = True
        if not is_plain_batches(own):
            each = 1 if self.seeding is None or not self.seeding.in_batches else _LARGEST_BATCH
            return lambda number: ((number * size + rank) * each, size if each == 1 else 1)
        batch = own.batch_size
        if not by_sample:
            return lambda number: ((number * size + rank) * batch, 1)
        if isinstance(own.sampler, ShardedSampler):
            rank, size = own.sampler.share.rank, own.sampler.share.size
        return lambda number: (number * batch * size + rank, size)

    def _remembered(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._recent.append(item)
            self._drawn_so_far += 1
            yield item

    def drawn_ahead(self, used: int) -> list[Any]:
        """Return the items that were drawn for workers and not used, where a sampler draws as it is read.

        Args:
            used: How many items of this epoch were used.
        """
        count = self._drawn_so_far - used
        return list(self._recent)[-count:] if count > 0 else []

    def generator_states(self) -> list[Any]:
        """Return the states of the samplers' own generators, which go on from epoch to epoch."""
        return [state_of_generator(generator) for generator in self.generators]

    def set_generator_states(self, states: Sequence[Any]) -> None:
        """Take back what `generator_states` returned."""
        for generator, own in zip(self.generators, states, strict=False):
            set_generator_state(generator, own)

    def _present(self) -> dict[str, Any]:
        return {"global": rng_state(), "own": self.generator_states()}

    def _give_back(self, state: dict[str, Any]) -> None:
        set_rng_state(state["global"])
        self.set_generator_states(state["own"])


def stream(
    loader: Any,
    sequential: bool = False,
    share: DataShard | None = None,
    training: bool = True,
    name: str = "training",
    number: int = 0,
) -> Any:
    """Return a loader that reads like `loader`, or its part of it, and remembers its position; `loader` stays as it is.

    Args:
        loader: What the user gave. A plain DataLoader over a map-style data set is copied (shallowly: data set,
            workers' settings and sampler are shared) and its index sampler is seen through an :class:`IndexStream`.
        sequential: Take the samples in the data set's own order, whatever the sampler (`overfit_batches`).
        share: Deal among processes: samples, where the batches are made of them one after the other, else batches.
        training: Deal equal numbers to all. In an evaluation nothing is dealt twice and nothing is left out.
        name: Of the stage, for messages.
        number: Of the loader among those of the stage.

    Raises:
        MisconfigurationException: The loader is sharded by the user, into other parts than there are.
    """
    place = (0, 1)
    if share is not None and is_not_sharded(loader, share, name):
        place, share = (share.rank, share.size), None
    if not is_read_by_index(loader):
        if is_plain(loader) and _may_be_seeded(loader):
            loader = _with_seeds(copy.copy(loader), Seeding(name, number, loader.persistent_workers))
        return loader if share is None else ShardedBatchSampler(loader, share, training, name)
    attribute = "sampler" if loader.batch_sampler is None else "batch_sampler"
    indices = getattr(loader, attribute)
    if sequential:
        indices = _in_order(indices, attribute == "batch_sampler", loader.dataset, name)
    copied, seeding = copy.copy(loader), None
    if hasattr(copied, "_initial_iter_for_state_dict"):
        copied._initial_iter_for_state_dict = False  # noqa: SLF001  its iterator is the user's loader's
    if _may_be_seeded(loader):
        seeding = Seeding(name, number, loader.persistent_workers, attribute == "batch_sampler")
        _with_seeds(copied, seeding)
    if share is None:
        indices = IndexStream(indices, None, loader.dataset, seeding, place)
    else:
        draws = type(_sampler(indices) or indices) is not SequentialSampler
        indices = IndexStream(_dealt(indices, share, training), share if draws else None, loader.dataset, seeding)
    object.__setattr__(copied, attribute, indices)
    copied._iterator = None  # noqa: SLF001  persistent workers that the user has started read the user's own sampler
    return copied


def _in_order(indices: Any, in_batches: bool, data: Any, name: str) -> Any:
    """Return a sampler or batch sampler that takes the samples in the data set's order, where `indices` does not.

    Sharded samplers, fixed lists and custom batch samplers stay as they are.
    """
    sampler = _sampler(indices) if in_batches else indices
    if sampler is None or isinstance(sampler, (SequentialSampler, Sequence)) or _number(sampler, _SIZES) is not None:
        return indices
    report.warn(
        f"overfit_batches: the {name} loader shuffles ({type(sampler).__name__}); its samples are taken in the data "
        "set's order instead."
    )
    one_by_one = sampler.indices if isinstance(sampler, SubsetRandomSampler) else SequentialSampler(data)
    return BatchSampler(one_by_one, indices.batch_size, indices.drop_last) if in_batches else one_by_one


def is_plain(loader: Any) -> bool:
    """Whether `loader` is a DataLoader that is iterated as torch iterates it, with no position of its own."""
    return (
        isinstance(loader, DataLoader)
        and type(loader).__iter__ is DataLoader.__iter__  # else it may never ask the sampler that is put into a copy
        and not hasattr(loader, "state_dict")
    )


def is_read_by_index(loader: Any) -> bool:
    """Whether a position in `loader` is a number of indices: then no data are read to come there.

    So it is for torchdata's StatefulDataLoader too, when neither its data set nor the user gave it a state.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return False
    if type(loader).__iter__.__module__.startswith("torchdata.stateful_dataloader."):
        return not hasattr(loader.dataset, "state_dict") and getattr(loader, "next_iter_state", None) is None
    return is_plain(loader)


def _may_be_seeded(loader: Any) -> bool:
    return loader.num_workers > 0 and not isinstance(loader.dataset, (IterDataPipe, MapDataPipe))


def _with_seeds(copied: Any, seeding: Seeding) -> Any:
    """Let the workers of a copied loader be seeded by us."""
    kind: Any = type(copied)
    object.__setattr__(copied, "__class__", started_undisturbed(kind))
    copied.worker_init_fn = Undisturbed(WorkerStart(copied.worker_init_fn, seeding))
    object.__setattr__(copied, "dataset", in_worker(copied.dataset, seeding))
    copied._iterator = None  # noqa: SLF001  workers that the user has started are seeded otherwise
    return copied


def _dealt(indices: Any, share: DataShard, training: bool) -> Any:
    drops = bool(getattr(indices, "drop_last", False))
    last = "keep" if not training else "drop" if drops else "fill"
    if is_plain_batches(indices) and (training or not drops):  # what an evaluation drops is what one process drops
        dealt = ShardedSampler(indices.sampler, share, last, 0 if type(indices.sampler) in _DRAW_AT_ONCE else _BLOCK)
        return BatchSampler(dealt, indices.batch_size, indices.drop_last)
    return ShardedSampler(indices, share, last, 0 if type(_sampler(indices) or indices) in _DRAW_AT_ONCE else _BLOCK)


def _draws_late(indices: Any) -> bool:
    """Whether a sampler may draw from the global generators as it is read; what is sharded is drawn apart from them."""
    drawn = _sampler(indices) or indices
    return (
        not isinstance(indices, ShardedSampler)
        and not isinstance(drawn, ShardedSampler)
        and type(drawn) not in _DRAW_AT_ONCE
    )


def is_not_sharded(loader: Any, share: DataShard, name: str) -> bool:
    """Whether the loader stays as it is, because the user has sharded it or wants no sharding.

    Raises:
        MisconfigurationException: It is sharded into other parts than there are.
    """
    if not share.deals:
        return True
    sampler, batches, data = (getattr(loader, part, None) for part in ("sampler", "batch_sampler", "dataset"))
    for owner in (sampler, batches, getattr(batches, "sampler", None), data, loader):
        size, rank = _number(owner, _SIZES), _number(owner, _RANKS)
        if size is None or rank is None:
            continue
        if (rank, size) != (share.rank, share.size):
            kind = type(owner).__name__
            raise MisconfigurationException(
                f"The {name} loader has a {kind} for rank {rank} of {size}, but this process reads part {share.rank} "
                f"of {share.size}.",
                expected=f"num_replicas={share.size}, rank={share.rank}: the strategy's data_size and data_rank.",
                fix=f"leave the {kind} out: data are sharded without it; or Trainer(use_distributed_sampler=False).",
            )
        return True
    roots = {cls.__module__.split(".")[0] for cls in (*type(data).__mro__, *type(loader).__mro__)}
    if getattr(data, "_distributed", None) is None and roots.isdisjoint(_SHARD_THEMSELVES):
        return False
    say_once(f"{name.capitalize()} data: {type(data).__name__} shards itself, so its batches are read as they come.")
    return True


def _number(owner: Any, names: Iterable[str]) -> int | None:
    values = (getattr(owner, name, None) for name in names)
    return next((value for value in values if type(value) is int), None)


def is_dealt(loader: Any) -> bool:
    """Whether `loader` gives this process its part alone, as `stream` deals it."""
    streams = (getattr(loader, part, None) for part in ("batch_sampler", "sampler"))
    indices = [one.indices for one in streams if isinstance(one, IndexStream)]
    return isinstance(loader, ShardedSampler) or any(
        isinstance(x, ShardedSampler) or isinstance(_sampler(x), ShardedSampler) for x in indices
    )


def is_plain_batches(batches: Any) -> bool:
    """Whether a batch sampler makes its batches of samples one after the other, all of one size but the last."""
    own = type(batches)
    return own is BatchSampler or (own.__name__, own.__module__.split(".")[0]) == ("BatchSampler", "torchdata")


def _sampler(batches: Any) -> Any:
    return batches.sampler if is_plain_batches(batches) else None


def batch_size_of_loader(loader: Any) -> int | None:
    """Return how many samples a batch of `loader` has, when it is a DataLoader that says so."""
    batches = getattr(loader, "batch_sampler", None)
    given = getattr(loader, "batch_size", None)
    if given is None and is_plain_batches(getattr(batches, "indices", batches)):
        given = batches.batch_size  # type: ignore[union-attr]
    return given if type(given) is int else None


def with_smaller_batches(loader: Any, largest: int) -> Any:
    """Return `loader`, or a copy of it with batches of `largest` samples when its own are larger."""
    size = batch_size_of_loader(loader)
    if size is None or size <= largest or not isinstance(loader, DataLoader):
        return loader
    given: Any = loader.batch_sampler
    copied = copy.copy(loader)
    object.__setattr__(copied, "batch_sampler", BatchSampler(given.sampler, largest, given.drop_last))
    object.__setattr__(copied, "batch_size", largest)
    copied._iterator = None  # noqa: SLF001  persistent workers that the user has started read the larger batches
    return copied
