"""OnExceptionCheckpoint: saved when a run fails, removed when it ends normally."""

from __future__ import annotations

import os

import pytest
import torch

from lightlib.callbacks import OnExceptionCheckpoint, TerminateOnNaN
from lightlib.callbacks.terminate_on_nan import NonFiniteLossError
from lightlib.errors import ArgumentTypeError
from tests.callbacks.fake_trainer import FakeTrainer
from tests.callbacks.line import Line, line_trainer


def test_saves_and_a_later_good_end_removes(tmp_path):
    callback, trainer = OnExceptionCheckpoint(tmp_path / "a"), FakeTrainer()
    callback.on_exception(trainer, None, RuntimeError())
    assert (tmp_path / "a" / "on_exception.ckpt").exists()
    callback.teardown(trainer, None, "fit")
    assert (tmp_path / "a" / "on_exception.ckpt").exists()
    callback.on_fit_end(trainer, None)
    assert not (tmp_path / "a" / "on_exception.ckpt").exists()
    callback.on_fit_end(trainer, None)


def test_a_failing_save_does_not_hide_the_exception(tmp_path):
    with pytest.warns(UserWarning, match="could not save '.*on_exception.ckpt': .*disk full"):
        OnExceptionCheckpoint(tmp_path).on_exception(FakeTrainer(full=True), None, RuntimeError())


def test_only_while_training(tmp_path):
    trainer = FakeTrainer()
    trainer.state.fn = "test"
    OnExceptionCheckpoint(tmp_path).on_exception(trainer, None, RuntimeError())
    assert trainer.written == []


@pytest.mark.parametrize("filename", ["", None, 3])
def test_refused(filename):
    with pytest.raises(ArgumentTypeError, match=r"filename=.*\n.*not empty"):
        OnExceptionCheckpoint("folder", filename)


class TestOnExceptionCheckpoint:
    def test_saves(self, tmp_path):
        callback = OnExceptionCheckpoint(tmp_path)
        with pytest.raises(NonFiniteLossError):
            line_trainer(tmp_path, callback, TerminateOnNaN()).fit(Line(bad_batch=2))
        assert torch.load(callback.ckpt_path, weights_only=True)["global_step"] == 2
        line_trainer(tmp_path, callback).fit(Line(), ckpt_path=callback.ckpt_path)
        assert not os.path.exists(callback.ckpt_path)

    def test_a_later_run_of_the_same_object_keeps_the_file(self, tmp_path):
        callback = OnExceptionCheckpoint(tmp_path)
        with pytest.raises(NonFiniteLossError):
            line_trainer(tmp_path, callback, TerminateOnNaN()).fit(Line(bad_batch=2))
        line_trainer(tmp_path, callback).fit(Line())
        assert torch.load(callback.ckpt_path, weights_only=True)["global_step"] == 2
