"""Budgets of a save: calls within callbacks/checkpoint, and broadcasts of its decisions."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import pytest

from lightlib import Trainer
from lightlib.callbacks import ModelCheckpoint
from lightlib.callbacks.checkpoint import model_checkpoint
from tests.processes.ranks import ranks
from tests.runs.plain import QUIET, loader, with_methods

FOLDER = str(Path(model_checkpoint.__file__).parent)
STEPS = {"every_n_train_steps": 1}


def fit(callback, saves, **arguments):
    """Save once in each epoch, which has one batch."""
    options = {**QUIET, "enable_checkpointing": True, "max_epochs": saves, **arguments}
    module = with_methods(validation_step=lambda self, *_: self.log("val_loss", -float(self.trainer.current_epoch)))
    Trainer(**options, callbacks=callback).fit(module, loader(4), loader(4))


def calls_of_saves(run):
    """Return for each save how many functions of callbacks/checkpoint were called, from the save point on."""
    counts, depth = [], 0

    def profile(frame, event, _):
        nonlocal depth
        if event not in ("call", "return") or not frame.f_code.co_filename.startswith(FOLDER):
            return
        if frame.f_code.co_name == "_save_due":
            depth += 1 if event == "call" else -1
            counts.extend([0] if event == "call" else [])
        if depth and event == "call":
            counts[-1] += 1

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return counts


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"monitor": "val_loss", "mode": "min", "save_top_k": 2}, id="the best two"),
        pytest.param(STEPS, id="by steps"),
        pytest.param({**STEPS, "save_last": "link"}, id="a link"),
        pytest.param({**STEPS, "keep_last": 3}, id="the newest three"),
        pytest.param({"train_time_interval": timedelta(microseconds=1)}, id="by time"),
        pytest.param({**STEPS, "save_last": True}, id="two files"),
    ],
)
def test_at_most_fifty_calls(tmp_path, options):
    logged = {} if "monitor" in options else {"limit_val_batches": 0}  # each logged metric is one more call
    counts = calls_of_saves(lambda: fit(ModelCheckpoint(tmp_path, **options), 6, **logged))
    assert len(counts) == 6
    assert max(counts) <= 50


def broadcasts(rank, folder):
    """Return the functions that broadcast during the last of five saves, in their order."""
    callback = ModelCheckpoint(folder, monitor="val_loss", mode="min", save_top_k=2, save_last=True)
    seen, inside = [], False

    def profile(frame, event, _):
        nonlocal inside
        name = frame.f_code.co_name
        if name == "_save_due" and event in ("call", "return"):
            inside = event == "call"
            seen.clear() if inside else None
        elif inside and event == "call" and frame.f_code.co_qualname == "Strategy.broadcast":
            seen.append(frame.f_back.f_code.co_name)

    sys.setprofile(profile)
    try:
        fit(callback, 5, devices=2, strategy="ddp")
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.processes
def test_one_broadcast_decides_about_two_files_and_one_reports_each(tmp_path):
    assert ranks(2, broadcasts, str(tmp_path)) == [["_agree", "write", "write"]] * 2


class AsksAllRanks(ModelCheckpoint):
    """Overrides `file_exists` with a collective of its own, as Lightning's method has one."""

    def file_exists(self, filepath, trainer):
        return trainer.strategy.broadcast(Path(filepath).exists())


def names_of_override(rank, folder):
    callback = AsksAllRanks(folder, "same", save_top_k=-1, every_n_train_steps=1)
    fit(callback, 3, devices=2, strategy="ddp")
    return Path(callback.best_model_path).name, sorted(path.name for path in Path(folder).glob("*.ckpt"))


def error_of_a_name(rank, folder):
    callback = ModelCheckpoint(folder, "{epoch:d}-{val_loss:d}", monitor="val_loss", mode="min")
    try:
        fit(callback, 1, devices=2, strategy="ddp")
    except Exception as error:  # noqa: BLE001  the result
        return type(error).__name__, str(error)
    return None


@pytest.mark.processes
def test_an_override_that_communicates_is_called_on_all_ranks(tmp_path):
    expected = "same-v2.ckpt", ["same-v1.ckpt", "same-v2.ckpt", "same.ckpt"]
    assert ranks(2, names_of_override, str(tmp_path)) == [expected] * 2


@pytest.mark.processes
def test_a_name_that_cannot_be_formed_is_an_error_on_all_ranks(tmp_path):
    errors = ranks(2, error_of_a_name, str(tmp_path))
    assert "MisconfigurationException" in dict(errors)
    for kind, text in errors:
        assert kind in ("MisconfigurationException", "OtherRankError")
        assert "The metric 'val_loss' = 0.0 does not fit" in text
