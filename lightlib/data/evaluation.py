"""EvalData: the batches of a validation, test or prediction, and this process's share of them."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import count
from typing import Any

import torch
from torch.utils.data import DataLoader

from lightlib.data.arrays import as_tensors, may_hold_arrays, with_tensors
from lightlib.data.combined import length
from lightlib.data.gather import batches_of
from lightlib.data.generators import set_states, states_of
from lightlib.data.lengths import (
    by_name,
    check_names,
    is_length_exact,
    limited,
    nothing_read,
    numbered_endings,
    refuse_other_loaders,
)
from lightlib.data.noted_indices import NotedIndices
from lightlib.data.prefetch import END
from lightlib.data.resumable_loader import resumable_loader, stop_workers
from lightlib.data.seed import isolate_rng
from lightlib.data.sharding import DataShard, ShardedBatchSampler, is_sharded_by_user
from lightlib.data.train import Move
from lightlib.data.train_loaders import combine
from lightlib.data.training_source import generators_of, set_epoch, start_persistent_workers
from lightlib.data.workers import begin_pass


class EvalData:
    """The batches of a validation, test or prediction: all loaders, one after the other or together.

    With several processes each reads its share: no sample twice and none left out, so that some have fewer batches.

    Args:
        limit: Of each loader; or a dict of limits by the names of loaders.
        share: The share that this process reads; None with one process.
        lockstep: Run equally many steps on every process. Those without a batch of their own call `dummy_step`.
        epoch: Returns the epoch of the training, which workers' random numbers and samplers depend on.
        sequential: Take the samples in the data set's order (`overfit_batches`).
        converts: Whether NumPy arrays in batches become tensors.
        notes_indices: Whether to note which samples each batch has.
        numbered: Whether names of metrics end with a loader's number although the loaders have names.

    Attributes:
        noted: The samples of the batches read so far, if they are noted.
        given: The user's loaders in one list.
        loaded_at: The epoch in which the loaders were requested.
        num_batches: Batches of each loader on this process, after the limit; `inf` when unknown, 0 while left out.
        names: The names of the loaders, which are the keys of a dict; empty if they have none.
        endings: Of the names of metrics, by loader: ``"/clean"``, or ``"/dataloader_idx_0"``; one alone may have none.
        dummy_step: Runs a batch (with its number and the loader's) and discards the result; set by the run.
    """

    def __init__(
        self,
        loaders: Any,
        limit: float | Mapping[str, float],
        move: Move | None,
        argument: str,
        name: str,
        share: DataShard | None = None,
        lockstep: bool = False,
        epoch: Callable[[], int] = int,
        sequential: bool = False,
        converts: bool = False,
        loaded_at: int = 0,
        notes_indices: bool = False,
        numbered: bool = False,
    ) -> None:
        self.loaded_at = loaded_at
        self.loaders, self._move, self.name = loaders, move, name
        self._share, self._lockstep, self._converts = share, lockstep and share is not None, converts
        self.dummy_step: Callable[[Any, int, int], None] | None = None
        combined = combine(loaders, "sequential")
        self.names = combined.names
        if not numbered:
            check_names(self.names, name)
        limits = (
            by_name(argument, limit, self.names, name, 1.0)
            if isinstance(limit, Mapping) and combined.flattened
            else [limit] * len(combined.flattened)
        )
        self._epoch, self._seed = epoch, torch.initial_seed()
        self.given, self._one_by_one = combined.flattened, combined.mode == "sequential"
        self.read = read = [
            resumable_loader(loader, sequential, share if self._one_by_one else None, False, name, number)
            if any((sequential, notes_indices, share and self._one_by_one, getattr(loader, "num_workers", None)))
            else loader
            for number, loader in enumerate(self.given)
        ]
        self.noted: NotedIndices | None = None
        if notes_indices:  # the batches of loaders that are read together have no indices of their own
            self.noted = NotedIndices(read if self._one_by_one else [None])
        self._at_start: dict[str, Any] | None = None
        self._counted: Counter[int] = Counter()  # batches by loader
        self.generators = [list(generators_of(loader).values()) for loader in self.given]
        self.combined = combined.with_loaders(read)
        own_limits = combined.limits or [math.inf] * len(read)
        totals = [min(length(loader), loader_limit) for loader, loader_limit in zip(read, own_limits, strict=True)]
        most = totals
        if share is not None:
            if not self._one_by_one:
                by_user = any(is_sharded_by_user(loader, share, name) for loader in self.given)
                # the items are sharded; sharded separately, the loaders would no longer match
                self._together = self.combined if by_user else ShardedBatchSampler(self.combined, share, False, name)
                if not by_user:
                    totals = [n if n == math.inf else len(range(share.rank, int(n), share.size)) for n in totals]
            all_processes = share.gather((totals, self._seed))
            refuse_other_loaders([len(lengths) for lengths, _ in all_processes], name)
            most = [max(lengths) for lengths in zip(*(each for each, _ in all_processes), strict=True)]
            self._seed = all_processes[0][1]
        of_names = self.names if isinstance(limit, Mapping) else [None] * len(limits)
        self._most = [
            limited(total, loader_limit, argument, name, loader)
            for total, loader_limit, loader in zip(most, limits, of_names, strict=True)
        ]
        self.num_batches = [min(total, all_have) for total, all_have in zip(totals, self._most, strict=True)]
        self._all_batches, self._left_out = self.num_batches, frozenset[Any]()
        named = () if numbered else tuple(f"/{loader_name}" for loader_name in self.names)
        self.endings = named or numbered_endings(self.num_loaders)
        if self._share is None or self._one_by_one:
            self.combined.limit_to(self.num_batches)

    def use_dummy_step(self, step: Callable[[Any, int, int], None]) -> None:
        """Run `step` where this process has no batch and another rank has one."""
        self.dummy_step = step

    @property
    def is_read(self) -> list[bool]:
        """Whether batches of each loader are read, on any process: neither is it left out, nor is its limit 0."""
        names = self.names or [None] * len(self._most)
        return [bool(most) and name not in self._left_out for most, name in zip(self._most, names, strict=True)]

    @property
    def reads_one_by_one(self) -> bool:
        """Whether a batch comes from one loader; otherwise it is combined of one batch of each."""
        return self._one_by_one

    @property
    def num_loaders(self) -> int:
        return len(self.combined.flattened) if self._one_by_one else 1

    def leave_out(self, names: Collection[str]) -> None:
        """Do not read the loaders with these names, until the next call."""
        self._left_out = frozenset(names)
        numbers = zip(self._all_batches, self.names or [None] * len(self._all_batches), strict=True)
        self.num_batches = [0 if name in self._left_out else number for number, name in numbers]

    def start_workers(self) -> None:
        """Start persistent workers, as the run did that is being resumed."""
        for loader in self.read:
            start_persistent_workers(loader, self._seed)

    def close(self) -> None:
        for loader, user_loader in zip(self.read, self.given, strict=True):
            stop_workers(loader, user_loader)

    def count(self, loader: int) -> int:
        """Return how many batches of a loader were counted before, and count one more."""
        self._counted[loader] += 1
        return self._counted[loader] - 1

    def note(self) -> None:
        """Record the state in which an evaluation begins."""
        self._at_start = self.state_dict()

    def state_dict(self, at_start: bool = False) -> dict[str, Any]:
        """Return the states of the loaders' own generators, which continue from one evaluation to the next.

        Args:
            at_start: As they were when the present evaluation began: a resumed run begins it again.
        """
        if at_start and self._at_start is not None:
            return self._at_start
        state = {"seed": self._seed, "generators": list(map(states_of, self.generators))}
        return {**state, "counted": dict(self._counted)} if self._counted else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._seed, self._counted = state["seed"], Counter(state.get("counted", {}))
        for generators, states in zip(self.generators, state["generators"], strict=False):
            set_states(generators, states)

    def _begin(self, loader: int) -> Iterator[Any]:
        begin_pass(self.read[loader], self._seed, self._epoch())
        return self._batches_of(self.combined.flattened[loader], self.given[loader])

    def _batches_of(self, loader: Any, user_loader: Any) -> Iterator[Any]:
        batches = batches_of(loader)
        return with_tensors(batches) if self._converts and may_hold_arrays(user_loader) else batches

    def batches(self, limits: list[float] | None = None) -> Iterator[tuple[Any, int, int]]:
        """Yield (batch on the device, batch_idx, dataloader_idx), at most `limits` of each loader."""
        batches = self._batches(limits)
        return batches if self.noted is None else self.noted.follow(batches)

    def _batches(self, limits: list[float] | None) -> Iterator[tuple[Any, int, int]]:
        limits = self.num_batches if limits is None else limits
        if self._share is None:
            self.combined.limit_to(limits)
        for user_loader in self.given:
            set_epoch(user_loader, self._epoch(), data=False)
        move, begun = self._move, set()
        shared = None if self._share is None else self._shared(limits, self._share)
        for batch, i, loader in self.combined.read(self._begin) if shared is None else shared:
            begun.add(loader)
            yield (batch if move is None else move(batch, loader)), i, loader
        indices = range(self.num_loaders) if self.num_loaders > 1 else (0,) if min(limits, default=0) > 0 else ()
        for loader in indices:
            another_read = self._share is not None and getattr(self._source(loader), "spare", END) is not END
            if loader not in begun and limits[loader] > 0 and not another_read:
                where = f"position {loader} of {self.num_loaders}" if self.num_loaders > 1 else ""
                raise nothing_read(self.name, repr(self.names[loader]) if self.names else where)

    def _source(self, loader: int) -> Any:
        return self.combined.flattened[loader] if self._one_by_one else self._together

    def _shared(self, limits: list[float], share: DataShard) -> Iterator[tuple[Any, int, int]]:
        if not self._one_by_one:
            together = self.combined.with_loaders(self.read)
            together.limit_to(limits)
            limits = [length(together)]
        all_limits = share.gather(limits) if self._lockstep else [limits]
        for index, limit in enumerate(limits):
            if self.names and self.names[index] in self._left_out:
                continue  # on all processes
            loader, last = self._source(index), END
            steps = max(each[index] for each in all_limits)
            agrees = self._lockstep and not (self._one_by_one and is_length_exact(loader))
            for read in self.read[index : index + 1] if self._one_by_one else self.read:
                begin_pass(read, self._seed, self._epoch())
            iterator = self._batches_of(loader, self.given[index] if self._one_by_one else loader)
            if not limit and self._most[index]:  # all processes draw the random numbers of the first `next` together
                next(iterator, END)
            for i in count():
                if i >= steps:
                    break
                batch = next(iterator, END) if i < limit else END
                if agrees and all(share.gather(batch is END)):
                    break
                if batch is not END:
                    last = batch
                    yield self._batch_of(batch), i, index
                elif self.dummy_step is not None and self._lockstep:
                    last = self._first_batch(index) if last is END else last
                    batch = self._batch_of(last)
                    self.dummy_step(batch if self._move is None else self._move(batch, index), i, index)
                else:
                    break

    def _batch_of(self, item: Any) -> Any:
        return item if self._one_by_one else item[0]

    def _first_batch(self, index: int) -> Any:
        spare = getattr(self._source(index), "spare", END)
        if spare is not END:
            return as_tensors(spare) if self._converts else spare
        loader = self.given[index] if self._one_by_one else self.combined
        if isinstance(loader, DataLoader):
            loader = copy.copy(loader)
            loader._iterator = None  # noqa: SLF001  workers that the user has started are at another position
        with isolate_rng():
            first = next(iter(loader), END)
        if first is END:
            raise nothing_read(self.name, "")
        return as_tensors(first) if self._converts else first
