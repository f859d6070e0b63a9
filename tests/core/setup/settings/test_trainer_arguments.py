"""Effects of the Trainer's arguments on the loop: limits, ends, sanity check, accumulation."""

from __future__ import annotations

import math
import os
import signal
from collections import deque
from datetime import timedelta

import pytest
import torch
import torchmetrics

from lightlib.callbacks import Callback, EarlyStopping, ModelCheckpoint, Timer
from lightlib.core.trainer import Trainer
from lightlib.loggers import CSVLogger
from tests.runs.plain import QUIET, Net, Unsized, batches, calling, loader, quiet_trainer, same_weights, with_methods
from tests.runs.steps import Counts, Keeps, Steps, on


def counted(val=8, **arguments):
    """Fit ten batches; return how often which step was called."""
    module, trainer = Counts(), quiet_trainer(**arguments)
    trainer.fit(module, batches(10), batches(val) if val else None)
    return module.calls


class TestLimits:
    @pytest.mark.parametrize(
        ("limit", "count"), [(1, 1), (1.0, 10), (3, 3), (0.3, 3), (0.39, 3), (0, 0), (0.0, 0), (99, 10)]
    )
    def test_of_training(self, limit, count):
        calls = counted(limit_train_batches=limit)
        assert calls["train"] == count
        assert calls["val"] == (8 if count else 0)

    @pytest.mark.parametrize(("limit", "count"), [(1, 1), (1.0, 8), (0.5, 4), (0, 0), (0.0, 0)])
    def test_of_validation(self, limit, count):
        assert counted(limit_val_batches=limit)["val"] == count

    @pytest.mark.parametrize(("limit", "count"), [(1, 1), (1.0, 8), (0.25, 2)])
    def test_of_the_others(self, limit, count):
        module = Counts()
        trainer = quiet_trainer(limit_test_batches=limit, limit_predict_batches=limit)
        trainer.test(module, batches(8), verbose=False)
        trainer.predict(module, batches(8))
        assert (module.calls["test"], module.calls["predict"]) == (count, count)

    def test_per_loader(self):
        module = Counts()
        quiet_trainer(limit_val_batches=0.5).validate(module, [loader(32), loader(8)], verbose=False)
        assert module.calls["val"] == 4 + 1

    def test_unknown_length(self):
        module = Counts()
        quiet_trainer(limit_train_batches=3).fit(module, Unsized(batches(10)), batches(1))
        assert module.calls["train"] == 3


class TestNothingToTrain:
    @pytest.mark.parametrize("limits", [{"max_epochs": 2}, {"max_epochs": -1, "max_steps": 5}])
    @pytest.mark.parametrize("interval", ["epoch", "step"])
    def test_schedules_of_a_run_without_training_batches_never_step(self, interval, limits):
        def configure(parameters):
            def one_cycle(optimizer, total_steps):
                return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=total_steps)

            config = {"scheduler": one_cycle, "interval": interval}
            return {"optimizer": torch.optim.SGD(parameters, lr=0.1), "lr_scheduler": config}

        module, before = Counts(configure), Counts()
        trainer = quiet_trainer(limit_train_batches=0, **limits)
        trainer.fit(module, batches(3), batches(1))
        assert same_weights(module, before)
        assert trainer.lr_scheduler_configs[0].scheduler.last_epoch == 0

    def test_an_interval_of_validations_in_batches(self):
        module = Counts()
        quiet_trainer(limit_train_batches=0, val_check_interval=1).fit(module, batches(3), batches(1))
        assert module.calls == dict.fromkeys(module.calls, 0)


class TestFastDevRun:
    @pytest.mark.parametrize(("fast", "count"), [(True, 1), (3, 3)])
    def test_a_few_batches_of_everything(self, tmp_path, fast, count):
        module = Counts()
        quiet = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
        keeper = ModelCheckpoint(tmp_path / "kept", save_last=True, save_on_exception=True)
        callbacks = [EarlyStopping("never"), keeper]
        trainer = Trainer(**quiet, fast_dev_run=fast, max_epochs=50, default_root_dir=tmp_path, callbacks=callbacks)
        trainer.fit(module, batches(10), batches(10))
        trainer.test(module, batches(10), verbose=False)
        trainer.predict(module, batches(10))
        assert module.calls == {"train": count, "sanity": 0, "val": count, "test": count, "predict": count}
        assert (trainer.max_epochs, trainer.max_steps, trainer.current_epoch) == (1, count, 1)
        assert trainer.checkpoint_callback is keeper  # code that reads it runs
        assert trainer.early_stopping_callbacks == callbacks[:1]
        assert (keeper.best_model_path, keeper.last_model_path) == ("", "")
        assert os.listdir(tmp_path) == []

    def test_there_is_no_checkpoint_callback_that_nobody_gave(self):
        assert Trainer(fast_dev_run=True, accelerator="cpu").checkpoint_callbacks == []

    def test_a_run_that_is_interrupted_leaves_nothing(self, tmp_path):
        interrupted = calling(training_step=lambda self, batch, batch_idx: signal.raise_signal(signal.SIGINT))
        keeper = ModelCheckpoint(tmp_path, save_on_exception=True)
        with pytest.raises(SystemExit):
            quiet_trainer(fast_dev_run=3, enable_checkpointing=True, callbacks=keeper).fit(interrupted, batches(3))
        assert os.listdir(tmp_path) == []

    def test_a_resume_changes_no_file(self, tmp_path):
        def keeper():
            return ModelCheckpoint(tmp_path, save_last=True)

        quiet_trainer(max_epochs=2, enable_checkpointing=True, callbacks=keeper()).fit(Net(), batches(3))
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        trainer = quiet_trainer(fast_dev_run=2, enable_checkpointing=True, callbacks=keeper())
        trainer.fit(Net(), batches(3), ckpt_path="last", resume={"changes": "ignore"})
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

    def test_code_that_uses_the_logger_runs(self, tmp_path):
        def training_step(self, batch, batch_idx):
            self.logger.experiment.add_scalar("x", 1)
            self.logger.log_metrics({"x": 1})

        quiet = {name: value for name, value in QUIET.items() if name not in ("logger", "enable_checkpointing")}
        for logger in (True, CSVLogger(tmp_path)):
            module = calling(Net, training_step)
            Trainer(fast_dev_run=True, logger=logger, default_root_dir=tmp_path, **quiet).fit(module, batches(1))
        assert os.listdir(tmp_path) == []

    def test_without_a_logger_there_is_none(self):
        assert quiet_trainer(fast_dev_run=True).logger is None

    @pytest.mark.parametrize(("given", "read"), [(True, True), (1, True), (3, 3), (False, False), (0, False)])
    def test_one_batch_reads_as_true_and_none_as_false(self, given, read):
        value = quiet_trainer(fast_dev_run=given).fast_dev_run
        assert value == read
        assert type(value) is type(read)

    def test_false_and_zero_are_off(self):
        assert counted(fast_dev_run=False)["train"] == counted(fast_dev_run=0)["train"] == 10


class TestOverfitBatches:
    @pytest.mark.parametrize(("overfit", "train", "val"), [(2, 2, 2), (0.5, 5, 4), (0.0, 10, 8)])
    def test_limits_training_and_validation(self, overfit, train, val):
        calls = counted(overfit_batches=overfit)
        assert (calls["train"], calls["val"]) == (train, val)

    def test_it_replaces_the_limits_of_training_and_validation(self, caplog):
        with caplog.at_level("INFO", logger="lightlib"):
            calls = counted(overfit_batches=2, limit_train_batches=5, limit_val_batches=0.5)
        assert (calls["train"], calls["val"]) == (2, 2)
        said = [record.getMessage() for record in caplog.records if "replaces" in record.getMessage()]
        assert said == [
            f"overfit_batches=2 replaces {name}={value}.\n  Expected: one of the two.\n"
            f"  Fix: leave out {name} or overfit_batches."
            for name, value in (("limit_train_batches", 5), ("limit_val_batches", 0.5))
        ]


class TestEnds:
    def test_whichever_comes_first(self):
        assert counted(max_epochs=3)["train"] == 30
        assert counted(max_epochs=3, max_steps=4)["train"] == 4
        assert counted(max_epochs=1, max_steps=40)["train"] == 10
        assert counted(max_epochs=-1, max_steps=8, accumulate_grad_batches=4)["train"] == 10 + 10 + 8

    def test_max_steps_alone_has_no_limit_of_epochs(self):
        trainer = Trainer(**QUIET, max_steps=25)
        trainer.fit(Net(), batches(10))
        assert (trainer.global_step, trainer.current_epoch, trainer.max_epochs) == (25, 2, -1)

    @pytest.mark.parametrize(
        ("asked_at", "minimum", "steps"),
        [
            (3, {}, 3),
            (3, {"min_steps": 7}, 10),  # min_steps alone also means a full epoch, as in Lightning
            (3, {"min_steps": 7, "min_epochs": 0}, 7),
            (3, {"min_epochs": 1}, 10),
            (3, {"min_epochs": 2}, 20),
            (3, {"min_epochs": 1, "min_steps": 13}, 13),
            (3, {"min_steps": 2, "min_epochs": 0}, 3),
        ],
    )
    def test_should_stop_and_the_minimum(self, asked_at, minimum, steps):
        def ask(trainer, module, *_):
            if trainer.global_step >= asked_at:
                trainer.should_stop = True

        trainer = quiet_trainer(max_epochs=5, callbacks=[on(on_train_batch_end=ask)], **minimum)
        trainer.fit(Net(), batches(10))
        assert trainer.global_step == steps

    def test_a_wish_before_the_minimum_is_forgotten_and_said(self, caplog):
        def ask(trainer, module, *_):
            if trainer.global_step == 3:
                trainer.should_stop = True

        trainer = quiet_trainer(max_epochs=3, min_epochs=2, callbacks=[on(on_train_batch_end=ask)])
        with caplog.at_level("INFO", logger="lightlib"):
            trainer.fit(Net(), batches(10))
        assert trainer.global_step == 30
        assert "training continues until min_epochs=2" in caplog.text

    def test_a_stop_waits_for_the_optimizer_step(self):
        def ask(trainer, module, *_):
            trainer.should_stop = True

        trainer = quiet_trainer(accumulate_grad_batches=4, callbacks=[on(on_train_batch_end=ask)])
        trainer.fit(Net(), batches(10))
        assert (trainer.global_step, trainer.progress.batch) == (1, 4)

    def test_early_stopping_waits_for_min_epochs(self):
        for least, epochs in ((None, 2), (4, 4)):
            trainer = quiet_trainer(max_epochs=9, min_epochs=least, callbacks=[EarlyStopping("x", patience=1)])
            trainer.fit(
                with_methods(Steps, validation_step=lambda self, *_: self.log("x", 1.0)), batches(2), batches(1)
            )
            assert trainer.current_epoch == epochs

    @pytest.mark.parametrize("limit", ["00:00:00:05", timedelta(seconds=5), {"seconds": 5}])
    def test_max_time(self, monkeypatch, limit):
        clock = Clock(monkeypatch)
        trainer = quiet_trainer(max_epochs=-1, max_time=limit, callbacks=[on(on_train_batch_end=clock.tick)])
        trainer.fit(Net(), batches(4))
        assert trainer.global_step in (5, 6)
        assert isinstance(trainer.callbacks[0], Timer)
        assert trainer.max_time == 5.0

    def test_max_time_alone_has_no_limit_of_epochs(self):
        assert Trainer(**QUIET, max_time="00:01:00:00").max_epochs == -1

    def test_only_a_timer_takes_the_place_of_the_limit_of_epochs(self):
        limited = type("Limited", (Timer,), {})
        unrelated = type("Timer", (Callback,), {})
        assert Trainer(**QUIET, callbacks=[limited("00:01:00:00")]).max_epochs == -1
        assert Trainer(**QUIET, callbacks=[unrelated()]).max_epochs == 1000


class Clock:
    """A monotonic clock that moves by one second per tick."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        for module in (
            "lightlib.callbacks.timer.time.monotonic",
            "lightlib.core.run.parts.monotonic",
            "lightlib.core.run.parts.monotonic",
        ):
            monkeypatch.setattr(module, lambda: self.now)

    def tick(self, *_):
        self.now += 1


class TestSanityCheck:
    @pytest.mark.parametrize(("steps", "count"), [(None, 2), (0, 0), (3, 3), (-1, 8), (99, 8)])
    def test_how_many(self, steps, count):
        assert counted(num_sanity_val_steps=steps)["sanity"] == count

    def test_not_before_a_second_fit(self):
        module, trainer = Counts(), quiet_trainer(num_sanity_val_steps=1)
        trainer.fit(module, batches(1), batches(1))
        trainer.max_epochs = 2
        trainer.fit(module, batches(1), batches(1))
        assert module.calls["sanity"] == 1

    def test_nothing_of_it_is_left(self):
        def validation_step(self, batch, batch_idx):
            torch.rand(3)
            self.metric(batch[0])
            self.log("m", self.metric)
            self.log("x", float(self.trainer.sanity_checking), on_step=True, prog_bar=True)

        def look(trainer, module):
            seen.append((trainer.callback_metrics, trainer.logged_metrics, trainer.progress_bar_metrics))
            seen.append((module.metric.update_count, torch.get_rng_state(), list(logger.given)))

        seen, logger = [], Keeps()
        torch.manual_seed(5)
        state = torch.get_rng_state()
        checkpoint = ModelCheckpoint("kept", monitor="x")
        trainer = quiet_trainer(num_sanity_val_steps=2, logger=logger, enable_checkpointing=True,
                                callbacks=[on(on_train_start=look), EarlyStopping("x"), checkpoint])  # fmt: skip
        logs = with_methods(Steps, validation_step)
        logs.metric = torchmetrics.MeanMetric()
        trainer.fit(logs, batches(2), batches(3))
        assert seen[0] == ({}, {}, {})
        updates, rng, given = seen[1]
        assert (updates, given) == (0, [])
        assert rng.equal(state)
        assert trainer.callback_metrics["x"] == 0.0
        assert checkpoint.best_model_score == 0.0


class TestEstimatedSteps:
    @pytest.mark.parametrize(
        ("arguments", "data", "steps"),
        [
            ({"max_epochs": 3}, batches(10), 30),
            ({"max_epochs": 3, "accumulate_grad_batches": 4}, batches(10), 9),
            ({"max_epochs": 3, "limit_train_batches": 5, "accumulate_grad_batches": 2}, batches(10), 9),
            ({"max_epochs": 3, "max_steps": 7}, batches(10), 7),
            ({"max_epochs": -1, "max_steps": 7}, Unsized(batches(10)), 7),
            ({"max_epochs": 3}, Unsized(batches(10)), math.inf),
            ({"max_epochs": 3, "limit_train_batches": 4}, Unsized(batches(10)), 12),
            ({"fast_dev_run": 2}, batches(10), 2),
        ],
    )
    def test_in_configure_optimizers_and_later(self, arguments, data, steps):
        seen = []

        def configure_optimizers(self):
            seen.append(self.trainer.estimated_stepping_batches)

        def on_train_start(self):
            seen.append(self.trainer.estimated_stepping_batches)

        trainer = quiet_trainer(**arguments)
        trainer.fit(calling(Net, configure_optimizers, on_train_start), data)
        assert [*seen, trainer.estimated_stepping_batches] == [steps] * 3

    def test_without_a_limit(self):
        seen = []

        def stop(trainer, module, *_):
            seen.append(trainer.estimated_stepping_batches)
            trainer.should_stop = True

        quiet_trainer(max_epochs=-1, callbacks=[on(on_train_batch_end=stop)]).fit(Net(), batches(3))
        assert seen == [math.inf]

    def test_of_a_second_fit_is_that_of_its_own_limits(self):
        seen = []

        module = calling(configure_optimizers=lambda self: seen.append(self.trainer.estimated_stepping_batches))
        trainer = quiet_trainer()
        trainer.fit(module, batches(2))
        trainer.max_epochs = 3
        trainer.fit(module, batches(4))
        assert seen == [2, 12]


class TestAccumulation:
    @pytest.mark.parametrize(
        ("changes", "steps_at"),
        [
            ({2: 4}, [2, 4, 6, 10]),  # between two windows
            ({1: 3}, [2, 4, 6, 9, 12]),  # within a window
            ({6: 1}, [2, 4, 6, *range(7, 13)]),  # at the end of the epoch
        ],
    )
    def test_set_during_a_run_it_is_meant_for_the_next_epoch(self, changes, steps_at):
        seen = []

        def change(trainer, module, outputs, batch, i):
            if trainer.progress.batch in changes:
                trainer.accumulate_grad_batches = changes[trainer.progress.batch]

        def stepped(trainer, module):
            seen.append(trainer.progress.batch)

        module = Net()
        callback = on(on_train_batch_end=change, on_accumulation_end=stepped)
        quiet_trainer(accumulate_grad_batches=2, max_epochs=2, callbacks=[callback]).fit(module, batches(6))
        assert seen[: len(steps_at)] == steps_at
        assert seen[-1] == 12
        steps_at = seen

        plain, data = Net(), 2 * batches(6)
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
        for start, end in zip([0, *steps_at], steps_at, strict=False):
            optimizer.zero_grad()
            for i in range(start, end):
                (plain.training_step(data[i], i) / (end - start)).backward()
            optimizer.step()
        for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", [deque, tuple, iter, set, lambda given: (one for one in [*given, None])])
def test_callbacks_may_come_in_any_iterable(kind):
    first, second = Timer(), EarlyStopping("x")
    trainer = quiet_trainer(callbacks=kind([first, second]))
    assert {id(callback) for callback in trainer.callbacks} == {id(first), id(second)}


def test_callbacks_may_come_in_a_list_of_omegaconf():
    omegaconf = pytest.importorskip("omegaconf")
    timer = Timer()
    given = omegaconf.ListConfig([timer], flags={"allow_objects": True})
    assert quiet_trainer(callbacks=given).callbacks == [timer]


def test_the_module_may_return_its_callbacks_in_any_iterable():
    timer = Timer()

    trainer = quiet_trainer()
    trainer.fit(with_methods(configure_callbacks=lambda self: deque([timer])), batches(1))
    assert trainer.callbacks == [timer]
