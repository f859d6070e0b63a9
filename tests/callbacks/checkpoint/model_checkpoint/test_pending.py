"""A save that waited for a validation when a run was stopped, and is done by the resumed run."""

from __future__ import annotations

import signal

import pytest
import torch

from lightlib import Callback
from lightlib.callbacks import ModelCheckpoint
from tests.runs.modules import Validated
from tests.runs.plain import loader, momentum, quiet_trainer


class StopsInValidation(Callback):
    """Ends a run as `kill` does, in its first validation."""

    def on_validation_batch_start(self, *args):
        signal.raise_signal(signal.SIGTERM)


def states(folder, *callbacks, ckpt_path=None):
    """Return the states of all callbacks in the first of two files that are due after the same validation."""
    savers = [ModelCheckpoint(folder, f"every{n}-{{step}}", every_n_train_steps=n, save_top_k=-1) for n in (2, 4)]
    options = {"enable_checkpointing": True, "val_check_interval": 4, "callbacks": [*savers, *callbacks]}
    torch.manual_seed(1)
    quiet_trainer(**options).fit(Validated(momentum), loader(48), loader(24), ckpt_path=ckpt_path)
    saved = torch.load(folder / "every2-step=4.ckpt", weights_only=False)["callbacks"]
    return {key: state["lightlib"]["candidates"] for key, state in saved.items()}


def test_it_has_the_metrics_of_the_validation_that_is_repeated(tmp_path):
    wanted = states(tmp_path / "whole")
    assert "val_loss" in next(found for key, found in wanted.items() if "'every_n_train_steps': 4" in key)
    with pytest.raises(SystemExit):
        states(tmp_path / "stopped", StopsInValidation())
    assert not (tmp_path / "stopped" / "every2-step=4.ckpt").exists()
    assert states(tmp_path / "stopped", ckpt_path=tmp_path / "stopped" / "interrupted.ckpt") == wanted
