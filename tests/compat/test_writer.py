"""BasePredictionWriter calls its two methods at its interval."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

import lightlib
from lightlib.compat.writer import BasePredictionWriter
from lightlib.errors import MisconfigurationException
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
