"""BasePredictionWriter calls its two methods at its interval."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)

import lightlib
from lightlib.callbacks import BasePredictionWriter
from lightlib.errors import UnknownNameError
from tests.processes.ranks import ranks
from tests.runs.plain import with_methods
from tests.runs.quiet import QUIET


class Written(BasePredictionWriter):
    def __init__(self, interval):
        super().__init__(interval)
        self.calls = []

    def write_on_batch_end(self, trainer, pl_module, prediction, batch_indices, batch, batch_idx, dataloader_idx):
        self.calls.append((prediction, batch_indices, batch, batch_idx, dataloader_idx))

    def write_on_epoch_end(self, trainer, pl_module, predictions, batch_indices):
        self.calls.append((predictions, batch_indices))


class Doubles(lightlib.Module):
    def predict_step(self, batch, batch_idx):
        return batch * 2


BATCHES = [
    (torch.tensor([[0.0], [2.0]]), [0, 1], torch.tensor([[0.0], [1.0]]), 0, 0),
    (torch.tensor([[4.0]]), [2], torch.tensor([[2.0]]), 1, 0),
]
EPOCH = ([BATCHES[0][0], BATCHES[1][0]], [[[0, 1], [2]]])


@pytest.mark.parametrize(
    ("interval", "expected"), [("batch", BATCHES), ("epoch", [EPOCH]), ("batch_and_epoch", [*BATCHES, EPOCH])]
)
def test_it_writes_at_its_interval(interval, expected):
    writer = Written(interval)
    trainer = lightlib.Trainer(devices=1, callbacks=[writer], **QUIET)
    trainer.predict(Doubles(), DataLoader(torch.arange(3.0).reshape(3, 1), batch_size=2))
    assert str(writer.calls) == str(expected)


def test_another_interval_is_refused():
    with pytest.raises(UnknownNameError, match="Unknown write_interval of Written 'step'"):
        Written("step")


def test_each_loader_has_its_numbers_and_one_without_a_sampler_none():
    several = with_methods(Doubles, predict_step=lambda self, batch, batch_idx, dataloader_idx: batch * 2)
    writer = Written("batch_and_epoch")
    trainer = lightlib.Trainer(devices=1, callbacks=[writer], **QUIET, limit_predict_batches=2)
    data = torch.arange(8.0).reshape(8, 1)
    trainer.predict(several, [DataLoader(data, batch_size=2), DataLoader([data[:1], data[1:4]], batch_size=None)])
    *of_batches, (predictions, numbers) = writer.calls
    assert [(call[1], call[3], call[4]) for call in of_batches] == [
        ([0, 1], 0, 0),
        ([2, 3], 1, 0),
        (None, 0, 1),
        (None, 1, 1),
    ]
    assert numbers == [[[0, 1], [2, 3]], None]
    assert [[output.tolist() for output in loader] for loader in predictions] == [
        [[[0.0], [2.0]], [[4.0], [6.0]]],
        [[[0.0]], [[2.0], [4.0], [6.0]]],
    ]


class Drawn(Sampler):
    """Another order at each pass, from torch's generators, or a given one; it is used up after the first pass."""

    def __init__(self, orders):
        self.orders = orders

    def __len__(self):
        return 5

    def __iter__(self):
        return iter(torch.randperm(5).tolist() if self.orders is None else self.orders.pop(0))


class Generated(BatchSampler):
    """Batches as generators of tensors, which can be read once."""

    def __iter__(self):
        for batch in super().__iter__():
            yield (torch.tensor(index) for index in batch)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(5.0).reshape(5, 1))


class Keyed(Dataset):
    """A data set with names for its samples."""

    def __getitem__(self, key):
        return torch.tensor([float(key[1])])


DATA = torch.arange(5.0).reshape(5, 1)
KNOWN = {
    "shuffled": lambda: DataLoader(DATA, batch_size=2, shuffle=True),
    "workers": lambda: DataLoader(DATA, batch_size=2, num_workers=2),
    "persistent workers": lambda: DataLoader(DATA, batch_size=2, num_workers=1, persistent_workers=True),
    "workers, shuffled": lambda: DataLoader(DATA, batch_size=2, num_workers=1, shuffle=True),
    "workers, a batch sampler": lambda: DataLoader(
        DATA, num_workers=1, batch_sampler=BatchSampler([3, 1, 2], 2, drop_last=False)
    ),
    "drawn at each pass": lambda: DataLoader(DATA, batch_size=2, sampler=Drawn(None)),
    "an order for one pass": lambda: DataLoader(DATA, batch_size=2, sampler=Drawn([[4, 0, 3, 3, 1]])),
    "with replacement": lambda: DataLoader(DATA, batch_size=2, sampler=WeightedRandomSampler([1.0] * 5, 5)),
    "generators of indices": lambda: DataLoader(DATA, batch_sampler=Generated(SequentialSampler(DATA), 2, False)),
    "a subset": lambda: DataLoader(Subset(DATA, range(5)), batch_size=2),
    "a list": lambda: DataLoader(list(DATA), batch_size=5, drop_last=True),
}
UNKNOWN = {
    "a stream": lambda: DataLoader(Stream(), batch_size=2),
    "a stream, workers": lambda: DataLoader(Stream(), batch_size=2, num_workers=1),
    "samples that are not batched": lambda: DataLoader(DATA, batch_size=None),
    "a list of batches": lambda: [DATA[:2], DATA[2:]],
    "workers out of order": lambda: DataLoader(DATA, batch_size=2, num_workers=1, in_order=False),
}


def kinds(loaders):
    """Return the names of loaders; those with workers start processes."""
    return [pytest.param(name, marks=[pytest.mark.processes] * ("workers" in name)) for name in loaders]


def written(loader, **options):
    writer = Written("batch_and_epoch")
    lightlib.Trainer(devices=1, callbacks=[writer], **QUIET, **options).predict(Doubles(), loader)
    *of_batches, (_, numbers) = writer.calls
    return [(call[0].flatten().tolist(), call[1]) for call in of_batches], numbers


@pytest.mark.filterwarnings("ignore:The prediction loader", "ignore:.*fork")
@pytest.mark.parametrize("kind", kinds(KNOWN))
def test_the_numbers_are_those_of_the_samples_that_were_read(kind):
    calls, numbers = written(KNOWN[kind]())
    assert sum(len(outputs) for outputs, _ in calls) in (3, 5)
    assert [[2.0 * index for index in indices] for _, indices in calls] == [outputs for outputs, _ in calls]
    assert numbers == [[indices for _, indices in calls]]


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("kind", kinds(UNKNOWN))
def test_samples_without_numbers_have_none(kind):
    calls, numbers = written(UNKNOWN[kind]())
    assert sorted(x for outputs, _ in calls for x in outputs) == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert all(indices is None for _, indices in calls)
    assert numbers == [None]


@pytest.mark.processes
def test_what_workers_drew_beyond_the_limit_is_not_among_the_numbers():
    calls, numbers = written(DataLoader(DATA, batch_size=1, num_workers=1), limit_predict_batches=2)
    assert calls == [([0.0], [0]), ([2.0], [1])]
    assert numbers == [[[0], [1]]]


def test_samples_may_have_names():
    loader = DataLoader(Keyed(), batch_sampler=[[("a", 0), ("b", 1)], [("c", 2)]])
    assert written(loader)[1] == [[[("a", 0), ("b", 1)], [("c", 2)]]]


def test_random_numbers_are_drawn_as_without_a_writer():
    def predicted(callbacks):
        torch.manual_seed(3)
        loader = DataLoader(DATA, batch_size=2, shuffle=True)
        outputs = lightlib.Trainer(devices=1, callbacks=callbacks, **QUIET).predict(Doubles(), loader)
        return [output.tolist() for output in outputs], torch.rand(1).item()

    with pytest.warns(UserWarning, match="The prediction loader shuffles"):
        assert predicted([]) == predicted([Written("batch")])


def on_two(rank, strategy, workers, draws):
    writer = Written("batch_and_epoch")
    trainer = lightlib.Trainer(devices=2, strategy=strategy, callbacks=[writer], **QUIET)
    module = Doubles()
    module.layer = torch.nn.Linear(1, 1)
    sampler = WeightedRandomSampler([1.0] * 7, 7, replacement=False) if draws else None
    data = torch.arange(7.0).reshape(7, 1)
    trainer.predict(module, DataLoader(data, batch_size=2, sampler=sampler, num_workers=workers))
    *of_batches, (predictions, numbers) = writer.calls
    return [(call[0].flatten().tolist(), call[1]) for call in of_batches], len(predictions), numbers


@pytest.mark.processes
@pytest.mark.parametrize(
    ("strategy", "workers", "draws"), [("ddp", 0, False), ("fsdp", 0, False), ("ddp", 2, False), ("ddp", 1, True)]
)
def test_two_processes_write_each_sample_once_with_its_number(strategy, workers, draws):
    found = ranks(2, on_two, strategy, workers, draws)
    pairs = [pair for calls, _, _ in found for outputs, numbers in calls for pair in zip(outputs, numbers, strict=True)]
    assert sorted(pairs) == [(2.0 * number, number) for number in range(7)]
    for calls, count, numbers in found:
        assert numbers == [[indices for _, indices in calls]]
        assert count == len(calls)
