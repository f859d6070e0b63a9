"""Loaders of all kinds, read in full, and resumed after every batch."""

from __future__ import annotations

import gc
import io
import itertools
import pickle
import random

import numpy
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

from lightlib.data.seed import rng_state, set_rng_state
from lightlib.data.train import TrainData


class Noise(Dataset):
    """Sample i is i and three random numbers, one from each global generator."""

    def __init__(self, n=22):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return torch.tensor([index, float(torch.rand(())), random.random(), numpy.random.rand()], dtype=torch.float64)


class OwnNoise(Noise):
    """Random numbers from generators that it holds, some of them deep inside."""

    def __init__(self, n=22):
        super().__init__(n)
        self.transforms = [{"torch": torch.Generator().manual_seed(3)}, random.Random(4)]
        self.numbers = numpy.random.default_rng(5)
        self.old = numpy.random.RandomState(6)

    def __getitem__(self, index):
        first = torch.rand((), generator=self.transforms[0]["torch"])
        numbers = [index, float(first), self.transforms[1].random(), self.numbers.random(), self.old.rand()]
        return torch.tensor(numbers, dtype=torch.float64)


class OwnOrder(Sampler):
    """An order from NumPy's generator, drawn as it is read."""

    def __init__(self, n):
        self.n, self.numbers = n, numpy.random.default_rng(7)

    def __len__(self):
        return self.n

    def __iter__(self):
        for _ in range(self.n):
            yield int(self.numbers.integers(self.n))


class UnsizedOrder(Sampler):
    """An order without a length from the global generators, drawn as it is read or at its start."""

    def __init__(self, n, late):
        self.n, self.late = n, late

    def __iter__(self):
        drawn = (random.randrange(self.n) for _ in range(self.n))
        yield from drawn if self.late else torch.randperm(self.n).tolist()


class LateOrder(UnsizedOrder):
    """An order with a length from the global generators, drawn as it is read."""

    def __init__(self, n):
        super().__init__(n, late=True)

    def __len__(self):
        return self.n


class Stream(IterableDataset):
    """A stream that shuffles when it begins; its samples have noise when `noise`."""

    def __init__(self, n=22, noise=False):
        self.n, self.noise = n, noise

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        own = range(self.n) if worker is None else range(worker.id, self.n, worker.num_workers)
        for i in random.sample(list(own), len(own)):
            yield torch.tensor([i, float(torch.rand(())) if self.noise else 0.0])


class SizedStream(Stream):
    """A stream that reports its length correctly."""

    def __len__(self):
        return self.n


class Unsized:
    """An iterable without a length, that shuffles when it begins, with a generator of its own."""

    def __init__(self, n=9):
        self.n, self.numbers = n, numpy.random.default_rng(8)

    def __iter__(self):
        for i in self.numbers.permutation(self.n):
            yield torch.tensor([int(i), float(torch.rand(()))])


class Knows:
    """A loader that keeps its place."""

    def __init__(self, n=7):
        self.n, self.place = n, 0

    def __iter__(self):
        while self.place < self.n:
            self.place += 1
            yield torch.tensor([self.place])
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class Keeps(IterableDataset):
    """A stream with stateful iterators, generators included, which torchdata saves from every worker."""

    def __init__(self, n=22):
        self.n = n

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        return KeepsPlace(range(self.n) if worker is None else range(worker.id, self.n, worker.num_workers))


class KeepsPlace:
    """Items with noise, and a place that can be saved."""

    def __init__(self, items):
        self.items, self.at, self.numbers = items, 0, random.Random(len(items))

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == len(self.items):
            raise StopIteration
        self.at += 1
        return torch.tensor([self.items[self.at - 1], self.numbers.random()])

    def state_dict(self):
        version, numbers, gauss = self.numbers.getstate()
        return {"at": self.at, "numbers": [version, list(numbers), gauss]}

    def load_state_dict(self, state):
        self.at = state["at"]
        version, numbers, gauss = state["numbers"]
        self.numbers.setstate((version, tuple(numbers), gauss))


class KeepsByIndex(Noise):
    """A map-style data set with a state: how often it was read."""

    def __init__(self, n=22):
        super().__init__(n)
        self.reads = 0

    def __getitem__(self, index):
        self.reads += 1
        return torch.tensor([index, self.reads])

    def state_dict(self):
        return {"reads": self.reads}

    def load_state_dict(self, state):
        self.reads = state["reads"]


def seeded(seed):
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def through_a_file(state):
    """The state as it is after it was written and read without running code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def plain(batch):
    if isinstance(batch, dict):
        return {key: plain(one) for key, one in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [plain(one) for one in batch]
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def step():
    """Draw as a training step does, so that reading and training alternate on the generators."""
    return float(torch.rand(3).sum()) + random.random() + numpy.random.rand()


def read_all(make, epochs=3, saves=True, begun=None, **arguments):
    """Read epochs, with draws in between; return the items, and a checkpoint for each place.

    Args:
        begun: A list that gets the checkpoint of each epoch that has begun and read nothing, as a run has one that was
            stopped at the end of the epoch before.
    """
    seeded(11)
    data = TrainData(make, arguments.pop("limit", 1.0), None, **arguments)
    seen, saved = [], []

    def save(epoch, batch, places=saved):
        if saves:
            places.append((epoch, batch, len(seen), pickle.dumps(data.state_dict()), rng_state()))

    for epoch in range(epochs):
        data.start_epoch(epoch, 0)
        if begun is not None:
            save(epoch, 0, begun)
        while not data.exhausted:
            seen.append((plain(next(data)), step()))
            save(epoch, data.position)
        data.end_epoch()
        save(epoch + 1, 0)
    data.close()
    return seen, saved


def read_rest(make, epoch, batch, state, numbers, epochs=3, **arguments):
    """Read the rest after a checkpoint, as another program with a different seed."""
    return read_rest_and_states(make, epoch, batch, state, numbers, epochs, **arguments)[0]


def read_rest_and_states(make, epoch, batch, state, numbers, epochs=3, **arguments):
    """Do the same, and return the states after the next place and at the end as well."""
    seeded(99)
    data = TrainData(make, arguments.pop("limit", 1.0), None, **arguments)
    assert data.load_state_dict(state) == batch
    set_rng_state(numbers)
    assert data.state_dict() is not None
    seen, states = [], []
    for number in range(epoch, epochs):
        data.start_epoch(number, batch if number == epoch else 0)
        while not data.exhausted:
            seen.append((plain(next(data)), step()))
            states = [*states[:1], pickle.dumps(data.state_dict())]
        data.end_epoch()
        states = [*states[:1], pickle.dumps(data.state_dict())]
    data.close()
    return seen, states


def compared(state):
    """The state as plain values, after a file, without states that loaders no longer need or keep in their own way."""
    values = plain(through_a_file(pickle.loads(state)))
    return {**values, "sources": [{**source, "loader": None, "began": None} for source in values["sources"]]}


def check(make, only=None, between=None, **arguments):
    """Resume after every batch and epoch, or at some of them; compare with an uninterrupted run.

    Args:
        only: The numbers of the batches, counted over all epochs.
        between: The epochs that are resumed at their start.
    """
    gc.freeze()  # exempt modules of other tests, so that each collection is fast
    try:
        return _check(make, only, between, arguments)
    finally:
        gc.unfreeze()


def _check(make, only, between, arguments):
    begun = []
    whole, saved = read_all(make, begun=begun, **arguments)
    gc.collect()
    unsaved, _ = read_all(make, saves=False, **arguments)
    assert whole == unsaved, "saving changes nothing"
    for place, (epoch, batch, done, state, numbers) in enumerate(saved, 1):
        wanted = (only is None or done in only) if batch else (between is None or epoch in between)
        if wanted:
            given = through_a_file(pickle.loads(state))
            rest, states = read_rest_and_states(make, epoch, batch, given, numbers, **arguments)
            gc.collect()  # loaders that keep their iterators keep their workers
            where = f"resumed in epoch {epoch} after batch {batch}"
            assert rest == whole[done:], where
            later = [state for *_, state, _ in (saved[place:][:1] + saved[place + 1 :][-1:])]
            assert list(map(compared, states)) == list(map(compared, later)), where
    for epoch, batch, done, state, numbers in begun:
        if between is None or epoch in between:
            rest = read_rest(make, epoch, batch, through_a_file(pickle.loads(state)), numbers, **arguments)
            gc.collect()
            assert rest == whole[done:], f"resumed where epoch {epoch} had begun"
    return whole


class Told(IterableDataset):
    """A stream with an order that follows from the epoch last set, or from a loaded state."""

    def __init__(self, n):
        self.n, self.epoch, self.state = n, 1, None

    def set_epoch(self, epoch):
        if self.state is None:
            self.epoch = epoch

    def __iter__(self):
        self.epoch = self.epoch if self.state is None else self.state["epoch"]
        yield from (int(i) for i in numpy.random.default_rng(self.epoch).permutation(self.n))


class CountsEpochs:
    """A loader with a state, like litdata's: it sets its data set's epoch by its own count, from 1.

    The state at the end of an epoch is the beginning of the next. A loaded state is updated in place whenever the state
    is requested, and stays in use until it has been read to its end.
    """

    def __init__(self, n=7):
        self.dataset, self.epoch, self.place, self.restored = Told(n), 0, 0, False

    def __len__(self):
        return self.dataset.n

    def __iter__(self):
        if not self.restored:
            self.epoch, self.place, self.dataset.state = self.epoch + 1, 0, None
        self.dataset.set_epoch(self.epoch)
        for item in itertools.islice(self.dataset, self.place, None):
            self.place += 1
            yield torch.tensor([item])
        self.restored = False

    def state_dict(self):
        own = {"epoch": self.dataset.epoch, "place": self.place}
        if self.dataset.state is not None:
            self.dataset.state.update(own)
            own = self.dataset.state
        return {"epoch": self.epoch, "place": self.place, "dataset": own}

    def load_state_dict(self, state):
        self.epoch, self.place, self.dataset.state = state["epoch"], state["place"], state["dataset"]
        self.restored = 0 < self.place < self.dataset.n
