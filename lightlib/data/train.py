"""Data: training loaders become one resumable stream of batches; no user object is rebuilt or patched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

import torch

from lightlib import report
from lightlib.data.combined import CombinedLoader, Mode, Place, length
from lightlib.data.lengths import (
    by_rank,
    is_length_exact,
    limited,
    nothing_read,
    refuse_other_ends,
    refuse_other_loaders,
)
from lightlib.data.prefetch import END, Prefetch
from lightlib.data.seed import isolate_rng, rng_state, set_rng_state
from lightlib.data.sharding import (
    DataShard,
    batch_size_of_loader,
    is_dealt,
    kind_of,
    say_once,
    stream,
    with_smaller_batches,
)
from lightlib.data.source import (
    Source,
    describe,
    differences,
    read_to_the_end,
    same_numbers,
    say_what_cannot_be_positioned,
    stop_workers,
    upgraded,
)
from lightlib.errors import MisconfigurationException

__all__ = ["Move", "TrainData", "combine"]

Move = Callable[[Any, int], Any]


def combine(loaders: Any, mode: Mode) -> CombinedLoader:
    """Return one loader or a collection of them as a CombinedLoader; one that is a CombinedLoader already stays."""
    return loaders if isinstance(loaders, CombinedLoader) else CombinedLoader(loaders, mode)


def _read_nothing() -> Any:
    return END


class TrainData:
    """The training batches: one iterator per epoch, which knows before each batch runs whether it is the last.

    Attributes:
        given: The user's loaders in one list.
        sources: What is read of each, in the same order.
        num_batches: Batches per epoch on this process, after the limit; `inf` when unknown. Equal on all processes.
        exhausted: Whether this epoch has no further batch.
        loading: Returns what the user's loader method may depend on, before it is called again in a later epoch.
        as_loading: A context in which it is called as it was then.
        waited: Seconds spent waiting for batches.
    """

    def __init__(
        self,
        source: Callable[[], Any],
        limit: float,
        move: Move | None,
        *,
        reload_every: int = 0,
        sequential: bool = False,
        prefetch: Prefetch | None = None,
        share: DataShard | None = None,
        largest: int | None = None,
    ) -> None:
        self._source, self._limit, self._move, self._reload_every = source, limit, move, reload_every
        self._sequential, self._prefetch, self._share, self._largest = sequential, prefetch, share, largest
        self._loaded_at = 0
        self._loaded_with: Mapping[str, Any] | None = None
        self.loading: Callable[[], Mapping[str, Any] | None] = lambda: None
        self.as_loading: Callable[[Mapping[str, Any] | None], AbstractContextManager[Any]] = nullcontext
        self._iterator: Iterator[Any] | None = None
        self._seed: int | None = None
        self._place = Place()
        self._workers_started = False
        self._read: Callable[[], Any] = _read_nothing
        self._ahead: Any = END
        self._behind: tuple[list[Any], list[Any], Any, list[Any]] | None = None  # before the batch that is read ahead
        self._restored: dict[str, Any] | None = None
        self._from_start = False  # the epoch that was saved is read again from its start, in the same order
        self._watches = share is None
        self.position = 0
        self.exhausted = False
        self.waited = 0.0
        self.load()

    def note_loading(
        self,
        loading: Callable[[], Mapping[str, Any] | None],
        as_loading: Callable[[Mapping[str, Any] | None], AbstractContextManager[Any]],
    ) -> None:
        """Note, whenever loaders are asked for, what that may depend on; and ask again as it was then."""
        self.loading, self.as_loading = loading, as_loading

    def load(self) -> None:
        """Ask the user for the loaders and find out how long they are."""
        self.loaders = self._source()
        combined = combine(self.loaders, "max_size_cycle")
        self._single = len(combined.flattened) == 1 and combined.iterables is combined.flattened[0]
        self.given = given = combined.flattened
        if self._largest is not None:
            given = [with_smaller_batches(loader, self._largest) for loader in given]
        read = [stream(one, self._sequential, self._share, number=i) for i, one in enumerate(given)]
        self._combined, flattened = combined.with_loaders(read), read
        self.sources = [Source(one, user_s) for one, user_s in zip(read, given, strict=True)]
        say_what_cannot_be_positioned(given)
        seed = torch.initial_seed()
        total = length(flattened[0]) if self._single else length(self._combined)
        if self._share is None:
            self.num_batches = limited(total, self._limit, "limit_train_batches", "training")
        else:
            self.num_batches, seed = self._length_of_all(total, seed, given, self._share)
        self._seed = seed if self._seed is None else self._seed
        self._whole = self._single and self.num_batches == total
        self._promised = math.inf if math.inf in map(length, flattened) else total
        self._trusted = all(map(is_length_exact, flattened)) and self.num_batches != math.inf
        self._agrees = self._share is not None and not self._trusted and not all(map(is_dealt, flattened))
        if self._agrees:
            say_once(
                "Training data: the lengths of the loaders are not sure, so before each batch all processes agree "
                "whether each has one more (one small collective). An epoch ends with the shortest."
            )
        self._ends = None if self._share is None or self._trusted or self._agrees else self._share.ends
        self._stateful = any(source.has_state for source in self.sources)
        with_workers = all(getattr(x, "num_workers", 0) for x in flattened)
        alone = with_workers and not self._stateful and not self._agrees
        self._ahead_of_device = self._prefetch is not None and alone

    def _length_of_all(self, total: float, seed: int, given: list[Any], share: DataShard) -> tuple[float, int]:
        """Return the number of batches when it is the same on all processes; else refuse it on all of them alike.

        Also return the seed of the first process.
        """
        everybody = share.gather((len(given), total, seed))
        refuse_other_loaders([number for number, *_ in everybody], "training")
        for own, loader in zip(self.flattened, given, strict=True):
            if length(own) == 0 and length(loader) > 0:
                raise MisconfigurationException(
                    f"The training loader has {length(loader)} batches for {share.size} processes, which leaves none "
                    "for each.",
                    expected=f"at least one batch on each of the {share.size} processes.",
                    fix="a smaller batch_size, fewer devices, or drop_last=False.",
                )
        lengths = [limited(one, self._limit, "limit_train_batches", "training") for _, one, _ in everybody]
        if len(set(lengths)) > 1:
            least = min(lengths)
            raise MisconfigurationException(
                f"The processes have different numbers of training batches: {by_rank(lengths)}.",
                expected="the same number on every rank: a process with fewer would leave the others waiting.",
                fix=(f"Trainer(limit_train_batches={least}), or " if 0 < least < math.inf else "")
                + "parts of equal size (drop_last=True, padded samplers), or give every rank the whole data and let "
                "Trainer(use_distributed_sampler=True) deal them.",
            )
        return lengths[0], everybody[0][2]

    @property
    def flattened(self) -> list[Any]:
        return self._combined.flattened

    def start_epoch(self, epoch: int, batch: int) -> None:
        """Begin epoch `epoch` at its batch number `batch`, which is not 0 when the run was resumed within it."""
        due = bool(self._reload_every) and epoch - self._loaded_at >= self._reload_every
        if due:
            self._loaded_with, self._loaded_at = self.loading(), epoch
            self.load()
            self._load_generators(self._restored)
        elif self._restored is not None and self._loaded_at:  # those of a resumed run were loaded in epoch 0
            with self.as_loading(self._loaded_with):
                self.load()
            self._load_generators(self._restored)
        for source in self.sources:
            source.start_epoch(self._seed or 0, epoch)
        self.position = batch
        self.exhausted = self.num_batches <= batch
        saved, self._restored = self._restored, None
        if self.exhausted:
            self._place = self._saved_place(batch, saved) or Place(len(self.flattened))
            with isolate_rng():
                for source, one in zip(self.sources, saved["sources"] if saved else (), strict=False):
                    source.end_again(batch, one, self._whole)
            return
        resumed = batch > 0 or self._from_start or bool(saved and saved.get("begun"))
        self._from_start = False
        if saved is not None and not resumed:
            with isolate_rng():
                for source, one in zip(self.sources, saved["sources"], strict=False):
                    source.come_to(one)
        with isolate_rng() if resumed else nullcontext():
            self._iterator = iterator = self._go_on(batch, saved) if resumed else self._begin()
            if saved is not None and resumed and saved.get("ahead") is not None:
                set_rng_state(saved["ahead"])
            self._read = self._first_read(iterator)
        self._workers_started = True
        if self.exhausted and not batch:
            raise nothing_read("training", f"epoch {epoch}")

    def _begin(self) -> Iterator[Any]:
        if self._single:
            return self.sources[0].begin()
        self._place = Place(len(self.flattened))
        begin = lambda loader: self.sources[loader].begin()  # noqa: E731
        return (batch for batch, _, _ in self._combined.read(begin, self._place))

    def _go_on(self, batch: int, saved: dict[str, Any] | None) -> Iterator[Any]:
        """Return the iterator of an epoch from batch number `batch` on."""
        states: list[Any] = (saved or {}).get("sources") or [None] * len(self.sources)
        if self._single:
            return self.sources[0].begin_at(batch, 0, states[0])
        known = self._saved_place(batch, saved)
        self._place = place = known or Place(len(self.flattened))
        if known is None:  # how far each has been read is not known: all are read again
            states = [state and {**state, "loader": None} for state in states]
        left = set(range(len(self.flattened)))

        def begin(loader: int) -> Iterator[Any]:
            source = self.sources[loader]
            if loader in left:
                left.remove(loader)
                return source.begin_at(place.read[loader], place.turns[loader], states[loader])
            return source.begin()

        iterator = (one for one, _, _ in self._combined.read(begin, place))
        left.clear()  # from here on whatever begins, begins anew
        if known is None and batch:
            next(islice(iterator, batch - 1, None), None)
        return iterator

    def _saved_place(self, batch: int, saved: dict[str, Any] | None) -> Place | None:
        """Return how far each loader had been read; by their lengths, when other processes had other batches."""
        if self._single:
            return None
        place = saved.get("place") if saved else None
        if place is not None and saved and saved.get("size", 1) == self._size and place[0] == batch:
            return Place(now=(place[0], tuple(place[1]), tuple(place[2])))
        return self._combined.place_of(batch)

    def _first_read(self, iterator: Iterator[Any]) -> Callable[[], Any]:
        """Begin to read as this loader has to be read; return what gives the next batch."""
        if self._ends is not None:
            self._ends.follow_data(lambda: self.position)
        if self._ahead_of_device and self._prefetch is not None:
            self._prefetch.start(iterator)
            self.exhausted = self._prefetch.ended
            self._compare_ends(self.position)
            return self._prefetch.take if self._ends is None else self._take_ahead
        read: Callable[[], Any] = partial(next, iterator, END)
        if not self._trusted:
            self._look_ahead(self.position)
            self.exhausted = self._ahead is END
            self._compare_ends(self.position)
            read = self._read_ahead
        if self._watches and any(source.draws_here and source.stream is None for source in self.sources):
            return partial(self._watch, read, self.position + 1)
        return read

    def _watch(self, read: Callable[[], Any], second: int) -> Any:
        """Look at the second batch whether reading draws from the generators that the steps draw from."""
        if self.position < second:
            return read()
        self._read, self._watches = read, False
        before = rng_state()
        batch = read()
        if not same_numbers(before, rng_state()):
            kinds = ", ".join(kind_of(one) for one in self.given)
            say_once(
                f"Training data: {kinds} draws random numbers as it is read, from the generators that the steps draw "
                "from. A run that is resumed within an epoch reads it again from the epoch's start: an order that is "
                "drawn as it is read will be another one. With num_workers=1, or a state_dict of its own, it is exact."
            )
        return batch

    def _look_ahead(self, used: int) -> None:
        draws = any(source.draws_here for source in self.sources)
        own = [source.generator_states() for source in self.sources]
        self._behind = self._loader_states(), own, rng_state() if draws else None, self._drawn_ahead(used)
        self._ahead = next(self._iterator, END)  # type: ignore[arg-type]
        if self._agrees and self._share is not None and any(self._share.gather(self._ahead is END)):
            self._ahead = END

    def __next__(self) -> Any:
        began = perf_counter()
        batch = self._read()
        if batch is END:
            self._refuse_short_loader()
        if self._move is not None and not self._ahead_of_device:
            batch = self._move(batch, 0)
        self.position += 1
        self.exhausted = self.position >= self.num_batches or (not self._trusted and self._nothing_ahead())
        self.waited += perf_counter() - began
        return batch

    def _read_ahead(self) -> Any:
        batch, self._behind = self._ahead, None
        if self.position + 1 < self.num_batches:
            self._look_ahead(self.position + 1)
            if self._ahead is END:
                self._compare_ends(self.position + 1)
        return batch

    def _take_ahead(self) -> Any:
        assert self._prefetch is not None
        batch = self._prefetch.take()
        if self.position + 1 < self.num_batches:
            self._compare_ends(self.position + 1)
        return batch

    def _compare_ends(self, batches: int) -> None:
        """When the data have ended after `batches`, wait until they have on all processes, and refuse other numbers."""
        if self._ends is not None and batches and self._nothing_ahead():
            refuse_other_ends(self._ends.end_of_data(batches))

    def _refuse_short_loader(self) -> None:
        raise MisconfigurationException(
            f"The training loader says that it has {int(self.num_batches)} batches, but it ended "
            f"after {self.position}.",
            expected="as many batches as its length says.",
            fix=f"correct the sampler's __len__, or Trainer(limit_train_batches={self.position}).",
        )

    def _nothing_ahead(self) -> bool:
        return self._prefetch.ended if self._ahead_of_device else self._ahead is END  # type: ignore[union-attr]

    def skip_epoch(self) -> None:
        """Drop what is left of the epoch."""
        self.exhausted = True

    def end_epoch(self) -> None:
        if self._iterator is not None:
            self._compare_with_length(self._iterator)
        self._let_go()
        self._behind = None
        self.position, self.exhausted = 0, False

    def _compare_with_length(self, iterator: Iterator[Any]) -> None:
        promised = f"The training loader says that it has {self._promised:g} batches, but it"
        if self._trusted or (self._stateful and self._whole and self.position == self.num_batches):
            # A loader with a state takes note only at its end that the epoch is over.
            if self._whole and self.position == self.num_batches and read_to_the_end(iterator) is not END:
                report.warn(
                    f"{promised} goes on after them; the rest is not used. Correct the sampler's __len__.",
                    report.PossibleUserWarning,
                )
        elif self._promised < math.inf and self.position < self.num_batches and self._nothing_ahead():
            report.warn(
                f"{promised} ended after {self.position}: schedules and intervals that count by its length are off. "
                "Correct its __len__, or leave it out.",
                report.PossibleUserWarning,
            )

    def close(self) -> None:
        """Let the workers end; the position can still be read."""
        self._let_go()
        for one, loader in zip(self.flattened, self.given, strict=True):
            stop_workers(one, loader)

    def _let_go(self) -> None:
        self._iterator, self._ahead, self._read = None, END, _read_nothing
        if self._prefetch is not None:
            self._prefetch.stop()

    def _drawn_ahead(self, used: int) -> list[Any]:
        return self.sources[0].drawn_ahead(used) if self._single else []

    def _loader_states(self) -> list[Any]:
        return [source.own_state() for source in self.sources] if self._stateful else []

    @property
    def is_dealt(self) -> bool:
        """Whether a state is right on every process: all draw the same, and each takes its part."""
        return self._share is None or all(map(is_dealt, self.flattened))

    @property
    def _size(self) -> int:
        return 1 if self._share is None else self._share.size

    def batch_sizes(self) -> list[int | None]:
        """Return how many samples of each loader are in a batch of this process, where that is known."""
        return [batch_size_of_loader(loader) for loader in self.flattened]

    def _taken_at_once(self) -> list[int]:
        """How many samples (batches, where their size is not known) of each loader all processes take with a batch."""
        return [(size or 1) * self._size for size in self.batch_sizes()]

    def samples(self) -> int | None:
        """Return how many samples of this epoch all processes took, when the loader's batch size is known."""
        loader = self.flattened[0] if self._single else None
        size = getattr(loader, "batch_size", None)
        if size is None:
            return None
        whole = length(getattr(loader, "sampler", None)) * (1 if is_dealt(loader) else self._size)
        return int(min(self.position * size * self._size, whole))

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch, in batches and samples, and what draws the same epoch again."""
        if self._restored is not None:  # nothing has been read since
            return dict(self._restored)
        place = self._place.now if self._place.batches == self.position else self._place.before
        turns = [None] * len(self.sources) if self._single else place[2]
        sources = [source.state_dict(turn) for source, turn in zip(self.sources, turns, strict=False)]
        states, own, ahead, drawn = self._behind or (
            self._loader_states(), [], None, self._drawn_ahead(self.position)
        )  # fmt: skip
        for source, state in zip(sources, states, strict=False):
            source["loader"] = state
        for source, state in zip(sources, own, strict=False):
            source["generators"] = state
        if drawn:
            sources[0]["pending"] = drawn
        return {
            "batches": self.position,
            "samples": self.samples(),
            "size": self._size,
            "taken_at_once": self._taken_at_once(),
            "exhausted": self.exhausted,
            "begun": self._iterator is not None,
            "seed": self._seed,
            "place": None if self._single else [place[0], list(place[1]), list(place[2])],
            "sources": sources,
            "ahead": ahead,
            "workers": self._workers_started,
            "loaded_at": self._loaded_at,
            "loaded_with": self._loaded_with,
            "described": self.describe(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Take back a state; return the position in batches of this run, which may be shared by more or fewer."""
        self._restored = state = upgraded(state, self.sources)
        self._loaded_at, self._loaded_with = state.get("loaded_at", 0), state.get("loaded_with")
        self._seed = state.get("seed", self._seed)
        place = self._place_of(state)
        self._from_start = place == 0 < state["batches"]
        if state.get("workers") and not 0 < place < self.num_batches:
            for source in self.sources:
                source.start_workers(self._seed or 0)
        self._load_generators(state)
        return place

    def _load_generators(self, state: dict[str, Any] | None) -> None:
        for source, one in zip(self.sources, state["sources"] if state else (), strict=False):
            source.load_state_dict(one)

    def describe(self) -> dict[str, Any]:
        """Return what can be compared with the data of another run, as plain values."""
        own = [describe(given, length(one)) for given, one in zip(self.given, self.flattened, strict=True)]
        batches = None if self.num_batches == math.inf else int(self.num_batches)
        return {"loaders": own, "batches": batches, "processes": self._size}

    def differences(self, state: dict[str, Any]) -> list[str]:
        """Return, a line for each, what is different here from the data that a state was saved with."""
        return differences(state.get("described"), self.describe())

    def _place_of(self, state: dict[str, Any]) -> int:
        done, before = int(state["batches"]), state.get("size", 1)
        if not done or before == self._size:
            return done
        if state.get("exhausted") and self.num_batches != math.inf:
            return int(self.num_batches)
        then, now = state.get("taken_at_once", [before]), self._taken_at_once()
        if len(then) != len(now):
            then, now = [before], [self._size]
        place = int(min(done * old // new for old, new in zip(then, now, strict=True)))
        again = max(done * old - place * new for old, new in zip(then, now, strict=True))
        if again and not self._stateful:
            what = "samples" if self.batch_sizes()[0] else "batches"
            report.warn(
                f"The checkpoint was written within an epoch, after {done} batches on each of {before} processes. "
                f"{self._size} processes take {now[0]} {what} at a time, of which no number ends exactly there: "
                f"{again} {what} of this epoch are seen a second time.",
                report.PossibleUserWarning,
            )
        return place
