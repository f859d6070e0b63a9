"""The callbacks of this folder in real runs of the Trainer."""

from __future__ import annotations

import math
import os
import time
from datetime import timedelta

import pytest
import torch
from torch.utils.data import DataLoader

from lightlib.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    LambdaCallback,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelSummary,
    OnExceptionCheckpoint,
    PlainProgressBar,
    RichModelSummary,
    RichProgressBar,
    TerminateOnNaN,
    Timer,
)
from lightlib.callbacks.terminate_on_nan import NonFiniteLossError
from lightlib.core.module.module import Module
from lightlib.core.trainer import Trainer
from lightlib.errors import CheckpointWriteError, MisconfigurationException
from lightlib.loggers import CSVLogger
from lightlib.report import PossibleUserWarning


class Line(Module):
    """One weight; validation reports the values of the list, then the number of the validation."""

    not_in_checkpoint = ("losses", "validations")

    def __init__(self, losses=(), bad_batch=None):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.losses = list(losses)
        self.validations = 0
        self.bad_batch = bad_batch

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).square().mean()
        if self.global_step == self.bad_batch:
            loss = loss * math.nan
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.layer(batch)

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            value = self.losses[self.validations] if self.validations < len(self.losses) else float(self.validations)
            self.log("val_loss", torch.tensor(float(value)))
            self.validations += 1

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def train_dataloader(self):
        return DataLoader(torch.ones(8, 2), batch_size=2)

    def val_dataloader(self):
        return DataLoader(torch.ones(2, 2), batch_size=2)


def trainer(tmp_path, *callbacks, **arguments):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    if not any(isinstance(callback, (ModelCheckpoint, OnExceptionCheckpoint)) for callback in callbacks):
        quiet["enable_checkpointing"] = False
    return Trainer(
        **{"default_root_dir": tmp_path, "max_epochs": 3, **quiet, "callbacks": list(callbacks), **arguments}
    )


def names(callback):
    return sorted(os.listdir(callback.dirpath))


class TestModelCheckpoint:
    def test_default(self, tmp_path):
        callback = ModelCheckpoint()
        trainer(tmp_path, callback).fit(Line())
        assert callback.dirpath == os.path.realpath(tmp_path / "checkpoints")
        assert names(callback) == ["epoch=2-step=12.ckpt"]
        content = torch.load(callback.best_model_path, weights_only=True)
        assert content["global_step"] == 12
        assert content["callbacks"][callback.state_key]["best_model_path"] == callback.best_model_path

    def test_best_and_last(self, tmp_path):
        callback = ModelCheckpoint(tmp_path, "{epoch}-{val_loss:.0f}", monitor="val_loss", save_last=True)
        run = trainer(tmp_path, callback)
        model = Line([3, 1, 2])
        run.fit(model)
        assert names(callback) == ["epoch=1-val_loss=1.ckpt", "last.ckpt"]
        assert run.checkpoint_callback is callback
        assert torch.load(callback.last_model_path, weights_only=True)["state_dict"]["layer.weight"].equal(
            model.layer.weight
        )

    def test_what_training_logs_per_epoch_can_be_monitored(self, tmp_path):
        callback = ModelCheckpoint(tmp_path, monitor="train_loss")
        trainer(tmp_path, callback).fit(Line())
        assert names(callback) == ["epoch=2-step=12.ckpt"]

    def test_at_steps_with_the_validation_of_the_step(self, tmp_path):
        callback = ModelCheckpoint(
            tmp_path, "{step}-{val_loss:.0f}", monitor="val_loss", every_n_train_steps=2, save_top_k=-1
        )
        trainer(tmp_path, callback, val_check_interval=2).fit(Line([6, 5, 4, 3, 2, 1]))
        assert names(callback) == [f"step={2 * n}-val_loss={7 - n}.ckpt" for n in (5, 6, 1, 2, 3, 4)]

    def test_several_validations_per_epoch(self, tmp_path):
        callback = ModelCheckpoint(tmp_path, monitor="val_loss", save_top_k=-1)
        trainer(tmp_path, callback, val_check_interval=0.5, max_epochs=1).fit(Line())
        assert names(callback) == ["epoch=0-step=2.ckpt", "epoch=0-step=4.ckpt"]

    @pytest.mark.parametrize("interval", [1, timedelta(0)])
    def test_after_validations_that_have_their_own_rhythm(self, tmp_path, interval):
        callback = ModelCheckpoint(tmp_path, monitor="val_loss", save_top_k=-1)
        trainer(tmp_path, callback, val_check_interval=interval, max_epochs=1, num_sanity_val_steps=0).fit(Line())
        assert names(callback) == [f"epoch=0-step={n}.ckpt" for n in (1, 2, 3, 4)]

    def test_while_accumulating(self, tmp_path):
        callback = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1)
        trainer(tmp_path, callback, accumulate_grad_batches=2, max_epochs=1).fit(Line())
        assert names(callback) == ["epoch=0-step=1.ckpt", "epoch=0-step=2.ckpt"]

    def test_a_run_that_ends_within_an_epoch(self, tmp_path):
        callback = ModelCheckpoint(tmp_path)
        trainer(tmp_path, callback, max_steps=6).fit(Line())
        assert names(callback) == ["epoch=1-step=6.ckpt"]

    def test_every_time(self, tmp_path):
        callback = ModelCheckpoint(tmp_path, train_time_interval=timedelta(0), save_top_k=-1)
        trainer(tmp_path, callback, max_epochs=1).fit(Line())
        assert len(names(callback)) == 4

    def test_never_logged(self, tmp_path):
        with pytest.raises(MisconfigurationException, match=r"this metric was never logged\. Did you mean 'val_loss'"):
            trainer(tmp_path, ModelCheckpoint(monitor="val_los")).fit(Line())

    def test_resume_goes_on_with_the_same_files(self, tmp_path):
        def callback():
            return ModelCheckpoint(tmp_path / "kept", monitor="val_loss", save_top_k=2, save_last=True)

        whole = ModelCheckpoint(tmp_path / "whole", monitor="val_loss", save_top_k=2, save_last=True)
        trainer(tmp_path, whole, max_epochs=4).fit(Line([3, 1, 2, 0]))
        first = callback()
        trainer(tmp_path, first, max_epochs=2).fit(Line([3, 1]))
        second = callback()
        trainer(tmp_path, second, max_epochs=4).fit(Line([2, 0]), ckpt_path=first.last_model_path)
        assert names(second) == names(whole) == ["epoch=1-step=8.ckpt", "epoch=3-step=16.ckpt", "last.ckpt"]
        assert second.best_model_score == 0

    def test_the_file_that_was_named_by_its_path_is_never_removed(self, tmp_path):
        def callback():
            return ModelCheckpoint(tmp_path / "kept", monitor="val_loss", save_top_k=1)

        trainer(tmp_path, callback(), max_epochs=1).fit(Line([3]))
        path = tmp_path / "kept" / "epoch=0-step=4.ckpt"
        trainer(tmp_path, callback(), max_epochs=3).fit(Line([2, 1]), ckpt_path=path)
        assert names(callback()) == ["epoch=0-step=4.ckpt", "epoch=2-step=12.ckpt"]

    def test_the_best_of_nothing_but_nan_is_found_by_its_name(self, tmp_path):
        callback = ModelCheckpoint(tmp_path, monitor="val_loss")
        run = trainer(tmp_path, callback, max_epochs=1)
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
            trainer(tmp_path, callback).fit(Line([3, 2, 1]))
        assert names(callback) == ["epoch=0-step=4.ckpt", "last.ckpt"]
        assert callback.best_model_path.endswith("epoch=0-step=4.ckpt")
        assert callback.best_model_score == 3

    def test_on_exception(self, tmp_path):
        callback = ModelCheckpoint(tmp_path, save_on_exception=True)
        run = trainer(tmp_path, callback, TerminateOnNaN())
        with pytest.raises(NonFiniteLossError):
            run.fit(Line(bad_batch=2))
        assert names(callback) == ["epoch=0-step=2.ckpt"]
        assert (
            torch.load(tmp_path / "epoch=0-step=2.ckpt", weights_only=True)["state_dict"]["layer.weight"]
            .isfinite()
            .all()
        )


class TestOnExceptionCheckpoint:
    def test_saves(self, tmp_path):
        callback = OnExceptionCheckpoint(tmp_path)
        with pytest.raises(NonFiniteLossError):
            trainer(tmp_path, callback, TerminateOnNaN()).fit(Line(bad_batch=2))
        assert torch.load(callback.ckpt_path, weights_only=True)["global_step"] == 2
        trainer(tmp_path, callback).fit(Line(), ckpt_path=callback.ckpt_path)
        assert not os.path.exists(callback.ckpt_path)


class TestEarlyStopping:
    def test_stops(self, tmp_path):
        callback = EarlyStopping("val_loss", patience=2)
        run = trainer(tmp_path, callback, max_epochs=10)
        run.fit(Line([1, 2, 3, 4]))
        assert run.current_epoch == 3
        assert callback.stopped_epoch == 2
        assert callback.wait_count == 2

    def test_not_before_min_epochs(self, tmp_path):
        run = trainer(tmp_path, EarlyStopping("val_loss", patience=1), max_epochs=10, min_epochs=5)
        run.fit(Line())
        assert run.current_epoch == 5

    def test_within_an_epoch(self, tmp_path):
        run = trainer(tmp_path, EarlyStopping("val_loss", patience=1), val_check_interval=1)
        run.fit(Line())
        assert run.global_step == 2

    def test_counts_as_without_interruption(self, tmp_path):
        """The checkpoint between the validation and the end of the epoch."""
        whole = EarlyStopping("val_loss", patience=10)
        trainer(tmp_path, whole, max_epochs=3).fit(Line([1, 2, 3]))
        saver = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=4, save_top_k=-1)
        trainer(tmp_path, EarlyStopping("val_loss", patience=10), saver, max_epochs=2).fit(Line([1, 2]))
        resumed = EarlyStopping("val_loss", patience=10)
        other = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=4, save_top_k=-1)
        path = tmp_path / "kept" / "epoch=0-step=4.ckpt"
        trainer(tmp_path, resumed, other, max_epochs=3).fit(Line([2, 3]), ckpt_path=path)
        assert resumed.wait_count == whole.wait_count == 2
        assert resumed.best_score == 1


class TestTimer:
    def test_stops(self, tmp_path):
        timer = Timer(timedelta(seconds=0.2))
        run = trainer(
            tmp_path, timer, LambdaCallback(on_train_batch_end=lambda *_: time.sleep(0.03)), max_epochs=-1, max_steps=-1
        )
        run.fit(Line())
        assert timer.time_elapsed() >= 0.2
        assert timer.time_elapsed("validate") > 0
        assert 0 < run.global_step < 50


def test_gradient_accumulation_scheduler(tmp_path):
    steps = []
    watch = LambdaCallback(on_train_epoch_end=lambda trainer, module: steps.append(trainer.global_step))
    run = trainer(tmp_path, GradientAccumulationScheduler({1: 2, 2: 4}), watch)
    run.fit(Line())
    assert steps == [4, 6, 7]


def test_learning_rate_monitor(tmp_path):
    class Scheduled(Line):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    callback = LearningRateMonitor()
    seen = []
    watch = LambdaCallback(on_log=lambda trainer, module, metrics: seen.append(metrics.get("lr-SGD")))
    run = trainer(tmp_path, callback, watch, logger=CSVLogger(tmp_path), max_epochs=1, log_every_n_steps=2)
    run.fit(Scheduled())
    assert callback.lrs == {"lr-SGD": pytest.approx([0.001, 0.00001])}
    assert [rate for rate in seen if rate is not None] == pytest.approx([0.001, 0.00001])


def test_learning_rates_can_be_monitored(tmp_path):
    class Scheduled(Line):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)]

    saver = ModelCheckpoint(tmp_path, monitor="lr-SGD", save_top_k=2)
    stop = EarlyStopping("lr-SGD", stopping_threshold=0.0005)
    run = trainer(tmp_path, LearningRateMonitor(), saver, stop, logger=CSVLogger(tmp_path), max_epochs=9)
    run.fit(Scheduled())
    assert run.current_epoch == 3
    assert run.callback_metrics["lr-SGD"] == pytest.approx(0.0001)
    assert sorted(value.item() for value in saver.best_k_models.values()) == pytest.approx([0.0001, 0.001])


def test_a_rate_that_is_logged_per_step_is_known_from_the_first_epoch_on(tmp_path):
    saver = ModelCheckpoint(tmp_path, monitor="lr-SGD")
    trainer(tmp_path, LearningRateMonitor("step"), saver, logger=CSVLogger(tmp_path), max_epochs=1).fit(Line())
    assert saver.best_model_score == pytest.approx(0.01)


def test_terminate_on_nan(tmp_path):
    model = Line(bad_batch=5)
    with pytest.raises(NonFiniteLossError, match="The loss is nan at epoch 1, batch 1, global step 5"):
        trainer(tmp_path, TerminateOnNaN()).fit(model)
    assert model.layer.weight.isfinite().all()


def test_early_stopping_and_checkpoint_see_what_the_module_logs_at_the_end_of_the_epoch(tmp_path):
    class Late(Line):
        def on_train_epoch_end(self):
            self.log("late", float(self.current_epoch))

    stop, save = EarlyStopping("late", patience=1), ModelCheckpoint(tmp_path, monitor="late", mode="max")
    run = trainer(tmp_path, stop, save)
    run.fit(Late())
    assert run.current_epoch == 2
    assert names(save) == ["epoch=1-step=8.ckpt"]


@pytest.mark.parametrize(
    ("bar", "summary"), [(RichProgressBar, RichModelSummary), (PlainProgressBar, ModelSummary), (None, ModelSummary)]
)
def test_the_summary_is_drawn_as_the_bar_is(bar, summary):
    made = Trainer(accelerator="cpu", callbacks=[bar()] if bar else None, enable_progress_bar=bar is not None)
    assert [type(one) for one in made.callbacks if isinstance(one, ModelSummary)] == [summary]
