"""BasePredictionWriter calls its two methods at its interval."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

import lightlib
from lightlib.callbacks import BasePredictionWriter
from lightlib.errors import MisconfigurationException
from tests.processes.ranks import ranks
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
    with pytest.raises(MisconfigurationException, match="write_interval='step'"):
        Written("step")


def test_each_loader_has_its_numbers_and_one_without_a_sampler_none():
    class Several(Doubles):
        def predict_step(self, batch, batch_idx, dataloader_idx):
            return batch * 2

    writer = Written("batch_and_epoch")
    trainer = lightlib.Trainer(devices=1, callbacks=[writer], **QUIET, limit_predict_batches=2)
    data = torch.arange(8.0).reshape(8, 1)
    trainer.predict(Several(), [DataLoader(data, batch_size=2), DataLoader([data[:1], data[1:4]], batch_size=None)])
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


@pytest.mark.filterwarnings("ignore:The prediction loader shuffles")
def test_a_loader_that_shuffles_is_refused():
    trainer = lightlib.Trainer(devices=1, callbacks=[Written("batch")], **QUIET)
    with pytest.raises(MisconfigurationException, match="has 'RandomSampler'"):
        trainer.predict(Doubles(), DataLoader(torch.zeros(4, 1), batch_size=2, shuffle=True))


def on_two(rank, strategy):
    writer = Written("batch_and_epoch")
    trainer = lightlib.Trainer(devices=2, strategy=strategy, callbacks=[writer], **QUIET)
    module = Doubles()
    module.layer = torch.nn.Linear(1, 1)
    trainer.predict(module, DataLoader(torch.arange(7.0).reshape(7, 1), batch_size=2))
    *of_batches, (predictions, numbers) = writer.calls
    return [(call[0].flatten().tolist(), call[1]) for call in of_batches], len(predictions), numbers


@pytest.mark.processes
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_write_each_sample_once_with_its_number(strategy):
    found = ranks(2, on_two, strategy)
    pairs = [pair for calls, _, _ in found for outputs, numbers in calls for pair in zip(outputs, numbers, strict=True)]
    assert sorted(pairs) == [(2.0 * number, number) for number in range(7)]
    for calls, count, numbers in found:
        assert numbers == [[indices for _, indices in calls]]
        assert count == len(calls)
