"""A resumed run that saves before it trains writes the states of callbacks that it has read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    ModelCheckpoint,
    PreciseBN,
    StochasticWeightAveraging,
    ThroughputMonitor,
)
from tests.runs import modules
from tests.runs.modules import Regression
from tests.runs.plain import momentum
from tests.runs.quiet import QUIET
from tests.runs.saves_at import SavesAt


class Validated(modules.Validated, Regression):
    pass


class SavesIn(L.Callback):
    """Writes a checkpoint in one hook."""

    def __init__(self, hook, path):
        setattr(self, hook, lambda trainer, *_: trainer.save_checkpoint(path))


KINDS = {
    "average of epochs": lambda _: StochasticWeightAveraging(0.05, 2, 2),
    "moving average": lambda _: EMAWeightAveraging(decay=0.8),
    "statistics": lambda _: PreciseBN(3),
    "early stop": lambda _: EarlyStopping("val_loss", patience=9),
    "best": lambda folder: ModelCheckpoint(folder, monitor="val_loss", save_top_k=2, save_last=True),
    "by time": lambda folder: ModelCheckpoint(folder, monitor="val_loss", train_time_interval=timedelta(seconds=0.01)),
    "rates": lambda _: ThroughputMonitor(len),
}


@pytest.mark.parametrize("hook", ["on_fit_start", "on_train_start"])
@pytest.mark.parametrize("kind", KINDS)
def test_is_the_state_that_was_read(kind, hook, tmp_path):
    read, written, rows = tmp_path / "read.ckpt", tmp_path / "written.ckpt", L.loggers.CSVLogger(tmp_path)

    def fit(*callbacks: L.Callback, **arguments: Any) -> None:
        checkpointing = any(isinstance(one, ModelCheckpoint) for one in callbacks)
        options = {"enable_checkpointing": checkpointing, "logger": rows, "val_check_interval": 0.25}
        trainer = L.Trainer(**{**QUIET, **options}, max_epochs=3, callbacks=list(callbacks))
        data = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
        trainer.fit(Validated(layers, momentum), DataLoader(data, 4), DataLoader(data, 8), **arguments)

    fit(KINDS[kind](tmp_path / "kept"), SavesAt(read, 6))
    fit(SavesIn(hook, written), KINDS[kind](tmp_path / "kept"), ckpt_path=read)
    wanted, found = (torch.load(path, weights_only=True)["callbacks"] for path in (read, written))
    assert wanted
    assert str(found) == str(wanted)
