"""The number of samples in a batch, counted by hand, and the means that are weighted with it."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from lightlib.callbacks import MetricPrinter
from lightlib.callbacks.callback import Callback
from lightlib.core.metrics.batch_size import BatchSize
from lightlib.data.combined import CombinedLoader
from lightlib.report import PossibleUserWarning
from tests.runs.logs import Base
from tests.runs.plain import calling, quiet_trainer, with_methods


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclass
class Fields:
    x: Any
    y: Any


class Raises:
    def __getattr__(self, name):
        raise KeyError(name)


def zeros(*shape):
    return torch.zeros(shape)


def image():
    return zeros(3, 8, 8)


CERTAIN = {
    "inputs and targets": ([zeros(4, 2), zeros(4)], 4),
    "two tensors of one shape": ([zeros(4, 2), zeros(4, 2)], 4),
    "a scalar before the data": ({"scale": zeros(), "x": zeros(4, 2)}, 4),
    "samples that are dicts": ([{"image": image(), "label": 1}] * 8, 8),
    "samples that are dicts with names": ([{"image": image(), "file": "a.png"}] * 8, 8),
    "samples with boxes": ([{"image": image(), "boxes": zeros(5, 4)}] * 8, 8),
    "samples that are tuples": ([(image(), 1)] * 8, 8),
    "samples that are named tuples": ([Pair(image(), zeros())] * 8, 8),
    "samples that are dataclasses": ([Fields(image(), 1)] * 8, 8),
    "samples that are objects": ([SimpleNamespace(image=image(), label=1)] * 8, 8),
    "one sample": ([{"image": image(), "label": 1}], 1),
    "a dict of lists": ({"inputs": [image()] * 8, "label": [1] * 8}, 8),
    "lists of images and of targets": (((image(),) * 8, ({"boxes": zeros(5, 4)},) * 8), 8),
    "a tensor above a list of tensors": ({"views": [zeros(64, 3), zeros(64, 3)], "y": zeros(64)}, 64),
    "dicts of inputs and of targets": ([{"x": zeros(4, 2)}, {"y": zeros(4)}], 4),
    "nested as torch collates": ([[zeros(6, 1), zeros(6, 2)], [zeros(6), zeros(6)]], 6),
    "a dict of dicts": ({"inputs": {"x": zeros(4, 2)}, "meta": {"name": list("abcd")}}, 4),
    "a named tuple": (Pair(zeros(5), zeros(5)), 5),
    "a dataclass": (Fields(zeros(5), list("abcde")), 5),
    "an object": (SimpleNamespace(x=zeros(6, 2), y=zeros(6)), 6),
    "packed sequences": (pack_sequence([zeros(5, 2), zeros(3, 2)]), 2),
    "packed sequences and targets": ([pack_sequence([zeros(5, 2), zeros(3, 2)]), zeros(2)], 2),
    "graphs": (SimpleNamespace(x=zeros(100, 4), num_graphs=7), 7),
    "graphs and targets": ([SimpleNamespace(x=zeros(100, 4), batch_size=7), zeros(7)], 7),
    "a size of several dimensions": (SimpleNamespace(x=zeros(2, 3, 4), batch_size=torch.Size([2, 3])), 2),
    "an array": (np.zeros((9, 2)), 9),
    "texts": (list("abcdef"), 6),
    "a dict of texts": ({"text": list("abcdef")}, 6),
    "lists of tokens": ([[1, 2, 3], [4, 5]], 2),
    "no samples": ([], 0),
    "empty tensors": ([zeros(0, 3), zeros(0)], 0),
    "one text": ("abc", 1),
    "numbers of one sample": ((zeros(), zeros()), 1),
    "nothing": (None, 1),
    "an object that raises": (Raises(), 1),
}  # fmt: skip


@pytest.mark.parametrize(("batch", "size"), CERTAIN.values(), ids=CERTAIN)
def test_the_structure_shows_it(batch, size):
    assert BatchSize()(batch) == size  # without a warning


# batch, the batch size of the loader, the size, and the guess without a loader
DOUBTFUL = {
    "a list of images": ([image()] * 8, 8, 3),
    "dicts of tensors": ([{"image": image(), "mask": image()}] * 8, 8, 8),
    "dicts of batches": ([{"ids": zeros(64, 9), "mask": zeros(64, 9)}] * 3, 64, 3),
    "a list of images in a dict": ({"inputs": [image()] * 8}, 8, 8),
    "views in a dict": ({"views": [zeros(64, 3), zeros(64, 3)]}, 64, 2),
    "sequences": ([zeros(5), zeros(7), zeros(3)], 3, 5),
    "class weights first": ({"weights": zeros(100), "x": zeros(8, 2)}, 8, 100),
}


@pytest.mark.parametrize(("batch", "full", "size", "guess"), [(b, n, n, g) for b, n, g in DOUBTFUL.values()])
def test_the_loader_decides(batch, full, size, guess):
    assert BatchSize([full])(batch) == size
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert BatchSize()(batch) == guess
    expected = full != 8 or guess != 3  # a list of equal tensors is inputs and targets
    assert [w.category for w in caught] == [PossibleUserWarning] * expected
    assert all(f"guessed as {guess}.\n  Expected: " in str(w.message) for w in caught)


@pytest.mark.parametrize("fields", [2, 3, 4])
@pytest.mark.parametrize("nested", [False, True])
def test_a_smaller_last_batch_is_not_a_list_of_samples(fields, nested):
    sizes = BatchSize([fields])
    batches = [[zeros(n, 1) for _ in range(fields)] for n in (fields, fields, 1)]
    if nested:
        batches = [[batch, batch[0]] for batch in batches]
    assert [sizes(batch) for batch in batches] == [fields, fields, 1]


def test_the_mean_of_pairs_in_batches_of_two():
    x = torch.arange(5.0).unsqueeze(1)
    module = calling(Base, test_step=lambda self, batch, batch_idx: self.log("mean", batch[0].mean()))
    loader = DataLoader(TensorDataset(x, x), batch_size=2)
    assert quiet_trainer().test(module, loader, verbose=False) == [{"mean": 2.0}]


def test_later_batches_are_read_as_the_first_one():
    sizes = BatchSize([8])
    assert [sizes([image()] * n) for n in (8, 8, 3, 2)] == [8, 8, 3, 2]
    resumed = BatchSize([8])
    resumed.choose(sizes.chosen)
    assert resumed([image()] * 2) == 2


class Samples(Dataset):
    """Ten samples; `value` is their number."""

    def __init__(self, number=10, make=lambda i: {"image": image(), "value": float(i)}):
        self.number, self.make = number, make

    def __len__(self):
        return self.number

    def __getitem__(self, i):
        return self.make(i)


class Stream(IterableDataset):
    def __iter__(self):
        return (Samples()[i] for i in range(10))


class Means(Base):
    """Logs the mean of each batch, for the epoch."""

    def __init__(self, mean):
        super().__init__()
        self.mean = mean

    def training_step(self, batch, batch_idx):
        self.log("m", self.mean(batch), on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.log("m", self.mean(batch))

    test_step = validation_step


def mean_of_dicts(batch):
    return sum(sample["value"] for sample in batch) / len(batch)


def of_lists(samples):
    return {"inputs": [sample["image"] for sample in samples], "value": [sample["value"] for sample in samples]}


KINDS = {
    "dicts": (Samples(), list, mean_of_dicts),
    "stream": (Stream(), list, mean_of_dicts),
    "lists": (Samples(), of_lists, lambda batch: sum(batch["value"]) / len(batch["value"])),
    "tuples": (Samples(10, lambda i: (image(), i)), list, lambda batch: sum(i for _, i in batch) / len(batch)),
    "tensors": (Samples(10, lambda i: image() + i), list, lambda batch: torch.stack(batch).mean()),
    "fewer": (Samples(5, lambda i: image() + i), list, lambda batch: torch.stack(batch).mean()),
    "collated": (Samples(), None, lambda batch: batch["value"].mean()),
}  # fmt: skip


@pytest.mark.parametrize(("data", "collate", "mean"), KINDS.values(), ids=KINDS)
def test_means_of_a_run(data, collate, mean):
    batches = DataLoader(data, 8, collate_fn=collate)
    by_hand = 2.0 if getattr(data, "number", 10) == 5 else 4.5  # batches of 8 and 2 samples
    trainer = quiet_trainer(limit_val_batches=0)
    trainer.fit(Means(mean), batches)
    assert trainer.callback_metrics["m"] == pytest.approx(by_hand, rel=1e-6)
    for verb in ("validate", "test"):
        (metrics,) = getattr(quiet_trainer(), verb)(Means(mean), batches, verbose=False)
        assert metrics["m"] == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle", "sequential"])
@pytest.mark.parametrize("collate", [None, list])
def test_combined_loaders(mode, collate):
    """The first loader's batches count; two batches of dicts are no two samples."""

    def mean(batch):
        first = batch["a"] if isinstance(batch, dict) and "a" in batch else batch
        return first["value"].mean() if collate is None else mean_of_dicts(first)

    combined = CombinedLoader({name: DataLoader(Samples(), 8, collate_fn=collate) for name in "ab"}, mode)
    trainer = quiet_trainer(limit_val_batches=0)
    trainer.fit(Means(mean), combined)
    assert trainer.callback_metrics["m"] == pytest.approx(4.5, rel=1e-6)
    if mode != "sequential":
        (metrics,) = quiet_trainer().validate(Means(mean), combined, verbose=False)
        assert metrics["m"] == pytest.approx(4.5, rel=1e-6)


def test_combined_batches_of_two_sizes():
    loaders = [DataLoader(TensorDataset(torch.arange(8.0)), size) for size in (4, 2)]
    with pytest.warns(PossibleUserWarning, match=r"of the loaders differ in size \(4 and 2\).*guessed as 4"):
        quiet_trainer(limit_val_batches=0).fit(Means(lambda batch: batch[0][0].mean()), loaders)


def test_an_empty_batch_counts_nothing():
    module = Means(lambda batch: batch.mean())
    batches = [torch.tensor([1.0, 2.0]), torch.zeros(0), torch.tensor([6.0])]
    assert quiet_trainer().validate(module, batches, verbose=False) == [{"m": 3.0}]

    def validation_step(self, batch, batch_idx):
        self.log("number", batch.mean(), batch_size=len(batch))
        self.log("tensor", batch.mean(), batch_size=torch.tensor(len(batch)))

    given = with_methods(Base, validation_step)
    assert quiet_trainer().validate(given, batches, verbose=False) == [{"number": 3.0, "tensor": 3.0}]
    (nothing,) = quiet_trainer().validate(module, [torch.zeros(0)], verbose=False)
    assert math.isnan(nothing["m"])


def test_values_of_an_epoch_have_no_batch():
    ends = with_methods(Base, on_validation_epoch_end=lambda self: self.log("end", 2.0))
    assert quiet_trainer().validate(ends, [torch.ones(1), torch.zeros(0)], verbose=False) == [{"end": 2.0}]


@pytest.mark.parametrize("collate", [None, list, of_lists])
def test_samples_per_second(monkeypatch, collate):
    """MetricPrinter counts samples by the same rule."""
    rates = []
    monkeypatch.setattr("lightlib.callbacks.records.metric_printer.monotonic", iter(range(1000)).__next__)
    monkeypatch.setattr(
        MetricPrinter, "_print", lambda self, place, words: rates.extend(word for word in words if "ips" in word)
    )
    printer = MetricPrinter(every_n_batches=1)
    quiet_trainer(limit_val_batches=0, callbacks=printer).fit(Base(), DataLoader(Samples(64), 32, collate_fn=collate))
    assert rates == ["ips: 32.0"] * 2, "the clock advances by one second between two batches"


def test_a_resumed_run_reads_batches_alike(tmp_path):
    """It begins with the last batch, of 2 samples, which alone does not show how it is to be read."""

    class Saves(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx == 0:
                trainer.save_checkpoint(tmp_path / "first.ckpt")

    def fit(callbacks=(), ckpt_path=None):
        trainer = quiet_trainer(limit_val_batches=0, callbacks=list(callbacks))
        module = Means(lambda batch: torch.stack(batch).mean())
        trainer.fit(module, DataLoader(Samples(10, lambda i: image() + i), 8, collate_fn=list), ckpt_path=ckpt_path)
        return float(trainer.callback_metrics["m"])

    assert fit([Saves()]) == fit(ckpt_path=tmp_path / "first.ckpt") == pytest.approx(4.5, rel=1e-6)
