"""TrainLoaders: the training loaders of a run, the sources that read them, and the length of an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lightlib import report
from lightlib.data.combined import CombinedLoader, Mode, length
from lightlib.data.lengths import by_rank, is_length_exact, limited, refuse_other_loaders
from lightlib.data.resumable_loader import (
    batch_size_of_loader,
    is_sharded,
    resumable_loader,
    stop_workers,
    with_smaller_batches,
)
from lightlib.data.sharding import DataShard, inner_sampler
from lightlib.data.streams.adapter import adapter_of
from lightlib.data.streams.shards import Shards
from lightlib.data.training_source import Source, describe, warn_if_not_resumable
from lightlib.errors import MisconfigurationException
from lightlib.launch.watch.watch import Watch


def combine(loaders: Any, mode: Mode) -> CombinedLoader:
    """Return one loader or a collection of them as a CombinedLoader; a CombinedLoader is returned unchanged."""
    return loaders if isinstance(loaders, CombinedLoader) else CombinedLoader(loaders, mode)


def full_batches(
    combined: CombinedLoader, one_by_one: bool
) -> tuple[list[int | None], Callable[[Any], list[Any]] | None]:
    """Return the size of each loader's full batches on this process, and a function that takes combined batches apart.

    Args:
        one_by_one: Whether each item is the batch of one loader, and comes with the loader's number.
    """
    sizes = [_full_batch(loader) for loader in combined.flattened]
    if one_by_one:
        return sizes, None
    if combined.mode == "sequential":  # whose items do not have the number
        return sizes[:1] if len(set(sizes)) == 1 else [], None
    return sizes, combined.batches_in


def _full_batch(loader: Any) -> int | None:
    """Return how many samples a full batch of this process has: fewer than the batch size if the data are fewer."""
    size = batch_size_of_loader(loader)
    batches = getattr(loader, "batch_sampler", None)
    sampler = inner_sampler(getattr(batches, "indices", batches))
    return size if size is None or sampler is None else int(min(size, length(sampler)))


def _shards(loader: Any, sequential: bool, share: DataShard | None, number: int) -> Shards | None:
    """Return the shards of a loader, if its data set shards itself."""
    adapter = adapter_of(loader)
    if adapter is None or not adapter.shards_itself(loader) or (share is not None and not share.deals):
        return None
    rank, size = (0, 1) if share is None else (share.rank, share.size)

    def of_rank(rank: int, size: int) -> Any:
        place = DataShard(rank, size, broadcast=lambda value: value, gather=lambda value: [value])
        return resumable_loader(loader, sequential, place, number=number)

    resizes = adapter.resizes_itself(loader)
    reads_any = not resizes and adapter.of_rank(loader, 0, size + 1) is not None
    return Shards(rank, size, resizes, of_rank if reads_any else None)


class TrainLoaders:
    """The training loaders that the user returned, read as one.

    Args:
        largest: The largest batch size; larger batches become smaller ones.
        number: Of the first loader, among those whose workers must not draw the same random numbers.
        converts: Whether NumPy arrays in batches become tensors.
        stops_at_length: Whether an epoch ends at the last batch of a known length, without a look past it.

    Attributes:
        sources: The source that reads each of them, in the same order.
        num_batches: Batches per epoch on this process, after the limit; `inf` when unknown. Equal on all processes.
        promised: The number of batches that the loaders' lengths promise; `inf` when one has none.
        is_single: Whether there is one loader, whose batches are read unchanged.
        is_complete: Whether an epoch reads this one loader to its end.
        length_is_exact: Whether `num_batches` is certain; else batches are read ahead to find the last one.
        agrees: Whether all processes agree before each batch whether each has one more.
        ends: Compares where the processes' data end, if they do not agree before each batch.
        is_stateful: Whether a loader keeps its position itself.
    """

    def __init__(
        self,
        loaders: Any,
        limit: float,
        sequential: bool,
        share: DataShard | None,
        largest: int | None,
        number: int = 0,
        converts: bool = False,
        stops_at_length: bool = False,
    ) -> None:
        self.loaders, self._share, self._limit = loaders, share, limit
        combined = combine(loaders, "max_size_cycle")
        self.is_single = len(combined.flattened) == 1 and combined.iterables is combined.flattened[0]
        self.given = user_loaders = combined.flattened
        if largest is not None:
            user_loaders = [with_smaller_batches(loader, largest) for loader in user_loaders]
        read = [resumable_loader(loader, sequential, share, number=i) for i, loader in enumerate(user_loaders, number)]
        self.combined = combined.with_loaders(read)
        shards = [_shards(loader, sequential, share, number=i) for i, loader in enumerate(user_loaders, number)]
        self.sources = [
            Source(loader, users, converts, of) for loader, users, of in zip(read, user_loaders, shards, strict=True)
        ]
        warn_if_not_resumable(user_loaders)
        self.seed = torch.initial_seed()
        total = length(read[0]) if self.is_single else length(self.combined)
        if share is None:
            self.num_batches = limited(total, limit, "limit_train_batches", "training")
        else:
            self.num_batches, self.seed = self._agreed_length(total, user_loaders, share)
        self.promised = math.inf if math.inf in map(length, read) else total
        self.length_is_exact = all(map(is_length_exact, read)) and self.num_batches != math.inf
        self.agrees = share is not None and not self.length_is_exact and not all(map(is_sharded, read))
        if self.agrees:
            report.info_once(
                "Training data: the lengths of the loaders are unknown, so before each batch all processes agree "
                "whether each has one more (one small collective). An epoch ends with the shortest."
            )
        self.ends: Watch | None = None
        if share is not None and not self.length_is_exact and not self.agrees:
            self.ends = share.ends
        self.is_stateful = any(source.has_state for source in self.sources)
        stops = stops_at_length and self.length_is_exact and not self.is_stateful
        self.is_complete = self.is_single and self.num_batches == total and not stops

    def _agreed_length(self, total: float, user_loaders: list[Any], share: DataShard) -> tuple[float, int]:
        """Return the number of batches and the seed of the first process."""
        all_processes = share.gather((len(user_loaders), total, self.seed))
        refuse_other_loaders([number for number, *_ in all_processes], "training")
        for shard, loader in zip(self.combined.flattened, user_loaders, strict=True):
            if length(shard) == 0 and length(loader) > 0:
                raise MisconfigurationException(
                    f"The training loader has {length(loader)} batches for {share.size} processes, which leaves none "
                    "for each.",
                    expected=f"at least one batch on each of the {share.size} processes.",
                    fix="a smaller batch_size, fewer devices, or drop_last=False.",
                )
        lengths = [limited(each, self._limit, "limit_train_batches", "training") for _, each, _ in all_processes]
        if len(set(lengths)) > 1:
            least = min(lengths)
            raise MisconfigurationException(
                f"The processes have different numbers of training batches: {by_rank(lengths)}.",
                expected="the same number on every rank: when one has fewer, the other ranks wait for it forever.",
                fix=(f"Trainer(limit_train_batches={least}), or " if 0 < least < math.inf else "")
                + "shards of equal size (drop_last=True, padded samplers), or give every rank the full data and let "
                "Trainer(use_distributed_sampler=True) shard them.",
            )
        return lengths[0], all_processes[0][2]

    @property
    def size(self) -> int:
        """The number of processes that read different batches."""
        return 1 if self._share is None else self._share.size

    @property
    def may_prefetch(self) -> bool:
        """Whether workers read every loader, and no state or agreement depends on the position of each batch."""
        with_workers = all(getattr(loader, "num_workers", 0) for loader in self.combined.flattened)
        return with_workers and not self.is_stateful and not self.agrees

    @property
    def is_sharded(self) -> bool:
        """Whether one state is right on every process: all draw the same, and each takes its shard."""
        return self._share is None or all(map(is_sharded, self.combined.flattened))

    def batch_sizes(self) -> list[int | None]:
        """Return how many samples of each loader are in a batch of this process, where that is known."""
        return [batch_size_of_loader(loader) for loader in self.combined.flattened]

    def taken_at_once(self) -> list[int]:
        """Return how many samples of each loader (batches, if their size is unknown) all processes take together."""
        return [(size or 1) * self.size for size in self.batch_sizes()]

    def samples(self, batches: int) -> int | None:
        """Return how many samples all processes took in so many batches, when the loader's batch size is known."""
        loader = self.combined.flattened[0] if self.is_single else None
        size = getattr(loader, "batch_size", None)
        if size is None:
            return None
        total = length(getattr(loader, "sampler", None)) * (1 if is_sharded(loader) else self.size)
        return int(min(batches * size * self.size, total))

    def states(self) -> list[Any]:
        """Return the states of loaders that keep their position themselves."""
        return [source.loader_state() for source in self.sources] if self.is_stateful else []

    def describe(self) -> dict[str, Any]:
        """Return a description of the data, as plain values, to compare with that of another run."""
        loaders = [
            describe(user_loader, length(read))
            for user_loader, read in zip(self.given, self.combined.flattened, strict=True)
        ]
        batches = None if self.num_batches == math.inf else int(self.num_batches)
        return {"loaders": loaders, "batches": batches, "processes": self.size}

    def position_of(self, state: dict[str, Any]) -> int:
        """Return the number of batches to skip here to continue from a state, which other processes may have saved."""
        done, before = int(state["batches"]), state.get("size", 1)
        if not done or (before == self.size and not state.get("resized")):
            return done
        kept = state.get("kept", 0)  # only ranks that read the same shards have that batch
        done -= kept
        if state.get("exhausted") and not kept and self.num_batches != math.inf:
            return int(self.num_batches)
        then, now = state.get("taken_at_once", [before]), self.taken_at_once()
        if len(then) != len(now):
            then, now = [before], [self.size]
        elif self.combined.mode == "sequential" and state.get("place"):
            return self._position_in_sequence(state["place"][1], then)
        position = int(min(done * old // new for old, new in zip(then, now, strict=True)))
        repeated = max(done * old - position * new for old, new in zip(then, now, strict=True))
        if repeated and not self.is_stateful:
            unit = "samples" if self.batch_sizes()[0] else "batches"
            report.warn(
                f"The checkpoint was written within an epoch, after {done} batches on each of {before} processes. "
                f"{self.size} processes take {now[0]} {unit} at a time, and no multiple of that ends exactly there: "
                f"{repeated} {unit} of this epoch are seen a second time.",
                report.PossibleUserWarning,
            )
        return position

    def _position_in_sequence(self, read: Sequence[int], then: Sequence[int]) -> int:
        """Return the position in loaders of which each is read to its end, where the last batch may be smaller."""
        last = max((number for number, batches in enumerate(read) if batches), default=0)
        now = self.taken_at_once()
        done = sum(length(loader) for loader in self.combined.flattened[:last])
        return int(done + min(read[last] * then[last] // now[last], length(self.combined.flattened[last])))

    def stop_workers(self) -> None:
        for read, user_loader in zip(self.combined.flattened, self.given, strict=True):
            stop_workers(read, user_loader)
