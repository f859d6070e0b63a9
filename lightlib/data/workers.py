"""Workers: seeds their random numbers from the run's seed, the epoch and the sample's position."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info

from lightlib.data.generators import fingerprint, generators_in, reseeding

_MASK, _STEP = 2**64 - 1, 0x9E3779B97F4A7C15
_STAGES = ("training", "validation", "test", "prediction", "predict")
Reseed = Callable[[int], Any]


def _mixed(value: int) -> int:
    """Return a number of 64 bits in which every bit depends on every bit of `value` (the last step of splitmix64)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _key(*numbers: int) -> int:
    value = 0
    for number in numbers:
        value = _mixed(value + number + _STEP)
    return value


class Seeding:
    """The seeds of one loader's workers. It draws no random numbers itself.

    Args:
        stage, number: Of the loader: loaders that are read together draw different numbers.
        persistent: Whether workers live longer than an epoch; those of a stream then read the epoch in shared memory.

    Attributes:
        seed: Of the run; the same on all processes.
        epoch, turn: Of the present pass: the turn counts the passes of a short loader within one epoch.
    """

    def __init__(self, stage: str, number: int, persistent: bool, in_batches: bool = False) -> None:
        self.seed = self.epoch = self.turn = 0
        self.place = _key(_STAGES.index(stage) if stage in _STAGES else len(_STAGES), number)
        self.persistent, self.in_batches = persistent, in_batches
        self.shared = torch.zeros(2, dtype=torch.int64) if persistent else None
        if self.shared is not None:
            self.shared.share_memory_()  # type: ignore[no-untyped-call]

    def begin(self, seed: int, epoch: int, turn: int = 0) -> None:
        """Set the run's seed and the next pass, before the loader is iterated."""
        self.seed, self.epoch, self.turn = seed, epoch, turn
        if self.shared is not None:
            self.shared[0], self.shared[1] = epoch, turn

    def key(self) -> int:
        return _key(self.seed, self.place, self.epoch, self.turn)

    def key_in_worker(self, worker: int) -> int:
        """Return the key from which a worker's pass through a stream is seeded."""
        epoch, turn = (self.epoch, self.turn) if self.shared is None else self.shared.tolist()
        return _key(self.seed, self.place, epoch, turn, worker + 1)

    def of_worker(self, worker: int) -> int:
        """Return a worker's first seed; that of a persistent worker is the same in every epoch."""
        return _key(self.seed, self.place, 0 if self.persistent else self.epoch, 0, -1 - worker) >> 2


class Placed(NamedTuple):
    """An item of an index sampler, with its position in the epoch.

    Attributes:
        index: An index or a batch of them.
        key: Of the epoch.
        first, stride: The positions of its samples over all processes: `first`, `first + stride`, ….
    """

    index: Any
    key: int
    first: int
    stride: int


def _global_generators() -> list[Reseed]:
    calls: list[Reseed] = [random.seed, torch.default_generator.manual_seed]
    if "numpy" in sys.modules:
        seed = sys.modules["numpy"].random.seed
        calls.append(lambda value: seed(value >> 32))
    return calls


class _Wrapped:
    """Base of the wrappers that a worker reads instead of the user's data set; attributes are the data set's."""

    def __init__(self, inner: Any, seeding: Seeding) -> None:
        self.inner, self.seeding = inner, seeding
        self.prints: dict[str, int] = {}
        self.calls: list[Reseed] | None = None

    def __getattr__(self, name: str) -> Any:
        if name in ("inner", "__setstate__"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "calls": None}

    def __len__(self) -> int:
        return len(self.inner)

    def note(self) -> None:
        """Record the states of the data set's own generators, before workers get their copies."""
        self.prints = {
            place: fingerprint(generator) for place, generator in generators_in({"dataset": self.inner}).items()
        }

    def reseed(self, value: int) -> None:
        if self.calls is None:
            generators = generators_in({"dataset": self.inner})
            self.calls = _global_generators() + [
                reseeding(generator, self.prints.get(at, 0)) for at, generator in generators.items()
            ]
        for call in self.calls:
            call(value)


class Seeded(_Wrapped, Dataset[Any]):
    """A map-style data set that seeds all generators before each sample."""

    def __init__(self, inner: Any, seeding: Seeding) -> None:
        super().__init__(inner, seeding)
        leaf = inner
        while type(leaf) is Subset:
            leaf = leaf.dataset
        self.in_batches = bool(getattr(leaf, "__getitems__", None))  # then it is seeded once per batch

    def __getitem__(self, index: Any) -> Any:
        if type(index) is Placed:
            self.reseed(_mixed(index.key + index.first * _STEP))
            index = index.index
        return self.inner[index]

    def __getitems__(self, given: Any) -> Any:
        if type(given) is not Placed:
            return self.inner.__getitems__(given) if self.in_batches else [self.inner[index] for index in given]
        index, position, step = given.index, given.key + given.first * _STEP, given.stride * _STEP
        if self.in_batches:
            self.reseed(_mixed(position))
            return self.inner.__getitems__(index)
        inner, reseed, samples = self.inner, self.reseed, []
        for each in index:
            reseed(_mixed(position))
            samples.append(inner[each])
            position += step
        return samples


class SeededStream(_Wrapped, IterableDataset[Any]):
    """A stream that seeds all generators when an epoch begins."""

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is not None:
            self.calls = None
            self.reseed(self.seeding.key_in_worker(worker.id))
        return iter(self.inner)


class WorkerStart:
    """A `worker_init_fn`: derives the worker's seed from the run's, and shows it the user's data set."""

    def __init__(self, given: Callable[[int], None] | None, seeding: Seeding) -> None:
        self.given, self.seeding = given, seeding

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        seed = self.seeding.of_worker(worker)
        object.__setattr__(info, "dataset", unwrapped(info.dataset))
        object.__setattr__(info, "seed", seed)
        for call in _global_generators():
            call(seed)
        if self.given is not None:
            self.given(worker)


def begin_pass(loader: Any, seed: int, epoch: int, turn: int = 0) -> None:
    """Set the seed and the next pass of a loader's workers; call it before the loader is iterated."""
    dataset = getattr(loader, "dataset", None)
    if isinstance(dataset, _Wrapped):
        dataset.seeding.begin(seed, epoch, turn)
        dataset.note()


def unwrapped(dataset: Any) -> Any:
    """Return the user's data set, unwrapped."""
    return dataset.inner if isinstance(dataset, _Wrapped) else dataset


def in_worker(dataset: Any, seeding: Seeding) -> Any:
    """Return the wrapper of `dataset` that the workers of a loader read."""
    return (SeededStream if isinstance(dataset, IterableDataset) else Seeded)(dataset, seeding)
