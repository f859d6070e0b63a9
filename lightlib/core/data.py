"""Data: loaders become one resumable stream of batches; no user object is rebuilt or patched."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from lightlib import report
from lightlib.core.combined import CombinedLoader, length
from lightlib.core.prefetch import END, Prefetch
from lightlib.core.seed import isolate_rng, rng_state, set_rng_state
from lightlib.core.signals import Undisturbed
from lightlib.errors import MisconfigurationException

__all__ = ["EvalData", "IndexStream", "TrainData", "combine", "limited", "set_epoch", "stream"]

Move = Callable[[Any, int], Any]


class IndexStream:
    """The indices that a loader's sampler draws, with a memory: which generators drew them, and where to begin.

    A sampler draws its permutation at the first `next`, inside of the generator below, whatever the number of workers.
    The state of the generators at that moment is kept; given back, it draws the same permutation, of which the first
    `skip` items are passed over without loading any data.
    """

    def __init__(self, indices: Any) -> None:
        self.indices = indices
        self.skip = 0
        self.state: dict[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __getattr__(self, name: str) -> Any:
        if name == "indices":
            raise AttributeError(name)
        return getattr(self.indices, name)

    def __iter__(self) -> Iterator[Any]:
        if self.skip:
            present = self._present()
            if self.state is not None:
                self._give_back(self.state)
            drawn = iter(self.indices)
            first = next(islice(drawn, self.skip, None), END)
            set_rng_state(present["global"])
            self.skip = 0
            if first is END:
                return
            yield first
        else:
            self.state = self._present()
            drawn = iter(self.indices)
        yield from drawn

    def _generators(self) -> list[torch.Generator]:
        owners = (self.indices, getattr(self.indices, "sampler", None))
        return [g for g in (getattr(owner, "generator", None) for owner in owners) if isinstance(g, torch.Generator)]

    def generator_states(self) -> list[torch.Tensor]:
        """Return the states of the samplers' own generators, which go on from epoch to epoch."""
        return [generator.get_state() for generator in self._generators()]

    def set_generator_states(self, states: list[torch.Tensor]) -> None:
        """Take back what `generator_states` returned."""
        for generator, own in zip(self._generators(), states, strict=False):
            generator.set_state(own)

    def _present(self) -> dict[str, Any]:
        return {"global": rng_state(), "own": self.generator_states()}

    def _give_back(self, state: dict[str, Any]) -> None:
        set_rng_state(state["global"])
        self.set_generator_states(state["own"])


def stream(loader: Any, sequential: bool = False) -> Any:
    """Return a loader that reads like `loader` but remembers its position; `loader` itself stays as it is.

    Args:
        loader: What the user gave. A plain DataLoader over a map-style data set is copied (shallowly: data set,
            workers' settings and sampler are shared) and its index sampler is seen through an :class:`IndexStream`.
        sequential: Replace a RandomSampler by the data set's own order (`overfit_batches`).
    """
    if (
        not isinstance(loader, DataLoader)
        or isinstance(loader.dataset, IterableDataset)
        or hasattr(loader, "state_dict")
        or type(loader).__iter__ is not DataLoader.__iter__  # it may never ask the sampler that is put into the copy
    ):
        return loader
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    indices = getattr(loader, name)
    if sequential and isinstance(loader.sampler, RandomSampler):
        report.warn(
            "overfit_batches: the training loader shuffles; its samples are taken in the data set's order instead."
        )
        indices = SequentialSampler(loader.dataset)  # type: ignore[arg-type]
        if name == "batch_sampler" and loader.batch_size is not None:
            indices = BatchSampler(indices, loader.batch_size, loader.drop_last)
    copied = copy.copy(loader)
    object.__setattr__(copied, name, IndexStream(indices))
    copied.worker_init_fn = Undisturbed(loader.worker_init_fn)
    copied._iterator = None  # noqa: SLF001  persistent workers that the user has started read the user's own sampler
    return copied


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


class TrainData:
    """The training batches: one iterator per epoch, which knows before each batch runs whether it is the last.

    Attributes:
        num_batches: Batches per epoch, after the limit; `inf` when unknown.
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
        collected: bool = False,
    ) -> None:
        self._source, self._limit, self._move, self._reload_every = source, limit, move, reload_every
        self._sequential, self._prefetch = sequential, prefetch
        self._loaded_at = 0
        self._iterator: Iterator[Any] | None = None
        self._started: dict[str, Any] | None = None
        self._workers_started = False
        self._read: Callable[[], Any] = _read_nothing
        self._ahead: Any = END
        self._behind: list[Any] | None = None  # where stateful loaders were before the batch that is read ahead
        self._restored: dict[str, Any] | None = None
        self.position = 0
        self.exhausted = False
        self.waited = 0.0
        self.load()

    def load(self) -> None:
        """Ask the user for the loaders and find out how long they are."""
        self.loaders = self._source()
        combined = combine(self.loaders, "max_size_cycle")
        self._single = len(combined.flattened) == 1 and combined.iterables is combined.flattened[0]
        self._combined = combined.with_loaders([stream(loader, self._sequential) for loader in combined.flattened])
        flattened = self._combined.flattened
        total = length(flattened[0]) if self._single else length(self._combined)
        self.num_batches = limited(total, self._limit, "limit_train_batches", "training")
        self._whole, self._promised = self._single and self.num_batches == total, total
        self._trusted = self._length_is_exact() and self.num_batches != math.inf
        self._stateful = any(hasattr(x, "state_dict") for x in flattened)
        with_workers = all(getattr(x, "num_workers", 0) for x in flattened)
        self._ahead_of_device = self._prefetch is not None and with_workers and not self._stateful

    def _length_is_exact(self) -> bool:
        """Whether the length is sure, so that no batch must be read ahead to know the last one."""

        def exact(loader: Any) -> bool:
            if isinstance(loader, DataLoader):
                return not isinstance(loader.dataset, IterableDataset)
            return isinstance(loader, Sequence)

        return all(exact(loader) for loader in self._combined.flattened)

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
        if batch:
            with isolate_rng():
                self._begin(batch)
        else:
            self._begin(0)
        if self.exhausted and not batch:
            raise nothing_read("training", f"epoch {epoch}")

    def _draw_the_rest(self, batch: int) -> None:
        """Leave the samplers' own generators as a whole epoch leaves them, in a run that is resumed at its end."""
        if self._whole and self._restored is not None:
            with isolate_rng():
                for one, state in zip(self._streams(), self._restored["streams"], strict=False):
                    one.state, one.skip = state, batch
                    next(iter(one), None)

    def _begin(self, skip: int) -> None:
        streams = self._streams()
        places = [skip] if self._single else self._combined.places(skip)
        on_stream = skip and places is not None and len(streams) == len(self.flattened)
        if skip and self._restored is not None:
            saved = self._restored.get("streams", [])
            for one, state in zip(streams, saved, strict=False):
                one.state = state
            started = self._restored.get("started")
            if not on_stream and started is not None:
                set_rng_state(started)
                for one, states in zip(streams, started.get("own", []), strict=False):
                    one.set_generator_states(states)
        stateful = bool(skip) and self._single and self._load_stateful()
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
        for one, loader in zip(self.flattened, combine(self.loaders, "max_size_cycle").flattened, strict=True):
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

    def samples(self) -> int | None:
        """Return how many samples of this epoch were handed out, when the loader's batch size is known."""
        loader = self.flattened[0] if self._single else None
        size = getattr(loader, "batch_size", None)
        if size is None:
            return None
        sampler = getattr(loader, "sampler", None)
        return int(min(self.position * size, length(sampler)))

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch, in batches and samples, and what draws the same epoch again."""
        loaders = self._loader_states() if self._behind is None else self._behind
        within = self._started is not None
        return {
            "batches": self.position,
            "samples": self.samples(),
            "streams": [one.state for one in self._streams()] if within else [],
            "generators": [one.generator_states() for one in self._streams()],
            "started": self._started if within else None,
            "workers": self._workers_started,
            "loaded_at": self._loaded_at,
            "loaders": loaders,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._restored = state
        self._loaded_at = state.get("loaded_at", 0)
        if state.get("workers") and not 0 < state["batches"] < self.num_batches:
            start_persistent_workers(self.flattened)
        for one, states in zip(self._streams(), state.get("generators", []), strict=False):
            one.set_generator_states(states)


def start_persistent_workers(loaders: Sequence[Any]) -> None:
    """Start workers that the saved run had when it was saved: starting them draws a seed, which it had drawn before."""
    for loader in loaders:
        if getattr(loader, "persistent_workers", False):
            iter(loader)


class EvalData:
    """The batches of a validation, test or prediction: all loaders, one after the other or together."""

    def __init__(self, loaders: Any, limit: float, move: Move | None, argument: str, name: str) -> None:
        self.loaders = loaders
        combined = combine(loaders, "sequential")
        self.combined = combined.with_loaders(combined.flattened)
        given = combined.limits or [math.inf] * len(combined.flattened)
        totals = [min(length(x), own) for x, own in zip(self.combined.flattened, given, strict=True)]
        self.num_batches = [limited(total, limit, argument, name) for total in totals]
        self.combined.limits = self.num_batches
        self._move, self.name = move, name

    @property
    def num_loaders(self) -> int:
        return len(self.combined.flattened) if self.combined.mode == "sequential" else 1

    def start_workers(self) -> None:
        """Start persistent workers, as a run did that is resumed now."""
        start_persistent_workers(self.combined.flattened)

    def batches(self, limits: list[float] | None = None) -> Iterator[tuple[Any, int, int]]:
        """Yield (batch on the device, batch_idx, dataloader_idx), at most `limits` of each loader."""
        self.combined.limits = limits = self.num_batches if limits is None else limits
        move, seen = self._move, set()
        for batch, i, loader in self.combined:
            seen.add(loader)
            yield (batch if move is None else move(batch, loader)), i, loader
        wanted = range(self.num_loaders) if self.num_loaders > 1 else (0,) if min(limits) > 0 else ()
        for loader in wanted:
            if loader not in seen and limits[loader] > 0:
                raise nothing_read(
                    self.name, f"the place {loader} of {self.num_loaders}" if self.num_loaders > 1 else ""
                )
