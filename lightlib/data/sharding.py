"""Sharding: samplers that give each process its share of a loader's samples or batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from torch.utils.data import BatchSampler

from lightlib import report
from lightlib.data.prefetch import END
from lightlib.data.seed import rng_state, set_rng_state
from lightlib.data.streams.adapter import adapter_of
from lightlib.data.streams.loaders import with_dataset
from lightlib.data.workers import unwrapped
from lightlib.errors import MisconfigurationException, owner
from lightlib.launch.watch.watch import Watch

_WORLD_SIZES, _RANKS = ("num_replicas", "_num_replicas", "world_size", "_world_size"), ("rank", "_rank")


@dataclass(frozen=True)
class DataShard:
    """The share of the data that this process reads, and how the processes communicate about it.

    Attributes:
        rank, size: The rank among those that read different batches. Processes with the same rank read the same.
        broadcast: Returns the first process's object on every process.
        gather: Returns the objects of all processes, in the order of their ranks.
        deals: Whether lightlib shards the loaders. False: every loader is read unchanged.
        ends: Compares after how many batches the data of each process end; None without a watch.
    """

    rank: int
    size: int
    broadcast: Callable[[Any], Any]
    gather: Callable[[Any], list[Any]]
    deals: bool = True
    ends: Watch | None = None


@contextmanager
def shared_rng(share: DataShard, present: dict[str, Any], restore: Callable[[Any], None]) -> Iterator[dict[str, Any]]:
    """Draw the first process's random numbers on all processes; afterwards each process continues with its own."""
    state = share.broadcast(present)
    restore(state)
    yield state
    if not state["global"]["torch"].equal(present["global"]["torch"]):
        set_rng_state(present["global"])


class ShardedSampler:
    """Every n-th of some items, starting at this process's rank.

    Items are read in rounds of one per process, so that all processes have read equally far.

    Args:
        items: A sampler, a batch sampler or a sequence.
        last: How an incomplete last round ends: ``"fill"`` repeats the first items, as DistributedSampler does,
            ``"drop"`` drops it, and ``"keep"`` keeps it, so that some processes have one item less.
        block: How many items to draw at a time with the global generators in the state in which the previous block
            left them; 0 when the items draw nothing after the first. Other code on each process draws in between.
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
        for item in self._own_items(iter(range(len(self.items))) if in_memory else self._drawn()):
            yield self.items[item] if in_memory else item

    def _own_items(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield this process's item of each round."""
        rank, size = self.share.rank, self.share.size
        first: list[Any] = []
        while items_of_round := list(islice(items, size)):
            if len(items_of_round) < size:
                self.on_incomplete_round(items_of_round)
                missing = size - len(items_of_round) if self.last == "fill" else 0
                items_of_round += islice(cycle(first or list(items_of_round)), missing)
                if self.last == "drop":
                    return
            if self.last == "fill":
                first = first or list(items_of_round)
            if rank < len(items_of_round):
                yield items_of_round[rank]

    def on_incomplete_round(self, items: list[Any]) -> None:
        """Called with the items of a last round that is too short."""

    def _drawn(self) -> Iterator[Any]:
        """Yield all items; draw them in blocks, isolated from the random numbers that other code draws."""
        items = iter(self.items)
        if not self.block:
            yield from items
            return
        state = None
        while True:
            outside = rng_state()
            if state is not None:
                set_rng_state(state)
            block = list(islice(items, self.block))
            if state is not None:
                state = rng_state()
                set_rng_state(outside)
            else:
                state = rng_state()
            yield from block
            if len(block) < self.block:
                return


class ShardedBatchSampler(ShardedSampler):
    """Every n-th batch of a loader of which each process must read all batches.

    Attributes:
        spare: The first batch of an incomplete last round, also on processes that got none of it.
    """

    def __init__(self, items: Any, share: DataShard, training: bool, name: str = "training") -> None:
        in_memory = isinstance(items, Sequence)
        draws_here = not in_memory and not getattr(items, "num_workers", 0)
        super().__init__(items, share, "drop" if training else "keep", share.size if draws_here else 0)
        self.name, self.spare = name, END
        if not in_memory and share.size > 1:
            report.info_once(
                f"{name.capitalize()} data: every process reads the entire {kind_of(items)} and keeps one batch in "
                f"{share.size}. To read less, shard in the data set itself (by trainer.global_rank and "
                f"trainer.world_size) and use {owner().loaders}use_distributed_sampler=False)."
            )

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.items, Sequence):
            yield from super().__iter__()
            return
        with shared_rng(self.share, {"global": rng_state()}, lambda state: set_rng_state(state["global"])):
            batches = super().__iter__()
            first = next(batches, END)
        if first is not END:
            yield first
            yield from batches

    def on_incomplete_round(self, items: list[Any]) -> None:
        if self.last == "drop":
            report.warn(
                f"The last {len(items)} {self.name} batches of the epoch are dropped: {self.share.size} processes take "
                f"{self.share.size} at a time.",
                report.PossibleUserWarning,
            )
        else:
            self.spare = self.items[items[0]] if isinstance(self.items, Sequence) else items[0]


def kind_of(loader: Any) -> str:
    """Return a loader's type and that of its data set, for messages."""
    data = unwrapped(getattr(loader, "dataset", None))
    return type(loader).__name__ if data is None else f"{type(loader).__name__} over {type(data).__name__}"


def is_sharded_by_user(loader: Any, share: DataShard, name: str) -> bool:
    """Whether the loader is read unchanged, because the user has sharded it or has turned sharding off."""
    if not share.deals:
        return True
    attributes = ("sampler", "batch_sampler", "dataset")
    sampler, batches, data = (getattr(loader, attribute, None) for attribute in attributes)
    for holder in (sampler, batches, getattr(batches, "sampler", None), data, loader):
        size, rank = world_size_of(holder), _first_int(holder, _RANKS)
        if size is None or rank is None:
            continue
        if (rank, size) != (share.rank, share.size):
            kind = type(holder).__name__
            raise MisconfigurationException(
                f"The {name} loader has a {kind} for rank {rank} of {size}, but this process reads shard {share.rank} "
                f"of {share.size}.",
                expected=f"num_replicas={share.size}, rank={share.rank}: the strategy's data_size and data_rank.",
                fix=f"remove the {kind}: lightlib shards the data without it; or use "
                f"{owner().loaders}use_distributed_sampler=False).",
            )
        return True
    if not _shards_itself(loader, name):
        return False
    class_name = type(loader if data is None else unwrapped(data)).__name__
    report.info_once(f"{name.capitalize()} data: {class_name} shards itself, so lightlib does not shard it again.")
    return True


def _shards_itself(loader: Any, name: str) -> bool:
    """Whether the data set of a loader shards itself; a mixture or a packed stream does if its streams do."""
    data, adapter = getattr(loader, "dataset", None), adapter_of(loader)
    streams = getattr(data, "underlying_streams", None)
    if streams is None:
        return getattr(data, "_distributed", None) is not None or (
            adapter is not None and adapter.shards_itself(loader)
        )
    answers = {_shards_itself(with_dataset(loader, stream), name): type(stream).__name__ for stream in streams}
    if len(answers) > 1:
        raise MisconfigurationException(
            f"The {name} data are a {type(data).__name__} of a {answers[True]}, which shards itself, and of a "
            f"{answers[False]}, which does not.",
            expected="that all sources shard themselves, or none.",
            fix="the streams of one library, or without its splitting by rank.",
        )
    return True in answers


def world_size_of(sampler: Any) -> int | None:
    """Return the world size of a sampler that shards; None for any other object."""
    return _first_int(sampler, _WORLD_SIZES)


def _first_int(owner: Any, names: Iterable[str]) -> int | None:
    values = (getattr(owner, name, None) for name in names)
    return next((value for value in values if type(value) is int), None)


def is_plain_batches(batches: Any) -> bool:
    """Whether a batch sampler groups consecutive samples into batches of one size, except for the last."""
    kind = type(batches)
    return kind is BatchSampler or (kind.__name__, kind.__module__.split(".")[0]) == ("BatchSampler", "torchdata")


def inner_sampler(batches: Any) -> Any:
    """Return the sampler of a plain batch sampler; None for any other object."""
    return batches.sampler if is_plain_batches(batches) else None
