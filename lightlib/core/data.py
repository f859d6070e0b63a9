"""Data: training loaders become one resumable stream of batches; no user object is rebuilt or patched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from lightlib import report
from lightlib.core.combined import CombinedLoader, length
from lightlib.core.prefetch import END, Prefetch
from lightlib.core.seed import isolate_rng, rng_state, set_rng_state
from lightlib.core.sharding import (
    Dealt,
    IndexStream,
    Share,
    batch_size_of_loader,
    is_dealt,
    say_once,
    stream,
    with_smaller_batches,
)
from lightlib.errors import MisconfigurationException

__all__ = [
    "Move",
    "TrainData",
    "combine",
    "is_length_exact",
    "limited",
    "nothing_read",
    "refuse_other_loaders",
    "set_epoch",
    "start_persistent_workers",
]

Move = Callable[[Any, int], Any]


def combine(loaders: Any, mode: str) -> CombinedLoader:
    """Return one loader or a collection of them as a CombinedLoader; one that is a CombinedLoader already stays."""
    return loaders if isinstance(loaders, CombinedLoader) else CombinedLoader(loaders, mode)


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell samplers and data sets that have `set_epoch` which epoch begins."""
    for owner in (loader, *(getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset"))):
        for one in (owner, getattr(owner, "sampler", None)):
            tell = getattr(one, "set_epoch", None)
            if callable(tell):
                tell(epoch)


def limited(total: float, limit: float, argument: str, name: str) -> float:
    """Return how many of `total` batches `limit` leaves: an int is a number of batches, a float a fraction.

    Raises:
        MisconfigurationException: A fraction of an unknown length, or one that leaves no batch.
    """
    if isinstance(limit, int):
        return min(total, limit)
    if limit == 1.0:
        return total
    if limit == 0.0 or total == 0:
        return 0
    if total == math.inf:
        raise MisconfigurationException(
            f"{argument}={limit} is a fraction, but the {name} loader has no length.",
            expected="an int (a number of batches) or 1.0 for loaders without a length.",
            fix=f"Trainer({argument}=100)",
        )
    if int(total * limit) == 0:
        raise MisconfigurationException(
            f"{argument}={limit} of {int(total)} {name} batches leaves none.",
            expected=f"at least {1 / total:.3g}, or an int.",
            fix=f"Trainer({argument}=1) runs one batch.",
        )
    return int(total * limit)


def nothing_read(name: str, where: str) -> MisconfigurationException:
    """Return the error for a loader that gave no batch."""
    return MisconfigurationException(
        f"The {name} loader gave no batch{where and f' in {where}'}.",
        expected="at least one batch each time it is iterated.",
        fix="check the data set; a generator or iterator can be read only once: pass a list, or a DataLoader.",
    )


def _read_nothing() -> Any:
    return END


def is_length_exact(loader: Any) -> bool:
    """Whether the length is sure, so that no batch must be read ahead to know the last one."""
    source = loader.items if isinstance(loader, Dealt) else loader
    if isinstance(source, DataLoader):
        return not isinstance(source.dataset, IterableDataset)
    return isinstance(source, Sequence)


def refuse_other_loaders(numbers: list[int], name: str) -> None:
    """Refuse processes with different numbers of loaders."""
    if len(set(numbers)) > 1:
        raise MisconfigurationException(
            f"The processes have different numbers of {name} loaders: {_by_rank(numbers)}.",
            expected="the same loaders on every rank.",
            fix="let nothing that decides about loaders depend on the rank.",
        )


def _by_rank(numbers: Sequence[float]) -> str:
    return ", ".join(f"rank {rank}: {'no length' if n == math.inf else n}" for rank, n in enumerate(numbers))


class TrainData:
    """The training batches: one iterator per epoch, which knows before each batch runs whether it is the last.

    Attributes:
        given: The user's loaders in one list.
        num_batches: Batches per epoch on this process, after the limit; `inf` when unknown. Equal on all processes.
        exhausted: Whether this epoch has no further batch.
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
        share: Share | None = None,
        largest: int | None = None,
    ) -> None:
        self._source, self._limit, self._move, self._reload_every = source, limit, move, reload_every
        self._sequential, self._prefetch, self._share, self._largest = sequential, prefetch, share, largest
        self._loaded_at = 0
        self._iterator: Iterator[Any] | None = None
        self._started: dict[str, Any] | None = None
        self._workers_started = False
        self._read: Callable[[], Any] = _read_nothing
        self._ahead: Any = END
        self._behind: list[Any] | None = None  # where stateful loaders were before the batch that is read ahead
        self._restored: dict[str, Any] | None = None
        self._from_start = False  # the epoch that was saved is read again from its start, in the same order
        self.position = 0
        self.exhausted = False
        self.waited = 0.0
        self.load()

    def load(self) -> None:
        """Ask the user for the loaders and find out how long they are."""
        self.loaders = self._source()
        combined = combine(self.loaders, "max_size_cycle")
        self._single = len(combined.flattened) == 1 and combined.iterables is combined.flattened[0]
        self.given = given = combined.flattened
        if self._largest is not None:
            given = [with_smaller_batches(loader, self._largest) for loader in given]
        self._combined = combined.with_loaders([stream(loader, self._sequential, self._share) for loader in given])
        flattened = self._combined.flattened
        total = length(flattened[0]) if self._single else length(self._combined)
        if self._share is None:
            self.num_batches = limited(total, self._limit, "limit_train_batches", "training")
        else:
            self.num_batches = self._length_of_all(total, given, self._share)
        self._whole, self._promised = self._single and self.num_batches == total, total
        self._trusted = all(map(is_length_exact, flattened)) and self.num_batches != math.inf
        self._agrees = self._share is not None and not self._trusted and not all(map(is_dealt, flattened))
        if self._agrees:
            say_once(
                "Training data: the lengths of the loaders are not sure, so before each batch all processes agree "
                "whether each has one more (one small collective). An epoch ends with the shortest."
            )
        self._stateful = any(hasattr(x, "state_dict") for x in flattened)
        with_workers = all(getattr(x, "num_workers", 0) for x in flattened)
        alone = with_workers and not self._stateful and not self._agrees
        self._ahead_of_device = self._prefetch is not None and alone

    def _length_of_all(self, total: float, given: list[Any], share: Share) -> float:
        """Return the number of batches when it is the same on all processes; else refuse it on all of them alike."""
        everybody = share.gather((len(given), total))
        refuse_other_loaders([number for number, _ in everybody], "training")
        for own, loader in zip(self.flattened, given, strict=True):
            if length(own) == 0 and length(loader) > 0:
                raise MisconfigurationException(
                    f"The training loader has {length(loader)} batches for {share.size} processes, which leaves none "
                    "for each.",
                    expected=f"at least one batch on each of the {share.size} processes.",
                    fix="a smaller batch_size, fewer devices, or drop_last=False.",
                )
        lengths = [limited(one, self._limit, "limit_train_batches", "training") for _, one in everybody]
        if len(set(lengths)) > 1:
            least = min(lengths)
            raise MisconfigurationException(
                f"The processes have different numbers of training batches: {_by_rank(lengths)}.",
                expected="the same number on every rank: a process with fewer would leave the others waiting.",
                fix=(f"Trainer(limit_train_batches={least}), or " if 0 < least < math.inf else "")
                + "parts of equal size (drop_last=True, padded samplers), or give every rank the whole data and let "
                "Trainer(use_distributed_sampler=True) deal them.",
            )
        return lengths[0]

    @property
    def flattened(self) -> list[Any]:
        return self._combined.flattened

    def start_epoch(self, epoch: int, batch: int) -> None:
        """Begin epoch `epoch` at its batch number `batch`, which is not 0 when the run was resumed within it."""
        due = bool(self._reload_every) and epoch - self._loaded_at >= self._reload_every
        if due or (self._restored is not None and self._loaded_at):  # those of a resumed run were loaded in epoch 0
            self.load()
            self._loaded_at = epoch if due else self._loaded_at
        for loader in self.flattened:
            set_epoch(loader, epoch)
        self.position = batch
        self.exhausted = self.num_batches <= batch
        if self.exhausted:
            self._draw_the_rest(batch)
            return
        resumed, self._from_start = batch > 0 or self._from_start, False
        with isolate_rng() if resumed else nullcontext():
            self._begin(batch, resumed)
        if self.exhausted and not batch:
            raise nothing_read("training", f"epoch {epoch}")

    def _draw_the_rest(self, batch: int) -> None:
        """Leave the samplers' own generators as a whole epoch leaves them, in a run that is resumed at its end."""
        if self._whole and self._restored is not None:
            with isolate_rng():
                for one, state in zip(self._streams(), self._restored["streams"], strict=False):
                    one.state, one.skip = state, batch
                    next(iter(one), None)

    def _begin(self, skip: int, resumed: bool) -> None:
        streams = self._streams()
        places = [skip] if self._single else self._combined.places(skip)
        on_stream = resumed and places is not None and len(streams) == len(self.flattened)
        if resumed and self._restored is not None:
            saved = self._restored.get("streams", [])
            for one, state in zip(streams, saved, strict=False):
                one.state = state
            started = self._restored.get("started")
            if not on_stream and started is not None:
                set_rng_state(started)
                for one, states in zip(streams, started.get("own", []), strict=False):
                    one.set_generator_states(states)
        stateful = resumed and self._single and self._load_stateful()
        if on_stream:
            for one, place in zip(streams, places or (), strict=True):
                one.skip = place
        self._started = {**rng_state(), "own": [one.generator_states() for one in streams]}
        iterator = iter(self.flattened[0]) if self._single else (batch for batch, _, _ in self._combined)
        if skip and not on_stream and not stateful:
            next(islice(iterator, skip - 1, None), None)
        self._iterator = iterator
        self._restored, self._workers_started = None, True
        if self._ahead_of_device and self._prefetch is not None:
            self._prefetch.start(iterator)
            self.exhausted = self._prefetch.ended
            self._read = self._prefetch.take
        elif self._trusted:
            self._read = partial(next, iterator, END)
        else:
            self._look_ahead()
            self.exhausted = self._ahead is END
            self._read = self._read_ahead

    def _look_ahead(self) -> None:
        self._behind = self._loader_states()
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
            self._look_ahead()
        return batch

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
        self._behind = self._started = None
        self.position, self.exhausted = 0, False

    def _compare_with_length(self, iterator: Iterator[Any]) -> None:
        promised = f"The training loader says that it has {self._promised:g} batches, but it"
        if self._trusted:
            # Read to the end, as a `for` loop does: only now the sampler has drawn all it draws in an epoch.
            if self._whole and self.position == self.num_batches and next(iterator, END) is not END:
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
            if one is not loader:
                one._iterator = None  # noqa: SLF001  the only reference to persistent workers

    def _let_go(self) -> None:
        self._iterator, self._ahead, self._read = None, END, _read_nothing
        if self._prefetch is not None:
            self._prefetch.stop()

    def _streams(self) -> list[IndexStream]:
        found = (getattr(x, name, None) for x in self.flattened for name in ("batch_sampler", "sampler"))
        return [one for one in found if isinstance(one, IndexStream)]

    def _loader_states(self) -> list[Any] | None:
        if not self._stateful:
            return None
        return [x.state_dict() if hasattr(x, "state_dict") else None for x in self.flattened]

    def _load_stateful(self) -> bool:
        """Give a loader that keeps its own position back what it saved; return whether there was anything."""
        loader, (state, *_) = self.flattened[0], (self._restored or {}).get("loaders") or [None]
        if state is None or not hasattr(loader, "load_state_dict"):
            return False
        loader.load_state_dict(state)
        return True

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
        loaders = self._loader_states() if self._behind is None else self._behind
        within = self._started is not None
        return {
            "batches": self.position,
            "samples": self.samples(),
            "size": self._size,
            "taken_at_once": self._taken_at_once(),
            "exhausted": self.exhausted,
            "streams": [one.state for one in self._streams()] if within else [],
            "generators": [one.generator_states() for one in self._streams()],
            "started": self._started if within else None,
            "workers": self._workers_started,
            "loaded_at": self._loaded_at,
            "loaders": loaders,
        }

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Take back a state; return the position in batches of this run, which may be shared by more or fewer."""
        self._restored = state
        self._loaded_at = state.get("loaded_at", 0)
        place = self._place_of(state)
        self._from_start = place == 0 < state["batches"]
        if state.get("workers") and not 0 < place < self.num_batches:
            start_persistent_workers(self.flattened)
        for one, states in zip(self._streams(), state.get("generators", []), strict=False):
            one.set_generator_states(states)
        return place

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


def start_persistent_workers(loaders: Sequence[Any]) -> None:
    """Start workers that the saved run had when it was saved: starting them draws a seed, which it had drawn before."""
    for loader in loaders:
        if getattr(loader, "persistent_workers", False):
            iter(loader)
