"""Overridden methods that draw take effect: columns of the rich bar, the model summary."""

from __future__ import annotations

import io
import logging

import pytest
import torch
from rich.progress import TextColumn

import lightlib
from lightlib.callbacks import ModelSummary, RichModelSummary, RichProgressBar
from tests.runs.modules import LogsLoss
from tests.runs.plain import batches
from tests.runs.quiet import QUIET


def fit(callback, **options):
    quiet = {**QUIET, **options}
    trainer = lightlib.Trainer(devices=1, max_epochs=2, callbacks=[callback], **quiet)
    module = LogsLoss(prog_bar=True)
    module.net = torch.nn.Linear(6, 3)
    trainer.fit(module, batches(2))


def drawn(kind, **options):
    out = io.StringIO()
    console = {"file": out, "force_terminal": True, "width": 200}
    fit(kind(refresh_rate=1e6, console_kwargs=console, **options), enable_progress_bar=True)
    return out.getvalue()


@pytest.mark.parametrize("leave", [True, False])
def test_columns_of_the_rich_bar(leave):
    trainers = []

    class Mine(RichProgressBar):
        def configure_columns(self, trainer):
            trainers.append(trainer)
            return [*super().configure_columns(trainer), TextColumn("mine {task.completed} of {task.total}")]

    text = drawn(Mine, leave=leave)
    assert isinstance(trainers[0], lightlib.Trainer)
    assert "mine 2 of 2" in text
    assert "Epoch 2/2" in text
    assert "loss=" in text
    assert "2/2" in text
    assert "mine" not in drawn(RichProgressBar, leave=leave)


@pytest.mark.parametrize("base", [ModelSummary, RichModelSummary])
def test_summarize(base, caplog):
    calls = []

    class Mine(base):
        @staticmethod
        def summarize(summary_data, total_parameters, trainable_parameters, model_size, total_training_modes, **more):
            calls.append((summary_data, total_parameters, trainable_parameters, model_size, total_training_modes, more))
            with caplog.at_level(logging.INFO, "lightlib"):
                ModelSummary.summarize(
                    summary_data, total_parameters, trainable_parameters, model_size, total_training_modes, **more
                )

    fit(Mine(header_style="bold"), enable_model_summary=True)
    data, *numbers, more = calls[0]
    assert dict(data) == {
        " ": ["0"], "Name": ["net"], "Type": ["Linear"], "Params": ["21"], "Mode": ["train"],
    }  # fmt: skip
    assert numbers == [21, 21, 8.4e-05, {"train": 1, "eval": 0}]
    assert more == {"total_flops": 0, "header_style": "bold"}
    assert len(calls) == 1


def test_show_is_called_as_before(monkeypatch):
    shown = []

    class Mine(ModelSummary):
        def show(self, summary, **kwargs):
            shown.append(summary.total_parameters)

    fit(Mine(), enable_model_summary=True)
    assert shown == [21]
