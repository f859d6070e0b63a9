"""Reading: a training loader, what its batches depend on, and the way back to a place within it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from torch.utils.data import DataLoader

from lightlib import report
from lightlib.data.gather import batches_of
from lightlib.data.generators import generators_in, set_generator_state, state_of_generator
from lightlib.data.prefetch import END
from lightlib.data.seed import rng_state, set_rng_state
from lightlib.data.sharding import IndexStream, ShardedSampler, is_plain_batches, say_once
from lightlib.data.workers import begin_pass, users_own

__all__ = [
    "Source",
    "describe",
    "differences",
    "generators_of",
    "read_to_the_end",
    "same_numbers",
    "say_what_cannot_be_positioned",
    "set_epoch",
    "start_persistent_workers",
    "stop_workers",
    "upgraded",
]

_OF_STREAMS = "_InfiniteConstantSampler"
_COMPARED = {"kind": "kind", "length": "samples", "sampler": "sampler"}
_PARTS = ("dataset", "sampler", "batch_sampler", "generator", "collate_fn")


def generators_of(loader: Any) -> dict[str, Any]:
    """Return the random generators that a loader, its samplers and its data set hold, by where they are."""
    if not isinstance(loader, DataLoader):
        return generators_in({"loader": loader})
    return generators_in({name: getattr(loader, name, None) for name in _PARTS})


class Source:
    """One loader of an epoch.

    Three kinds of loaders come back to a place in three ways: those that are read by index draw the same order again,
    of which they pass over what was used; those with a state of their own are given it; all others are read again from
    the start, with the random numbers of then.

    Args:
        loader: As it is read here: the user's, or our copy of it.
        given: As the user gave it.

    Attributes:
        began: What it drew with when its present pass began, and `before`, when the pass before that one did.
        turn: How many passes of this epoch it has ended.
    """

    def __init__(self, loader: Any, given: Any) -> None:
        self.loader = loader
        found = (getattr(loader, part, None) for part in ("batch_sampler", "sampler"))
        self.stream = next((one for one in found if isinstance(one, IndexStream)), None)
        self.generators = list(generators_of(given).values())
        drawn = () if self.stream is None else tuple(map(id, self.stream.generators))
        self.others = [i for i, one in enumerate(self.generators) if id(one) not in drawn]
        has = (hasattr(loader, name) for name in ("state_dict", "load_state_dict"))
        self.has_state = self.stream is None and all(has)
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
        """Say which epoch comes, also to samplers and data sets that have `set_epoch`."""
        set_epoch(self.given, epoch, data=not self.has_state or _leaves_epochs_to_others(self.given))
        self.seed, self.epoch, self.turn = seed, epoch, -1
        self._began = self._before = None
        if self.stream is not None:
            self.stream.state = None  # the sampler has not drawn yet

    def begin(self) -> Iterator[Any]:
        """Iterate from the start: at the beginning of an epoch, or again within it."""
        self._next_pass(self.turn + 1)
        if self.stream is None:
            self._began = self._present()
        iterator, self._ready = self._ready, None
        return self._iterate() if iterator is None else iterator

    def begin_at(self, batches: int, turn: int, saved: Mapping[str, Any] | None) -> Iterator[Any]:
        """Iterate from a place on, where a saved run was. The global generators are left anyhow: isolate them."""
        self._next_pass(turn)
        saved = saved or {}
        began = saved.get("began")
        if self.stream is not None:
            if began is not None:
                self.stream.state = began
            self.stream.skip = batches if batches or began is not None else None
            self.stream.pending = list(saved.get("pending", ()))
            iterator = self._iterate()  # which may draw a seed, as it had done before
            if batches or began is not None:
                self.stream.come_to_place()
            for i in self.others if began is not None else range(len(self.generators)):
                if i < len(saved.get("generators", ())):
                    set_generator_state(self.generators[i], saved["generators"][i])
            return iterator
        if began is not None:
            set_rng_state(began["global"])
            self._set_generators(began["own"])
        self._began = self._present()
        state = saved.get("loader")
        if self.has_state and state is not None:
            self.loader.load_state_dict(copy.deepcopy(state))  # it may keep it, and write into it
            self._loaded = state
            return chain.from_iterable(self._once_asked(self._iterate()))
        iterator = self._iterate()
        if batches:
            next(islice(iterator, batches - 1, None), None)
        return iterator

    def _once_asked(self, iterator: Iterator[Any]) -> Iterator[Iterator[Any]]:
        """Yield `iterator` when a batch is asked for: from then on the loader itself knows where it is."""
        self._loaded = None
        yield iterator

    def _iterate(self) -> Iterator[Any]:
        return batches_of(self.loader)

    def _next_pass(self, turn: int) -> None:
        self._before, self.turn, self.is_begun, self._loaded = self.began, turn, True, None
        begin_pass(self.loader, self.seed, self.epoch, turn)

    def start_workers(self, seed: int) -> None:
        """Start workers that live longer than an epoch."""
        start_persistent_workers(self.loader, seed)

    def end_again(self, batches: int, saved: Mapping[str, Any], whole: bool) -> None:
        """Leave everything as an epoch leaves it that ended after so many batches, in a run that is resumed there."""
        if self.stream is not None:
            if whole and saved.get("began") is not None:
                self.stream.state, self.stream.skip = saved["began"], batches
                next(iter(self.stream), None)
        elif self.has_state and saved.get("loader") is not None:
            self.loader.load_state_dict(saved["loader"])
            iterator, self.is_begun = iter(self.loader), True
            further = read_to_the_end(iterator) if whole else END
            if further is not END:  # at its end a loader such as litdata's has already gone on to the next epoch
                self._ready = chain((further,), iterator)
            if self.others and not whole:
                self._set_generators(saved["generators"])

    def come_to(self, saved: Mapping[str, Any]) -> None:
        """Take over what a loader with a state of its own was between two epochs.

        Its state belongs to an epoch that has ended: the iterator that goes on there is dropped, and the next is new.
        The global generators are left anyhow: isolate them.
        """
        state = saved.get("loader")
        if not self.has_state or state is None:
            return
        self.loader.load_state_dict(state)
        iterator = iter(self.loader.items if isinstance(self.loader, ShardedSampler) else self.loader)
        self.is_begun = True
        ended = isinstance(state, Mapping) and state.get("_iterator_finished")  # torchdata's word
        if ended and getattr(self.loader, "persistent_workers", False) and not isinstance(self.loader, ShardedSampler):
            self._ready = iterator  # of the next epoch: to iterate again would read twice in workers that live on
        else:
            self._set_generators(saved["generators"])

    # state
    @property
    def began(self) -> dict[str, Any] | None:
        return self._began if self.stream is None else self.stream.state

    def own_state(self) -> Any:
        """Return the state of a loader that keeps it, once it has been iterated: before, asking might begin it.

        A state that was loaded stands for itself until a batch is read: asking might spoil what the loader has taken.
        """
        if self._loaded is not None:
            return self._loaded
        return self.loader.state_dict() if self.has_state and self.is_begun else None

    def state_dict(self, turn: int | None = None) -> dict[str, Any]:
        """Return what brings a loader back; `turn` is the pass that is meant, when one batch has been read ahead."""
        began = self.began if turn is None or turn == self.turn else self._before
        return {"began": began, "generators": self.generator_states()}

    def drawn_ahead(self, used: int) -> list[Any]:
        """Return the indices that were drawn and not used."""
        return [] if self.stream is None else self.stream.drawn_ahead(used)

    def generator_states(self) -> list[Any]:
        """Return the states of its own generators."""
        return [state_of_generator(one) for one in self.generators]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back the generators; the place follows when the epoch begins."""
        self._set_generators(state.get("generators", ()))
        if self.stream is not None and "drawn" in state:
            self.stream.set_generator_states(state["drawn"])

    def _present(self) -> dict[str, Any]:
        return {"global": rng_state(), "own": self.generator_states()}

    def _set_generators(self, states: Iterable[Any]) -> None:
        for generator, state in zip(self.generators, states, strict=False):
            set_generator_state(generator, state)


def read_to_the_end(iterator: Iterator[Any]) -> Any:
    """Read past the last batch, as a `for` loop does: only then has a sampler drawn all that it draws in an epoch.

    Return what comes there; END when there is nothing, or when reading fails: every promised batch has been read, and
    a loader may raise there, for instance because the loaders that it joins have different lengths.
    """
    try:
        return next(iterator, END)
    except Exception:  # noqa: BLE001  it is the loader's own code
        return END


def start_persistent_workers(loader: Any, seed: int) -> None:
    """Start workers that the saved run had when it was saved: starting them draws a seed, which it had drawn before."""
    if getattr(loader, "persistent_workers", False):
        begin_pass(loader, seed, 0)
        iter(loader)


def set_epoch(loader: Any, epoch: int, data: bool) -> None:
    """Tell the samplers of a loader, and its data set if `data`, which epoch begins: each of them once."""
    owners = (loader, *(getattr(loader, name, None) for name in ("sampler", "batch_sampler")))
    found = [*owners, *(getattr(owner, "sampler", None) for owner in owners)]
    if data:
        held = getattr(loader, "dataset", None)
        found += [held, getattr(held, "sampler", None)]
    for one in {id(one): one for one in found}.values():
        tell = getattr(one, "set_epoch", None)
        if callable(tell):
            tell(epoch)


def _leaves_epochs_to_others(loader: Any) -> bool:
    """Whether a loader with a state of its own never calls `set_epoch` of its data set, as torchdata's does not.

    Others may count epochs in their own way, which is part of their state: what they are told would be a second count.
    """
    return any(kind.__name__ == "StatefulDataLoader" for kind in type(loader).__mro__)


def stop_workers(loader: Any, given: Any) -> None:
    """Let the persistent workers of our copy of a loader end."""
    copied = loader.items if isinstance(loader, ShardedSampler) else loader
    if copied is not given and isinstance(copied, DataLoader):
        copied._iterator = None  # noqa: SLF001  the only reference to them


def upgraded(state: Mapping[str, Any], sources: Sequence[Source]) -> dict[str, Any]:
    """Return a state in today's form: before format 2, what each loader drew with was not kept by loader."""
    if "sources" in state:
        return dict(state)
    streams, own = iter(state.get("streams", ())), iter(state.get("generators", ()))
    started, loaders = state.get("started"), state.get("loaders") or [None] * len(sources)
    at_start = None if started is None else {"global": {**started}, "own": []}
    found: list[dict[str, Any]] = []
    for source, loader in zip(sources, loaders, strict=False):
        if source.stream is not None:
            found.append({"began": next(streams, None), "drawn": next(own, [])})
        else:
            found.append({"began": at_start, "loader": loader})
    return {**state, "sources": found}


def describe(loader: Any, batches: float) -> dict[str, Any]:
    """Return what can be compared with another run's loader, as plain values."""
    data, batch_sampler = users_own(getattr(loader, "dataset", None)), getattr(loader, "batch_sampler", None)
    sampler = getattr(loader, "sampler", None)
    return {
        "kind": type(loader).__name__,
        "dataset": None if data is None else type(data).__name__,
        "length": _length(data) if isinstance(loader, DataLoader) else None,
        "batch_size": getattr(loader, "batch_size", None),
        "drop_last": getattr(loader, "drop_last", None),
        "batches": int(batches) if batches < float("inf") else None,
        "sampler": type(sampler if is_plain_batches(batch_sampler) or batch_sampler is None else batch_sampler).__name__
        if sampler is not None
        else None,
        "workers": getattr(loader, "num_workers", None),
    }


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def say_what_cannot_be_positioned(given: list[Any]) -> None:
    """Say before the run what a resumed run cannot do with these loaders."""
    for loader in given:
        kind = type(loader).__name__
        if isinstance(loader, Iterator):
            say_once(
                f"Training data: a {kind} can be read once. It lasts for one epoch, and a resumed run reads a new one "
                "from its start up to the place where it was."
            )
        elif getattr(loader, "in_order", True) is False and getattr(loader, "num_workers", 0) > 1:
            report.warn(
                f"The {kind} has in_order=False: its batches come as the workers end them, and a run that is resumed "
                "within an epoch sees some of them again and others not. With in_order=True it goes on exactly.",
                report.PossibleUserWarning,
            )


def same_numbers(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two states of the global generators are the same."""
    return one["torch"].equal(other["torch"]) and all(one[name] == other[name] for name in one if name != "torch")


def differences(then: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """Return, a line for each, how descriptions of the training data differ."""
    if then is None:
        return []
    before, after, found = then["loaders"], now["loaders"], []
    if len(before) != len(after):
        return [f"training loaders: {len(before)} then, {len(after)} now"]
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        of = f" of training loader {number}" if len(after) > 1 else " of the training loader"
        for name, words in _COMPARED.items():
            if old[name] != new[name]:
                found.append(f"{words}{of}: {old[name]} then, {new[name]} now")
        sizes = [one["batch_size"] and one["batch_size"] * each["processes"] for one, each in ((old, then), (new, now))]
        if sizes[0] != sizes[1]:
            same = then["processes"] == now["processes"]
            words, sizes = ("batch_size", [old["batch_size"], new["batch_size"]]) if same else ("batch", sizes)
            over = "" if same else " over all processes"
            found.append(f"{words}{of}{over}: {sizes[0]} then, {sizes[1]} now")
        if old["workers"] != new["workers"] and new["sampler"] == _OF_STREAMS:
            found.append(f"workers{of}, which share out its stream: {old['workers']} then, {new['workers']} now")
    if not found and then["processes"] == now["processes"] and then["batches"] != now["batches"]:
        found.append(f"training batches per epoch: {then['batches']} then, {now['batches']} now")
    return found
