"""Source: a training loader, the state that its batches depend on, and its return to a position."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from time import perf_counter
from typing import Any

from torch.utils.data import DataLoader

from lightlib import report
from lightlib.data.arrays import may_hold_arrays, with_tensors
from lightlib.data.combined import length
from lightlib.data.gather import batches_of
from lightlib.data.generators import (
    generators_in,
    present_state,
    set_generator_state,
    set_present_state,
    set_states,
    states_of,
)
from lightlib.data.index_stream import IndexStream
from lightlib.data.prefetch import END
from lightlib.data.sharding import ShardedSampler, is_plain_batches, kind_of
from lightlib.data.streams.adapter import adapter_of
from lightlib.data.streams.shards import Shards
from lightlib.data.workers import begin_pass, unwrapped

SAMPLER_OF_STREAMS = "_InfiniteConstantSampler"
_COMPARED = {"kind": "kind", "length": "samples", "sampler": "sampler"}
LONG = 60.0  # seconds that a return to a position may take before the user is warned
_PARTS = ("dataset", "sampler", "batch_sampler", "generator", "collate_fn")


def generators_of(loader: Any) -> dict[str, Any]:
    """Return the random generators that a loader, its samplers and its data set hold, by attribute path."""
    if not isinstance(loader, DataLoader):
        return generators_in({"loader": loader})
    return generators_in({name: getattr(loader, name, None) for name in _PARTS})


class Source:
    """One loader of an epoch.

    Loaders return to a position in three ways: those that are read by index draw the same order again and skip the
    indices that were used; those with a state of their own load it; any other loader is read again from the start, with
    the random numbers of that time.

    Args:
        loader: The loader that is read: the user's, or our copy of it.
        given: The user's loader.
        converts: Whether NumPy arrays in batches become tensors.
        shards: The shards of all ranks, if the data set shards itself and cannot resume with another number of ranks.

    Attributes:
        began: The generators' state when the present pass began.
        turn: How many passes of this epoch it has ended.
    """

    def __init__(self, loader: Any, given: Any, converts: bool = False, shards: Shards | None = None) -> None:
        self.loader, self._converts = loader, converts and may_hold_arrays(given)
        self._shards, self._adapter = shards, adapter_of(given)
        self._saved_by: int | None = None
        self._sharded_for: int | None = None  # the ranks that began this epoch, if they were more or fewer
        samplers = (getattr(loader, name, None) for name in ("batch_sampler", "sampler"))
        self.stream = next((sampler for sampler in samplers if isinstance(sampler, IndexStream)), None)
        self.generators = list(generators_of(given).values())
        drawn = () if self.stream is None else tuple(map(id, self.stream.generators))
        self._not_in_stream = [i for i, generator in enumerate(self.generators) if id(generator) not in drawn]
        has_methods = (hasattr(loader, name) for name in ("state_dict", "load_state_dict"))
        self.has_state = self.stream is None and all(has_methods)
        self.has_state &= self._adapter is None or self._adapter.keeps_position(given)
        self.given = given
        self.is_begun = False
        self.turn = 0
        self._began: dict[str, Any] | None = None
        self._before: dict[str, Any] | None = None
        self._ready: Iterator[Any] | None = None
        self._loaded: Any = None
        self.seed = self.epoch = 0

    @property
    def draws_here(self) -> bool:
        """Whether reading may draw from the generators of this process, at each batch."""
        return not isinstance(self.loader, Sequence) and not getattr(self.loader, "num_workers", 0)

    # reading
    def start_epoch(self, seed: int, epoch: int) -> None:
        """Set the epoch, also of samplers and data sets that have `set_epoch`."""
        set_epoch(self.given, epoch, data=not self.has_state or _ignores_epochs(self.given))
        self.seed, self.epoch, self.turn = seed, epoch, -1
        self._began = self._before = self._sharded_for = None
        self._start_stream(self.loader)
        if self.stream is not None:
            self.stream.start_epoch()

    def begin(self) -> Iterator[Any]:
        """Iterate from the start: at the beginning of an epoch, or again within it."""
        self._next_pass(self.turn + 1)
        if self.stream is None:
            self._began = present_state(self.generators)
        self._sharded_for = None
        iterator, self._ready = self._ready, None
        return self._iterate() if iterator is None else iterator

    def begin_at(self, batches: int, turn: int, saved: Mapping[str, Any] | None) -> Iterator[Any]:
        """Iterate from the position of a saved run. The global generators change: isolate them."""
        self._next_pass(turn)
        saved = saved or {}
        size = saved.get("sharded_for", self._saved_by)
        if self._shards is not None and not self._shards.resizes and size not in (None, self._shards.size):
            if self._shards.loader is None:
                warn_of_other_ranks(self.given, size, self._shards.size)
            else:
                self._sharded_for = size
        began = saved.get("began")
        if self.stream is not None:
            self.stream.resume_at(batches, began, saved.get("pending", ()))
            iterator = self._iterate()  # may draw a seed, as it did in the saved run
            if batches or began is not None:
                self.stream.draw_now()
            for i in self._not_in_stream if began is not None else range(len(self.generators)):
                if i < len(saved.get("generators", ())):
                    set_generator_state(self.generators[i], saved["generators"][i])
            return iterator
        if began is not None:
            set_present_state(self.generators, began)
        self._began = present_state(self.generators)
        state = saved.get("loader")
        if self.has_state and state is not None and self._sharded_for is None:
            self._load(copy.deepcopy(state))  # it may keep it, and write into it
            self._loaded = state
            return chain.from_iterable(self._at_first_batch(self._iterate()))
        iterator = self._iterate()
        read_again(self.given, iterator, batches)
        return iterator

    def _loads(self, saved: Mapping[str, Any]) -> bool:
        """Whether the state that a run saved of the loader itself is loaded: not that of another shard."""
        shards = self._shards
        is_of_shard = shards is not None and not shards.resizes and self._saved_by != shards.size
        return self.has_state and saved.get("loader") is not None and not is_of_shard

    def _at_first_batch(self, iterator: Iterator[Any]) -> Iterator[Iterator[Any]]:
        """Yield `iterator` at the first `next`; from then on the loader itself knows its position."""
        self._loaded = None
        yield iterator

    def _load(self, state: Any) -> None:
        """Load the loader's own state, which other ranks may have saved."""
        if self._adapter is not None and self._shards is not None:
            state = self._adapter.state_for(self.loader, state, self._shards.size)
        self.loader.load_state_dict(state)

    def _start_stream(self, loader: Any) -> None:
        if self._adapter is not None:
            self._adapter.start_epoch(loader, self.epoch)

    def _as_sharded_for(self, size: int) -> Iterator[Any]:
        """Iterate over this rank's share of the batches of `size` ranks, which began the epoch."""
        assert self._shards is not None
        loaders = self._shards.loaders_of(size)
        for loader in loaders:
            begin_pass(loader, self.seed, self.epoch, self.turn)
            self._start_stream(loader)
        return self._shards.distributed(loaders)

    def _iterate(self) -> Iterator[Any]:
        sharded_for = self._sharded_for
        batches = batches_of(self.loader) if sharded_for is None else self._as_sharded_for(sharded_for)
        return with_tensors(batches) if self._converts else batches

    def _next_pass(self, turn: int) -> None:
        self._before, self.turn, self.is_begun, self._loaded = self.began, turn, True, None
        begin_pass(self.loader, self.seed, self.epoch, turn)

    def start_workers(self, seed: int) -> None:
        start_persistent_workers(self.loader, seed)

    def skip_to_end(self, batches: int, saved: Mapping[str, Any], complete: bool) -> None:
        """Bring a resumed run to the end of an epoch of so many batches, in the state in which that epoch ended."""
        if self.stream is not None:
            if complete and saved.get("began") is not None:
                self.stream.resume_at(batches, saved["began"])
                next(iter(self.stream), None)
        elif self._loads(saved):
            self._load(saved["loader"])
            iterator, self.is_begun = iter(self.loader), True
            further = read_to_the_end(iterator) if complete else END
            if further is not END:  # at its end a loader such as litdata's is already in the next epoch
                self._ready = chain((further,), iterator)
            if self._not_in_stream and not complete:
                set_states(self.generators, saved["generators"])

    def load_between_epochs(self, saved: Mapping[str, Any]) -> None:
        """Restore a loader with a state of its own that was saved between two epochs.

        The state belongs to an epoch that has ended, so the iterator that continues there is dropped. The global
        generators change: isolate them.
        """
        state = saved.get("loader")
        if not self._loads(saved):
            return
        self._load(state)
        iterator = iter(self.loader.items if isinstance(self.loader, ShardedSampler) else self.loader)
        self.is_begun = True
        ended = isinstance(state, Mapping) and state.get("_iterator_finished")  # torchdata's word
        if ended and getattr(self.loader, "persistent_workers", False) and not isinstance(self.loader, ShardedSampler):
            self._ready = iterator  # of the next epoch: persistent workers would read twice if it were iterated again
        else:
            set_states(self.generators, saved["generators"])

    # state
    @property
    def began(self) -> dict[str, Any] | None:
        return self._began if self.stream is None else self.stream.state

    def loader_state(self) -> Any:
        """Return the state of a stateful loader once it has been iterated; earlier, `state_dict` might start it.

        A loaded state is returned unchanged until a batch is read: calling `state_dict` might alter the loader.
        """
        if self._loaded is not None:
            return self._loaded
        keeps = self.has_state and self.is_begun and self._sharded_for is None
        return self.loader.state_dict() if keeps else None

    def state_dict(self, turn: int | None = None) -> dict[str, Any]:
        """Return the state to resume the pass number `turn` (default: the present), also after reading one ahead."""
        began = self.began if turn is None or turn == self.turn else self._before
        state = {"began": began, "generators": states_of(self.generators)}
        return state if self._sharded_for is None else {**state, "sharded_for": self._sharded_for}

    def drawn_ahead(self, used: int, turn: int = 0) -> list[Any]:
        """Return the indices that the pass number `turn` drew for workers, after so many were used."""
        return self.stream.drawn_ahead(used) if self.stream is not None and turn == self.turn else []

    def load_state_dict(self, state: Mapping[str, Any], size: int | None = None) -> None:
        """Restore the generators; `size` is the number of ranks that saved the state."""
        self._saved_by = size
        set_states(self.generators, state.get("generators", ()))


def read_to_the_end(iterator: Iterator[Any]) -> Any:
    """Read past the last batch, as a `for` loop does: only then has a sampler drawn all its numbers of the epoch.

    Return the batch found there; END when there is none, or when reading fails: every promised batch has been read, and
    a loader may raise there, for instance because the loaders that it joins have different lengths.
    """
    try:
        return next(iterator, END)
    except Exception:  # noqa: BLE001  it is the loader's own code
        return END


def start_persistent_workers(loader: Any, seed: int) -> None:
    """Start the persistent workers that the saved run had: starting them draws a seed, which it had already drawn."""
    if getattr(loader, "persistent_workers", False):
        begin_pass(loader, seed, 0)
        iter(loader)


def set_epoch(loader: Any, epoch: int, data: bool) -> None:
    """Call `set_epoch` of a loader and its samplers, and of its data set if `data`, once each."""
    owners = (loader, *(getattr(loader, name, None) for name in ("sampler", "batch_sampler")))
    several = [*owners, *(getattr(owner, "sampler", None) for owner in owners)]
    if data:
        dataset = getattr(loader, "dataset", None)
        several += [dataset, getattr(dataset, "sampler", None)]
    for owner in {id(owner): owner for owner in several}.values():
        method = getattr(owner, "set_epoch", None)
        if callable(method):
            method(epoch)


def _ignores_epochs(loader: Any) -> bool:
    """Whether a loader with a state of its own never calls `set_epoch` of its data set, as torchdata's does not.

    Any other stateful loader may count epochs itself, as part of its state, and `set_epoch` would count them twice.
    """
    return any(kind.__name__ == "StatefulDataLoader" for kind in type(loader).__mro__)


def read_again(loader: Any, iterator: Iterator[Any], batches: int) -> None:
    """Read so many batches; once it takes long, warn meanwhile and name the alternatives."""
    began = perf_counter()
    for number, _ in enumerate(islice(iterator, batches), 1):
        if (seconds := perf_counter() - began) <= LONG:
            continue
        report.warn_once(
            "slow return",
            f"Training data: reading the {kind_of(loader)} again up to batch {batches} has taken {seconds:.0f} s for "
            f"{number} of them, because it has no position of its own.\n"
            "  Expected: a map-style data set, or a loader with state_dict and load_state_dict.\n"
            "  Fix: torchdata's StatefulDataLoader over a data set with a state_dict, litdata, or mosaicml-streaming.",
        )


def warn_of_other_ranks(loader: Any, then: int, now: int) -> None:
    """Warn that an epoch is resumed with other shards."""
    report.warn(
        f"The checkpoint was written within an epoch by {then} processes, and the {kind_of(loader)} shards itself for "
        f"{now}: samples of this epoch are repeated or left out.\n"
        f"  Expected: {then} processes until the end of the epoch, or data that lightlib shards.\n"
        f"  Fix: resume with {then} processes, from a checkpoint at the end of an epoch, or without splitting by rank.",
        report.PossibleUserWarning,
    )


def describe(loader: Any, batches: float) -> dict[str, Any]:
    """Return a description of a loader, as plain values, to compare with that of another run."""
    data, batch_sampler = unwrapped(getattr(loader, "dataset", None)), getattr(loader, "batch_sampler", None)
    sampler = getattr(loader, "sampler", None)
    size = length(data) if isinstance(loader, DataLoader) else float("inf")
    return {
        "kind": type(loader).__name__,
        "dataset": None if data is None else type(data).__name__,
        "length": None if size == float("inf") else size,
        "batch_size": getattr(loader, "batch_size", None),
        "drop_last": getattr(loader, "drop_last", None),
        "batches": int(batches) if batches < float("inf") else None,
        "sampler": type(sampler if is_plain_batches(batch_sampler) or batch_sampler is None else batch_sampler).__name__
        if sampler is not None
        else None,
        "workers": getattr(loader, "num_workers", None),
    }


def warn_if_not_resumable(given: list[Any]) -> None:
    """Warn before the run about loaders that a resumed run cannot bring to their exact position."""
    for loader in given:
        kind, adapter = type(loader).__name__, adapter_of(loader)
        if adapter is not None:
            adapter.warn(loader, "training")
        if isinstance(loader, Iterator):
            report.info_once(
                f"Training data: a {kind} can be read once. It lasts for one epoch, and a resumed run reads a new one "
                "from its start up to the saved position."
            )
        elif getattr(loader, "in_order", True) is False and getattr(loader, "num_workers", 0) > 1:
            report.warn(
                f"The {kind} has in_order=False: its batches come in the order in which workers finish them, and a run "
                "that is resumed within an epoch repeats some of them and misses some. With in_order=True it resumes "
                "exactly.",
                report.PossibleUserWarning,
            )


def same_numbers(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two states of the global generators are the same."""
    return one["torch"].equal(other["torch"]) and all(one[name] == other[name] for name in one if name != "torch")


def differences(then: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """Return the differences between two descriptions of the training data, one line each."""
    if then is None:
        return []
    before, after, lines = then["loaders"], now["loaders"], []
    if len(before) != len(after):
        return [f"training loaders: {len(before)} then, {len(after)} now"]
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        of = f" of training loader {number}" if len(after) > 1 else " of the training loader"
        for name, words in _COMPARED.items():
            if old[name] != new[name]:
                lines.append(f"{words}{of}: {old[name]} then, {new[name]} now")
        if then["processes"] == now["processes"] and old["batch_size"] != new["batch_size"]:
            lines.append(f"batch_size{of}: {old['batch_size']} then, {new['batch_size']} now")
        if old["workers"] != new["workers"] and new["sampler"] == SAMPLER_OF_STREAMS:
            lines.append(f"workers{of}, which share out its stream: {old['workers']} then, {new['workers']} now")
    if not lines and then["processes"] == now["processes"] and then["batches"] != now["batches"]:
        lines.append(f"training batches per epoch: {then['batches']} then, {now['batches']} now")
    return lines
