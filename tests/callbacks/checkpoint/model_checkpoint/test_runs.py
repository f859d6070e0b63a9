"""ModelCheckpoint in runs of a Trainer: the files of each trigger, a resume, and failed writes."""

from __future__ import annotations

import math
import os
from datetime import timedelta

import pytest
import torch

from lightlib.callbacks import (
    ModelCheckpoint,
    TerminateOnNaN,
)
from lightlib.callbacks.terminate_on_nan import NonFiniteLossError
from lightlib.errors import CheckpointWriteError
from lightlib.report import PossibleUserWarning
from tests.callbacks.line import Line, line_trainer, names


class TestModelCheckpoint:
    def test_default(self, tmp_path):
        callback = ModelCheckpoint()
        line_trainer(tmp_path, callback).fit(Line())
        assert callback.dirpath == os.path.realpath(tmp_path / "checkpoints")
        assert names(callback) == ["epoch=2-step=12.ckpt"]
        content = torch.load(callback.best_model_path, weights_only=True)
        assert content["global_step"] == 12
        assert content["callbacks"][callback.state_key]["best_model_path"] == callback.best_model_path

    def test_best_and_last(self, tmp_path):
        callback = ModelCheckpoint(tmp_path, "{epoch}-{val_loss:.0f}", monitor="val_loss", save_last=True)
        run = line_trainer(tmp_path, callback)
        model = Line([3, 1, 2])
        run.fit(model)
        assert names(callback) == ["epoch=1-val_loss=1.ckpt", "last.ckpt"]
        assert run.checkpoint_callback is callback
        assert torch.load(callback.last_model_path, weights_only=True)["state_dict"]["layer.weight"].equal(
            model.layer.weight
        )

    def test_what_training_logs_per_epoch_can_be_monitored(self, tmp_path):
        callback = ModelCheckpoint(tmp_path, monitor="train_loss")
        line_trainer(tmp_path, callback).fit(Line())
        assert names(callback) == ["epoch=2-step=12.ckpt"]

    def test_at_steps_with_the_validation_of_the_step(self, tmp_path):
        callback = ModelCheckpoint(
            tmp_path, "{step}-{val_loss:.0f}", monitor="val_loss", every_n_train_steps=2, save_top_k=-1
        )
        line_trainer(tmp_path, callback, val_check_interval=2).fit(Line([6, 5, 4, 3, 2, 1]))
        assert names(callback) == [f"step={2 * n}-val_loss={7 - n}.ckpt" for n in (5, 6, 1, 2, 3, 4)]

    def test_several_validations_per_epoch(self, tmp_path):
        callback = ModelCheckpoint(tmp_path, monitor="val_loss", save_top_k=-1)
        line_trainer(tmp_path, callback, val_check_interval=0.5, max_epochs=1).fit(Line())
        assert names(callback) == ["epoch=0-step=2.ckpt", "epoch=0-step=4.ckpt"]

    @pytest.mark.parametrize("interval", [1, timedelta(0)])
    def test_after_validations_that_have_their_own_rhythm(self, tmp_path, interval):
        callback = ModelCheckpoint(tmp_path, monitor="val_loss", save_top_k=-1)
        line_trainer(tmp_path, callback, val_check_interval=interval, max_epochs=1, num_sanity_val_steps=0).fit(Line())
        assert names(callback) == [f"epoch=0-step={n}.ckpt" for n in (1, 2, 3, 4)]

    def test_while_accumulating(self, tmp_path):
        callback = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1)
        line_trainer(tmp_path, callback, accumulate_grad_batches=2, max_epochs=1).fit(Line())
        assert names(callback) == ["epoch=0-step=1.ckpt", "epoch=0-step=2.ckpt"]

    def test_a_run_that_ends_within_an_epoch(self, tmp_path):
        callback = ModelCheckpoint(tmp_path)
        line_trainer(tmp_path, callback, max_steps=6).fit(Line())
        assert names(callback) == ["epoch=1-step=6.ckpt"]

    def test_every_time(self, tmp_path):
        callback = ModelCheckpoint(tmp_path, train_time_interval=timedelta(0), save_top_k=-1)
        line_trainer(tmp_path, callback, max_epochs=1).fit(Line())
        assert len(names(callback)) == 4

    def test_resume_goes_on_with_the_same_files(self, tmp_path):
        def callback():
            return ModelCheckpoint(tmp_path / "kept", monitor="val_loss", save_top_k=2, save_last=True)

        whole = ModelCheckpoint(tmp_path / "whole", monitor="val_loss", save_top_k=2, save_last=True)
        line_trainer(tmp_path, whole, max_epochs=4).fit(Line([3, 1, 2, 0]))
        first = callback()
        line_trainer(tmp_path, first, max_epochs=2).fit(Line([3, 1]))
        second = callback()
        line_trainer(tmp_path, second, max_epochs=4).fit(Line([2, 0]), ckpt_path=first.last_model_path)
        assert names(second) == names(whole) == ["epoch=1-step=8.ckpt", "epoch=3-step=16.ckpt", "last.ckpt"]
        assert second.best_model_score == 0

    def test_the_file_that_was_named_by_its_path_is_never_removed(self, tmp_path):
        def callback():
            return ModelCheckpoint(tmp_path / "kept", monitor="val_loss", save_top_k=1)

        line_trainer(tmp_path, callback(), max_epochs=1).fit(Line([3]))
        path = tmp_path / "kept" / "epoch=0-step=4.ckpt"
        line_trainer(tmp_path, callback(), max_epochs=3).fit(Line([2, 1]), ckpt_path=path)
        assert names(callback()) == ["epoch=0-step=4.ckpt", "epoch=2-step=12.ckpt"]

    def test_the_best_of_nothing_but_nan_is_found_by_its_name(self, tmp_path):
        callback = ModelCheckpoint(tmp_path, monitor="val_loss")
        run = line_trainer(tmp_path, callback, max_epochs=1)
        with pytest.warns(PossibleUserWarning, match="counts as the worst possible one"):
            run.fit(Line([math.nan]))
        run.validate(ckpt_path="best", verbose=False)
        assert callback.best_model_score == math.inf

    def test_failing_write_ends_the_run_and_leaves_the_files(self, tmp_path, monkeypatch):
        callback = ModelCheckpoint(tmp_path / "kept", monitor="val_loss", save_last=True)
        save = torch.save

        def full(content, file, *rest, **more):
            if content["global_step"] > 4:
                raise OSError(28, "No space left on device")
            return save(content, file, *rest, **more)

        monkeypatch.setattr(torch, "save", full)
        with pytest.raises(CheckpointWriteError, match=r"epoch=1-step=8.ckpt' could not be written(.|\n)* are free"):
            line_trainer(tmp_path, callback).fit(Line([3, 2, 1]))
        assert names(callback) == ["epoch=0-step=4.ckpt", "last.ckpt"]
        assert callback.best_model_path.endswith("epoch=0-step=4.ckpt")
        assert callback.best_model_score == 3

    def test_on_exception(self, tmp_path):
        callback = ModelCheckpoint(tmp_path, save_on_exception=True)
        run = line_trainer(tmp_path, callback, TerminateOnNaN())
        with pytest.raises(NonFiniteLossError):
            run.fit(Line(bad_batch=2))
        assert names(callback) == ["epoch=0-step=2.ckpt"]
        assert (
            torch.load(tmp_path / "epoch=0-step=2.ckpt", weights_only=True)["state_dict"]["layer.weight"]
            .isfinite()
            .all()
        )
