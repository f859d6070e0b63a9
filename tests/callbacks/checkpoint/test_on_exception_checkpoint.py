"""OnExceptionCheckpoint: saved when a run fails, removed when it ends normally."""

from __future__ import annotations

import pytest

from lightlib.callbacks import OnExceptionCheckpoint
from lightlib.errors import ArgumentTypeError
from tests.callbacks.fake_trainer import FakeTrainer


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
