"""TrainData: the training loaders as one resumable stream of batches; no user object is changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.conventions import leniency
from lightlib.data.combined import Counts, Place
from lightlib.data.lengths import nothing_read, refuse_other_ends
from lightlib.data.prefetch import END, Prefetch
from lightlib.data.seed import isolate_rng, rng_state, set_rng_state
from lightlib.data.sharding import DataShard, kind_of
from lightlib.data.train_loaders import TrainLoaders
from lightlib.data.training_source import differences, read_to_the_end, same_numbers
from lightlib.errors import MisconfigurationException

Move = Callable[[Any, int], Any]
# The attributes that are known once the loaders have been requested.
_OF_LOADERS = ("loaded", "loaders", "given", "sources", "num_batches", "_ahead_of_device")


def _read_nothing() -> Any:
    return END


class TrainData:
    """The training batches: one iterator per epoch, which knows before each batch runs whether it is the last.

    Attributes:
        loaded: The loaders of the present epoch, their lengths and sizes.
        sources: The source that reads each of them, in the same order.
        num_batches: Batches per epoch on this process, after the limit; `inf` when unknown. Equal on all processes.
        exhausted: Whether this epoch has no further batch.
        loading: Returns the state that the user's loader method may depend on, before a later epoch calls it again.
        as_loading: A context in which that state is as it was then.
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
        number: int = 0,
        loads_late: bool = False,
        loaded_at: int = 0,
        converts: bool = False,
        stops_at_length: bool = False,
        timed: Callable[[Iterator[Any]], Iterator[Any]] = lambda iterator: iterator,
    ) -> None:
        self._source, self._limit, self._move, self._reload_every = source, limit, move, reload_every
        self._sequential, self._prefetch, self._share, self._largest = sequential, prefetch, share, largest
        self._number, self._timed, self._converts, self._stops = number, timed, converts, stops_at_length
        self._when_loaded: list[Callable[[], object]] = []
        self._loaded_at = loaded_at  # the epoch in which the loaders were requested
        self._loaded_with: Mapping[str, Any] | None = None
        self.loading: Callable[[], Mapping[str, Any] | None] = lambda: None
        self.as_loading: Callable[[Mapping[str, Any] | None], AbstractContextManager[Any]] = nullcontext
        self._iterator: Iterator[Any] | None = None
        self._seed: int | None = None
        self._place = Place()
        self._workers_started = False
        self._read: Callable[[], Any] = _read_nothing
        self._ahead: Any = END
        # when `_ahead` was read: states of loaders and of sources, random numbers, drawn indices
        self._before_ahead: tuple[list[Any], list[dict[str, Any]], Any, list[list[Any]]] | None = None
        self._restored: dict[str, Any] | None = None
        self._from_start = False  # read the saved epoch again from its start, in the same order
        self._kept: Any = END  # the batch that ran when the checkpoint was written
        self._checks_rng = share is None
        self.position = 0
        self.exhausted = False
        self._skipped = False  # the epoch ends before its last batch
        self.waited = 0.0
        if not loads_late:
            self.load()

    if not TYPE_CHECKING:  # type checkers must report unknown names

        def __getattr__(self, name: str) -> Any:
            if name not in _OF_LOADERS:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            self.load()  # it is late, and needed now
            return getattr(self, name)

    @property
    def is_loaded(self) -> bool:
        """Whether the loaders have been requested."""
        return "loaded" in self.__dict__

    @property
    def rereads_exactly(self) -> bool:
        """Whether reading the last batch again gives the same one: from one loader without a position, with workers."""
        return self.loaded.is_single and not self.loaded.is_stateful and not self.sources[0].draws_here

    @property
    def expected_batches(self) -> float:
        """Batches per epoch; until the loaders have been requested 0 without a batch, else `inf`."""
        return self.num_batches if self.is_loaded else math.inf if self._limit else 0

    def note_loading(
        self,
        loading: Callable[[], Mapping[str, Any] | None],
        as_loading: Callable[[Mapping[str, Any] | None], AbstractContextManager[Any]],
    ) -> None:
        """Set the functions that record the state that loading depends on, and restore it in a resumed run."""
        self.loading, self.as_loading = loading, as_loading

    def load(self) -> None:
        """Request the loaders from the user and determine their lengths."""
        how = self._limit, self._sequential, self._share, self._largest, self._number, self._converts, self._stops
        self.loaded = loaded = TrainLoaders(self._source(), *how)
        self.loaders, self.given, self.sources = loaded.loaders, loaded.given, loaded.sources
        self.num_batches = loaded.num_batches
        self._seed = loaded.seed if self._seed is None else self._seed
        self._ahead_of_device = self._prefetch is not None and loaded.may_prefetch
        waiting, self._when_loaded = self._when_loaded, []
        for call in waiting:
            call()

    def when_loaded(self, call: Callable[[], object]) -> None:
        """Make a call once the loaders have been requested: now, if they have."""
        if self.is_loaded:
            call()
        else:
            self._when_loaded.append(call)

    def second_reader(self) -> TrainData:
        """Return a reader of the same loaders that leaves the position of this one alone.

        Raises:
            MisconfigurationException: An epoch is being read from a loader that keeps its own position.
        """
        unchanged = [source.given for source in self.sources if source.loader is source.given]
        if unchanged and self._iterator is not None and not self.exhausted:
            raise MisconfigurationException(
                f"The training data is read a second time within an epoch, from a {type(unchanged[0]).__name__}.",
                expected="a torch DataLoader, which can be read at two positions.",
                fix="read it again at the end of training only.",
            )
        share = None if self._share is None else replace(self._share, ends=None)
        return TrainData(
            lambda: self.loaders,
            self._limit,
            self._move,
            sequential=self._sequential,
            share=share,
            largest=self._largest,
            number=self._number,
            converts=self._converts,
            stops_at_length=self._stops,
        )

    def reload_if_due(self, epoch: int) -> bool:
        """Request the loaders again every n epochs. Return whether they were."""
        due = bool(self._reload_every) and epoch - self._loaded_at >= self._reload_every
        if due:
            self._loaded_with, self._loaded_at = self.loading(), epoch
            self.load()
            self._load_generators(self._restored)
        return due

    def keep(self, batch: Any) -> None:
        """Take the batch that ran when a checkpoint was written: the epoch that begins returns it first."""
        self._kept = batch

    def start_epoch(self, epoch: int, batch: int) -> None:
        """Start epoch `epoch` at its batch number `batch`, which is not 0 when the run was resumed within it."""
        if self._kept is END:
            self._start_epoch(epoch, batch)
            return
        self._start_epoch(epoch, batch + 1)
        self._return_kept()

    def _return_kept(self) -> None:
        """Return the batch of the checkpoint at the next read: it is on its device, and has passed the user's hooks."""
        batch, read, move = self._kept, self._read, self._move
        self._kept = END

        def first() -> Any:
            self._read = read
            return batch

        def moved(batch: Any, _: int) -> Any:
            self._move = move
            return batch

        self._read = first
        if move is not None and not self._ahead_of_device:
            self._move = moved
        self.position, self.exhausted = self.position - 1, False

    def _start_epoch(self, epoch: int, batch: int) -> None:
        if not self.reload_if_due(epoch) and self._restored is not None and self._loaded_with is not None:
            # a resumed run has requested those of this epoch, but before the user's objects were restored
            with self.as_loading(self._loaded_with):
                self.load()
            self._load_generators(self._restored)
        for source in self.sources:
            source.start_epoch(self._seed or 0, epoch)
        self.position = batch
        saved, self._restored = self._restored, None
        self._skipped = bool(saved and saved.get("skipped")) and batch > 0
        self.exhausted = self.num_batches <= batch or self._skipped
        if self.exhausted:
            self._place = self._saved_place(batch, saved) or Place(len(self.sources))
            with isolate_rng():
                for source, state in zip(self.sources, saved["sources"] if saved else (), strict=False):
                    source.skip_to_end(batch, state, self.loaded.is_complete)
            return
        resumed = batch > 0 or self._from_start or bool(saved and saved.get("begun"))
        self._from_start = False
        if saved is not None and not resumed:
            with isolate_rng():
                for source, state in zip(self.sources, saved["sources"], strict=False):
                    source.load_between_epochs(state)
        with isolate_rng() if resumed else nullcontext():
            self._iterator = iterator = self._timed(self._resume(batch, saved) if resumed else self._begin())
            if saved is not None and resumed and saved.get("ahead") is not None:
                set_rng_state(saved["ahead"])
            self._read = self._first_read(iterator)
        self._workers_started = True
        if self.exhausted and not batch:
            leniency().tolerate(nothing_read("training", f"epoch {epoch}"), "the epoch ends without a batch")

    def _begin(self) -> Iterator[Any]:
        if self.loaded.is_single:
            return self.sources[0].begin()
        self._place = Place(len(self.sources))
        begin = lambda loader: self.sources[loader].begin()  # noqa: E731
        return (batch for batch, _, _ in self.loaded.combined.read(begin, self._place))

    def _resume(self, batch: int, saved: dict[str, Any] | None) -> Iterator[Any]:
        """Return the iterator of an epoch, starting at batch number `batch`."""
        states: list[Any] = (saved or {}).get("sources") or [None] * len(self.sources)
        if saved and (saved.get("size", 1) != self.loaded.size or saved.get("resized")):
            # what was drawn for other processes is drawn again
            states = [{**state, "pending": ()} for state in states]
        if self.loaded.is_single:
            return self.sources[0].begin_at(batch, 0, states[0])
        saved_place = self._saved_place(batch, saved)
        self._place = place = saved_place or Place(len(self.sources))
        if saved_place is None:  # the position in each loader is unknown: all are read again
            states = [state and {**state, "loader": None, "pending": ()} for state in states]
        to_resume = set(range(len(self.sources)))

        def begin(loader: int) -> Iterator[Any]:
            source = self.sources[loader]
            if loader in to_resume:
                to_resume.remove(loader)
                return source.begin_at(place.read[loader], place.turns[loader], states[loader])
            return source.begin()

        iterator = (item for item, _, _ in self.loaded.combined.read(begin, place))
        to_resume.clear()  # each loader that begins later begins at its start
        if saved_place is None and batch:
            next(islice(iterator, batch - 1, None), None)
        return iterator

    def _counts_at(self, batches: int) -> Counts | None:
        """Return the position in each loader after so many batches of this epoch; None when it is unknown."""
        if self.loaded.is_single:
            return batches, (batches,), (0,)
        counts_there = next((counts for counts in self._place.last_two if counts[0] == batches), None)
        place = self.loaded.combined.place_of(batches) if counts_there is None else None
        return place.now if place is not None else counts_there

    def _drawn_ahead(self, counts: Counts | None) -> list[list[Any]]:
        """Return for each loader the indices that were drawn and not used, at a position in all of them."""
        if counts is None:
            return [[] for _ in self.sources]
        return [source.drawn_ahead(used, turn) for source, used, turn in zip(self.sources, *counts[1:], strict=False)]

    def _saved_place(self, batch: int, saved: dict[str, Any] | None) -> Place | None:
        """Return the position in each loader; computed from their lengths when the number of processes has changed."""
        if self.loaded.is_single:
            return None
        place = saved.get("place") if saved else None
        if place is not None and saved and saved.get("size", 1) == self.loaded.size and place[0] == batch:
            return Place(now=(place[0], tuple(place[1]), tuple(place[2])))
        return self.loaded.combined.place_of(batch)

    def _first_read(self, iterator: Iterator[Any]) -> Callable[[], Any]:
        """Start reading in the way that these loaders need; return the function that returns the next batch."""
        ends = self.loaded.ends
        read: Callable[[], Any] = partial(next, iterator, END)
        if self._ahead_of_device and self._prefetch is not None:
            self._prefetch.start(iterator)
            self.exhausted = self._prefetch.ended
            read = self._prefetch.take if ends is None else self._take_ahead
        elif not self.loaded.length_is_exact:
            self._look_ahead(self.position)
            self.exhausted = self._ahead is END
            read = self._read_ahead
        if self.exhausted:
            self._compare_ends(self.position)
        elif ends is not None:  # not before: a rank that resumes at the end has not received more than that
            ends.follow_data(lambda: self.position)
        if self._ahead_of_device:
            return read
        if self._checks_rng and any(source.draws_here and source.stream is None for source in self.sources):
            return partial(self._check_rng, read, self.position + 1)
        return read

    def _check_rng(self, read: Callable[[], Any], second: int) -> Any:
        """Check at the second batch whether reading draws from the generators that the steps draw from."""
        if self.position < second:
            return read()
        self._read, self._checks_rng = read, False
        before = rng_state()
        batch = read()
        if not same_numbers(before, rng_state()):
            kinds = ", ".join(kind_of(loader) for loader in self.given)
            report.info_once(
                f"Training data: {kinds} draws random numbers as it is read, from the generators that the steps draw "
                "from. A run that is resumed within an epoch reads it again from the epoch's start: an order that is "
                "drawn as it is read will be different. With num_workers=1, or a state_dict of its own, it is exact."
            )
        return batch

    def _look_ahead(self, used: int) -> None:
        sources = self.sources
        draws = len(sources) > 1 or any(source.draws_here or source.stream is not None for source in sources)
        states = [source.state_dict() for source in sources]
        drawn = self._drawn_ahead(self._counts_at(used))
        self._before_ahead = self.loaded.states(), states, rng_state() if draws else None, drawn
        self._ahead = next(self._iterator, END)  # type: ignore[arg-type]
        if self.loaded.agrees and self._share is not None and any(self._share.gather(self._ahead is END)):
            self._ahead = END

    def __next__(self) -> Any:
        began = perf_counter()
        batch = self._read()
        if batch is END:
            raise MisconfigurationException(
                f"The training loader has a length of {int(self.num_batches)} batches, but it ended after "
                f"{self.position}.",
                expected="as many batches as its length.",
                fix=f"correct the sampler's __len__, or Trainer(limit_train_batches={self.position}).",
            )
        if self._move is not None and not self._ahead_of_device:
            batch = self._move(batch, 0)
        self.position += 1
        self.exhausted = self.position >= self.num_batches or (
            not self.loaded.length_is_exact and self._nothing_ahead()
        )
        self.waited += perf_counter() - began
        return batch

    def _read_ahead(self) -> Any:
        batch, self._before_ahead = self._ahead, None
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
        """When the data have ended after `batches`, wait for all processes; raise if their numbers differ."""
        ends = self.loaded.ends
        if ends is not None and batches and self._nothing_ahead():
            refuse_other_ends(ends.end_of_data(batches))

    def _nothing_ahead(self) -> bool:
        return self._prefetch.ended if self._ahead_of_device else self._ahead is END  # type: ignore[union-attr]

    def skip_epoch(self) -> None:
        self.exhausted = self._skipped = True

    def end_epoch(self) -> None:
        if self._iterator is not None:
            self._compare_with_length(self._iterator)
        self._drop_iterator()
        self._before_ahead, self._place = None, Place(len(self.sources))
        self.position, self.exhausted, self._skipped = 0, False, False

    def _compare_with_length(self, iterator: Iterator[Any]) -> None:
        loaded = self.loaded
        promised = f"The training loader has a length of {loaded.promised:g} batches, but it"
        complete = loaded.is_complete and self.position == self.num_batches
        if loaded.length_is_exact or (loaded.is_stateful and complete):
            # A loader with a state notices only at its end that the epoch is over.
            if complete and read_to_the_end(iterator) is not END:
                report.warn(
                    f"{promised} has more; the rest is not used. Correct the sampler's __len__.",
                    report.PossibleUserWarning,
                )
        elif loaded.promised < math.inf and self.position < self.num_batches and self._nothing_ahead():
            report.warn(
                f"{promised} ended after {self.position}: schedules and intervals that count by its length are wrong. "
                "Correct its __len__, or remove it.",
                report.PossibleUserWarning,
            )

    def close(self) -> None:
        """Stop the workers; the position can still be read."""
        self._drop_iterator()
        if self.is_loaded:
            self.loaded.stop_workers()

    def _drop_iterator(self) -> None:
        self._iterator, self._ahead, self._read = None, END, _read_nothing
        if self._prefetch is not None:
            self._prefetch.stop()

    def state_dict(self, done: int | None = None, keeps: bool = False) -> dict[str, Any]:
        """Return the position in the epoch, in batches and samples, and the state that draws the same epoch again.

        Args:
            done: The batches that the run has done: one less than are read while a batch runs, which is then read
                again, unless the loader has a state of its own. Default: all that are read.
            keeps: Whether the checkpoint holds the batch that runs, so that it need not be read again.
        """
        loaded = self.loaded
        if self._restored is not None:  # nothing has been read since
            return self._as_resized(self._restored)
        repeats = done is not None and done < self.position and not loaded.is_stateful and not keeps
        batches = self.position - repeats
        counts = self._counts_at(batches)
        place = counts or self._place.before
        if self._before_ahead is not None and not repeats:
            states, sources, ahead, drawn = self._before_ahead
            sources = [dict(source) for source in sources]
        else:
            turns = [None] * len(self.sources) if loaded.is_single else place[2]
            sources = [source.state_dict(turn) for source, turn in zip(self.sources, turns, strict=False)]
            states, ahead, drawn = loaded.states(), None, self._drawn_ahead(counts)
        for source, state in zip(sources, states, strict=False):
            source["loader"] = state
        begun = self._iterator is not None
        for source, items in zip(sources, drawn, strict=False):
            if not batches and not begun:  # what was drawn belongs to the epoch that has ended
                source["began"] = None
            elif items:
                source["pending"] = items
        return {
            "batches": batches,
            "kept": int(keeps),
            "samples": loaded.samples(batches),
            "size": loaded.size,
            "taken_at_once": loaded.taken_at_once(),
            "exhausted": self.exhausted and not repeats,
            "skipped": self._skipped,
            "begun": begun,
            "seed": self._seed,
            "place": None if loaded.is_single else [place[0], list(place[1]), list(place[2])],
            "sources": sources,
            "ahead": ahead,
            "workers": self._workers_started,
            "loaded_at": self._loaded_at,
            "loaded_with": self._loaded_with,
            "described": loaded.describe(),
        }

    def _as_resized(self, restored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state, with the sizes in which this run counts if another number of processes saved it."""
        loaded, state = self.loaded, {name: value for name, value in restored.items() if name != "resized"}
        if state.get("size", 1) != loaded.size:
            now = {"size": loaded.size, "taken_at_once": loaded.taken_at_once(), "described": loaded.describe()}
            state["resized"] = now
        return state

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Restore a state; return the position in batches of this run, which may have another number of processes."""
        self._restored = state
        self._loaded_at, self._loaded_with = state.get("loaded_at", 0), state.get("loaded_with")
        self._seed = state.get("seed", self._seed)
        self._workers_started = bool(state.get("workers"))
        position = self.loaded.position_of(state)
        self._from_start = position == 0 < state["batches"]
        if state.get("workers") and not 0 < position < self.num_batches:
            for source in self.sources:
                source.start_workers(self._seed or 0)
        self._load_generators(state)
        return position

    def _load_generators(self, state: dict[str, Any] | None) -> None:
        size = state.get("size", 1) if state else None
        for source, saved in zip(self.sources, state["sources"] if state else (), strict=False):
            source.load_state_dict(saved, size)

    def differences(self, state: dict[str, Any]) -> list[str]:
        return differences(state.get("described"), self.loaded.describe())
