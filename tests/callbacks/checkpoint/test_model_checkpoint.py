"""ModelCheckpoint: when it saves, the files that it keeps, and no loss when a write fails."""

from __future__ import annotations

import math
import os
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightlib.callbacks import ModelCheckpoint
from lightlib.callbacks.checkpoint.named import SaveDecision
from lightlib.core.progress.plan import Plan
from lightlib.errors import ArgumentTypeError, CheckpointWriteError, MisconfigurationException, UnknownNameError
from lightlib.report import PossibleUserWarning
from tests.callbacks.fake_trainer import FakeTrainer


def started(tmp_path, trainer=None, **arguments):
    callback = ModelCheckpoint(tmp_path / "kept", **arguments)
    return callback, (trainer or FakeTrainer(tmp_path)).start(callback)


def kept(callback):
    there = os.listdir(callback.dirpath) if os.path.isdir(callback.dirpath) else []
    return sorted(name for name in there if not name.startswith("."))


def lightnings(callback):
    """The part of the state that Lightning has as well."""
    return {name: value for name, value in callback.state_dict().items() if name != "lightlib"}


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"save_top_k": -2}, r"save_top_k=-2.*\n.*-1 keeps all"),
            ({"save_top_k": 2}, r"without a metric, no file is better"),
            ({"every_n_epochs": -1}, r"every_n_epochs=-1"),
            ({"every_n_train_steps": -1}, r"every_n_train_steps=-1"),
            (
                {"every_n_train_steps": 1, "every_n_epochs": 1},
                r"every_n_train_steps and every_n_epochs(.|\n)*callbacks=\[",
            ),
            ({"every_n_train_steps": 1, "train_time_interval": timedelta(1)}, r"at most one of"),
            ({"save_last": "copy"}, r"save_last='copy'"),
            ({"monitor": ["a", "b"]}, r"monitor=\['a', 'b'\](.|\n)*callbacks=\[ModelCheckpoint\(monitor='a'\), "),
            ({"monitor": 3}, r"monitor=3(.|\n)*ModelCheckpoint\(monitor=\"val_loss\"\)"),
            ({"filename": "../{epoch}"}, r"leads out of the folder"),
            ({"filename": "/tmp/{epoch}"}, r"leads out of the folder"),
            ({"filename": "a/../../{epoch}"}, r"leads out of the folder"),
            ({"filename": "a\0b"}, r"filename='a\\x00b'\) holds the character NUL.(.|\n)*filename='ab'"),
        ],
    )
    def test_refused(self, arguments, text):
        with pytest.raises(MisconfigurationException, match=text):
            ModelCheckpoint(**arguments)

    @pytest.mark.parametrize(
        "arguments",
        [{"save_top_k": 1.5}, {"every_n_train_steps": "3"}, {"train_time_interval": 60}, {"save_top_k": True}],
    )
    def test_wrong_type(self, arguments):
        with pytest.raises(ArgumentTypeError, match="Expected"):
            ModelCheckpoint(**arguments)

    def test_unknown_mode(self):
        with pytest.raises(UnknownNameError, match="Did you mean 'max'"):
            ModelCheckpoint(monitor="a", mode="maxx")

    def test_state_key_is_that_of_lightning(self):
        assert ModelCheckpoint(monitor="vl").state_key == (
            "ModelCheckpoint{'monitor': 'vl', 'mode': 'min', 'every_n_train_steps': 0, 'every_n_epochs': 1, "
            "'train_time_interval': None}"
        )

    def test_order_of_call(self):
        assert ModelCheckpoint.priority == "lowest"
        assert ModelCheckpoint.after_module


class TestNames:
    def test_default(self, tmp_path):
        callback, trainer = started(tmp_path)
        trainer.epoch(batches=10, val_loss=1)
        assert kept(callback) == ["epoch=0-step=10.ckpt"]
        assert callback.best_model_path == os.path.join(callback.dirpath, "epoch=0-step=10.ckpt")

    @pytest.mark.parametrize(
        ("template", "insert", "name"),
        [
            ("{epoch:02d}-{val_loss:.2f}", True, "epoch=03-val_loss=0.12.ckpt"),
            ("e{epoch}_{val_loss:.3f}", False, "e3_0.123.ckpt"),
            ("{val/loss:.1f}", True, "val_loss=0.1.ckpt"),
            ("sub/{epoch}", True, "sub/epoch=3.ckpt"),
            ("{gone:.2f}", True, "gone=nan.ckpt"),
            ("{gone:03d}", False, "nan.ckpt"),
            ("plain", True, "plain.ckpt"),
            ("{val.acc[0]}", True, "val.acc[0]=1.ckpt"),
            ("{{literal}}-{epoch}", True, "{literal}-epoch=3.ckpt"),
            ("{{{epoch}}}", False, "{3}.ckpt"),
            ("{{{{epoch}}}}", True, "{{epoch}}.ckpt"),
        ],
    )
    def test_template(self, template, insert, name):
        metrics = {"epoch": torch.tensor(3), "val_loss": torch.tensor(0.123), "val/loss": 0.123, "val.acc[0]": 1}
        callback = ModelCheckpoint(filename=template, auto_insert_metric_name=insert)
        assert callback.format_checkpoint_name(metrics) == name

    @pytest.mark.filterwarnings("error")
    def test_literal_braces_are_no_metric(self, tmp_path):
        """No metric is missed, and the files are recognised: the older one is deleted, also by a resumed run."""
        callback, trainer = started(tmp_path, filename="{{run}}-{epoch}")
        trainer.epoch(val_loss=1)
        trainer.epoch(val_loss=1)
        assert kept(callback) == ["{run}-epoch=1.ckpt"]
        assert callback.names.is_ranked(os.path.join(callback.dirpath, "{run}-epoch=7-v2.ckpt"))
        assert not callback.names.is_ranked(os.path.join(callback.dirpath, "run-epoch=7.ckpt"))

    def test_a_format_that_does_not_fit(self):
        with pytest.raises(MisconfigurationException, match=r"'val_loss' = 0.5 does not fit '\{val_loss:d\}'"):
            ModelCheckpoint(filename="{val_loss:d}").format_checkpoint_name({"val_loss": torch.tensor(0.5)})

    @given(st.text(min_size=1, max_size=20).filter(lambda name: not set(name) & set("{}:")))
    def test_no_metric_name_leads_out_of_the_folder(self, name):
        callback = ModelCheckpoint("folder", filename="a{" + name + "}")
        path = os.path.normpath(callback.format_checkpoint_name({name: 1.0}))
        assert os.path.dirname(path) == callback.dirpath

    def test_version_prefix_and_characters(self):
        class Mine(ModelCheckpoint):
            CHECKPOINT_JOIN_CHAR = "_"
            CHECKPOINT_EQUALS_CHAR = "~"

        metrics = {"epoch": 1, "step": 2}
        assert Mine().format_checkpoint_name(metrics, ver=3, prefix="p") == "p_epoch~1_step~2_v3.ckpt"

    def test_missing_metric_in_the_name_is_said(self, tmp_path):
        callback, trainer = started(tmp_path, filename="{epoch}-{val_los:.2f}")
        with pytest.warns(PossibleUserWarning, match=r"'val_los' is not logged.*Did you mean 'val_loss'"):
            trainer.epoch(val_loss=1)
        assert kept(callback) == ["epoch=0-val_los=nan.ckpt"]

    def test_default_folder(self, tmp_path):
        callback = ModelCheckpoint()
        FakeTrainer(tmp_path).start(callback)
        assert callback.dirpath == os.path.realpath(tmp_path / "checkpoints")
        callback = ModelCheckpoint()
        FakeTrainer(tmp_path, log_dir=str(tmp_path / "version_0")).start(callback)
        assert callback.dirpath == os.path.realpath(tmp_path / "version_0" / "checkpoints")


class TestWhen:
    def test_every_epoch_after_the_epoch_is_counted_but_with_its_number(self, tmp_path):
        _, trainer = started(tmp_path, save_top_k=-1)
        for _ in range(3):
            trainer.epoch(val_loss=1)
        assert trainer.written == ["epoch=0-step=2.ckpt", "epoch=1-step=4.ckpt", "epoch=2-step=6.ckpt"]

    def test_every_second_epoch(self, tmp_path):
        _, trainer = started(tmp_path, save_top_k=-1, every_n_epochs=2)
        for _ in range(4):
            trainer.epoch(val_loss=1)
        assert trainer.written == ["epoch=1-step=4.ckpt", "epoch=3-step=8.ckpt"]

    def test_no_trigger_saves_nothing(self, tmp_path):
        _, trainer = started(tmp_path, every_n_epochs=0)
        trainer.epoch(val_loss=1)
        assert trainer.written == []

    def test_step_trigger_sees_the_validation_of_its_step(self, tmp_path):
        callback, trainer = started(
            tmp_path, monitor="val_loss", every_n_train_steps=2, filename="{step}-{val_loss:.0f}"
        )
        trainer.batch()
        trainer.batch(validate={"val_loss": 7})
        assert kept(callback) == ["step=2-val_loss=7.ckpt"]

    def test_steps_are_optimizer_steps_and_fire_once(self, tmp_path):
        _, trainer = started(tmp_path, save_top_k=-1, every_n_train_steps=2)
        for batch in range(1, 17):  # four batches per step
            trainer.batch(step=batch % 4 == 0)
        assert trainer.written == ["epoch=0-step=2.ckpt", "epoch=0-step=4.ckpt"]

    def test_steps_that_jump_over_the_number_count(self, tmp_path):
        _, trainer = started(tmp_path, save_top_k=-1, every_n_train_steps=5)
        for _ in range(4):
            trainer.batch(step=3)
        assert trainer.written == ["epoch=0-step=6.ckpt", "epoch=0-step=12.ckpt"]

    def test_time_trigger(self, tmp_path, monkeypatch):
        now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: now)
        _, trainer = started(tmp_path, save_top_k=-1, train_time_interval=timedelta(seconds=10))
        for _ in range(5):
            now += 4
            trainer.batch()
        assert trainer.written == ["epoch=0-step=3.ckpt"]

    @pytest.mark.parametrize(
        ("settings", "at_epoch_end"),
        [
            ({}, True),
            ({"val_check_interval": 0.5}, False),
            ({"val_check_interval": 1}, False),
            ({"check_val_every_n_epoch": 2}, False),
            ({"plan": Plan(validate_every_seconds=60)}, False),
            (
                {
                    "plan": Plan(validate_loaders=(("a", ((0, 1),)), ("b", ((0, 5),)))),
                    "check_val_every_n_epoch": {"b": 5},
                },
                True,
            ),
            ({"plan": Plan(validate_loaders=(("a", ((0, 2),)),)), "check_val_every_n_epoch": {"a": 2}}, False),
            ({"check_val_every_n_epoch": None}, False),
            ({"num_val_batches": [0], "check_val_every_n_epoch": 2}, True),
            ({"num_val_batches": []}, True),
            ({"num_val_batches": [math.inf]}, True),
        ],
    )
    def test_default_of_save_on_train_epoch_end(self, tmp_path, settings, at_epoch_end):
        trainer = FakeTrainer(tmp_path, **settings)
        assert ModelCheckpoint()._should_save_on_train_epoch_end(trainer) is at_epoch_end
        assert ModelCheckpoint(save_on_train_epoch_end=True)._should_save_on_train_epoch_end(trainer)

    def test_after_each_validation(self, tmp_path):
        _, trainer = started(tmp_path, FakeTrainer(tmp_path, val_check_interval=0.5), monitor="val_loss", save_top_k=-1)
        for loss in (3, 2):
            trainer.batch()
            trainer.batch(validate={"val_loss": loss})
        trainer.end_epoch()
        assert trainer.written == ["epoch=0-step=2.ckpt", "epoch=0-step=4.ckpt"]

    def test_not_in_the_sanity_check_nor_other_stages(self, tmp_path):
        _, trainer = started(tmp_path, FakeTrainer(tmp_path, val_check_interval=0.5))
        trainer.progress.batch = 1
        trainer.sanity_checking = True
        trainer.validate(val_loss=1)
        trainer.sanity_checking, trainer.state.fn = False, "validate"
        trainer.validate(val_loss=1)
        trainer.save_point()
        assert trainer.written == []

    def test_not_in_fast_dev_run(self, tmp_path):
        _, trainer = started(tmp_path, FakeTrainer(tmp_path, fast_dev_run=True))
        trainer.epoch(val_loss=1)
        assert trainer.written == []

    def test_nothing_before_training_nor_twice(self, tmp_path):
        _, trainer = started(tmp_path, save_top_k=-1)
        trainer.end_epoch()
        trainer.epoch(val_loss=1)
        trainer.end_epoch()
        assert trainer.written == ["epoch=1-step=2.ckpt"]

    def test_a_resumed_run_does_not_save_its_start(self, tmp_path):
        trainer = FakeTrainer(tmp_path)
        trainer.progress.batch = trainer.progress.step = 4
        _, trainer = started(tmp_path, trainer, every_n_train_steps=4)
        trainer.batch()
        assert trainer.written == []


class TestBest:
    def test_top_k(self, tmp_path):
        callback, trainer = started(tmp_path, monitor="val_loss", save_top_k=2)
        for loss in (3, 1, 2, 5, 0.5):
            trainer.epoch(val_loss=loss)
        assert kept(callback) == ["epoch=1-step=4.ckpt", "epoch=4-step=10.ckpt"]
        assert os.path.basename(callback.best_model_path) == "epoch=4-step=10.ckpt"
        assert callback.best_model_score == 0.5
        assert os.path.basename(callback.kth_best_model_path) == "epoch=1-step=4.ckpt"
        assert callback.kth_value == 1
        assert callback.current_score == 0.5
        assert sorted(value.item() for value in callback.best_k_models.values()) == [0.5, 1]

    def test_max(self, tmp_path):
        callback, trainer = started(tmp_path, monitor="acc", mode="max")
        for accuracy in (0.1, 0.9, 0.5):
            trainer.epoch(acc=accuracy)
        assert kept(callback) == ["epoch=1-step=4.ckpt"]

    def test_equals_keep_the_older(self, tmp_path):
        callback, trainer = started(tmp_path, monitor="val_loss")
        trainer.epoch(val_loss=1)
        trainer.epoch(val_loss=1)
        assert kept(callback) == ["epoch=0-step=2.ckpt"]

    def test_all(self, tmp_path):
        callback, trainer = started(tmp_path, monitor="val_loss", save_top_k=-1)
        for loss in (3, 1, 2):
            trainer.epoch(val_loss=loss)
        assert len(kept(callback)) == 3
        assert callback.best_model_score == 1

    def test_none(self, tmp_path):
        callback, trainer = started(tmp_path, monitor="val_loss", save_top_k=0, save_last=True)
        trainer.epoch(val_loss=3)
        assert kept(callback) == ["last.ckpt"]
        assert not callback.check_monitor_top_k(trainer, torch.tensor(0.0))

    def test_monitor_epoch_or_step(self, tmp_path):
        callback, trainer = started(tmp_path, monitor="step", mode="max", save_top_k=2)
        for _ in range(4):
            trainer.epoch(val_loss=3)
        assert kept(callback) == ["epoch=2-step=6.ckpt", "epoch=3-step=8.ckpt"]

    @pytest.mark.parametrize("mode", ["min", "max"])
    def test_nan_is_the_worst_number_and_does_not_evict(self, tmp_path, mode):
        callback, trainer = started(tmp_path, monitor="m", mode=mode, save_top_k=2)
        with pytest.warns(PossibleUserWarning, match="'m' is nan at epoch 0, step 2"):
            trainer.epoch(m=math.nan)
        worst = {"min": math.inf, "max": -math.inf}[mode]
        assert callback.best_model_path.endswith("epoch=0-step=2.ckpt")  # it is the only one
        assert callback.best_model_score == callback.current_score == worst
        trainer.epoch(m=1)
        assert callback.best_model_score == 1
        trainer.epoch(m=2)
        assert kept(callback) == ["epoch=1-step=4.ckpt", "epoch=2-step=6.ckpt"]
        trainer.epoch(m=math.nan)
        assert kept(callback) == ["epoch=1-step=4.ckpt", "epoch=2-step=6.ckpt"]
        assert callback.best_model_score == (1 if mode == "min" else 2)

    @given(st.lists(st.floats(width=32, allow_infinity=False) | st.just(math.nan), max_size=12), st.integers(1, 4))
    def test_the_kept_ones_are_the_best(self, tmp_path_factory, losses, count):
        callback, trainer = started(tmp_path_factory.mktemp("run"), monitor="m", save_top_k=count)
        callback._once._keys.add("nan")
        for loss in losses:
            trainer.epoch(batches=1, m=loss)
        numbers = [loss for loss in losses if not math.isnan(loss)]
        expected = sorted([*sorted(numbers)[:count], *[math.inf] * (len(losses) - len(numbers))])[:count]
        assert sorted(value.item() for value in callback.best_k_models.values()) == expected
        assert sorted(callback.best_k_models) == [os.path.join(callback.dirpath, name) for name in kept(callback)]
        assert callback.best_model_score == (min(numbers) if numbers else math.inf if losses else None)

    def test_ranks_follow_rank_zero(self, tmp_path):
        callback, trainer = started(tmp_path, monitor="m")
        trainer.epoch(m=2)
        of_rank_zero = SaveDecision({"m": torch.tensor(3.0)}, callback._files, "", callback.best_model_path, None)
        trainer.is_global_zero, trainer.strategy.broadcast = False, lambda _: (of_rank_zero, None)
        trainer.epoch(m=1)
        assert kept(callback) == ["epoch=0-step=2.ckpt"]
        assert callback.current_score == 3

    def test_ranks_agree_outside_of_a_save(self, tmp_path):
        callback, trainer = started(tmp_path, monitor="m")
        trainer.epoch(m=2)
        assert callback.check_monitor_top_k(trainer, torch.tensor(1.0))
        trainer.strategy.reduce_boolean_decision = lambda decision: False
        assert not callback.check_monitor_top_k(trainer, torch.tensor(1.0))

    def test_verbose(self, tmp_path, caplog, monkeypatch):
        said = []
        monkeypatch.setattr("lightlib.report.info", said.append)
        _, trainer = started(tmp_path, monitor="m", verbose=True)
        trainer.epoch(m=1)
        trainer.epoch(m=2)
        assert said[0].startswith("Epoch 0, step 2: 'm' = 1, saved as number 1 to '")
        assert said[1] == "Epoch 1, step 4: 'm' = 2 is not among the best 1."


class TestMissingMetric:
    def test_never_logged(self, tmp_path):
        _, trainer = started(tmp_path, monitor="val_los")
        with pytest.raises(MisconfigurationException) as caught:
            trainer.epoch(val_loss=1, acc=2)
        assert "Did you mean 'val_loss'?" in str(caught.value)
        assert "Expected: one of 'acc', 'val_loss'." in str(caught.value)

    def test_not_validated_yet(self, tmp_path):
        callback, trainer = started(tmp_path, monitor="val_loss", every_n_train_steps=1, save_last=True)
        trainer.log(train_loss=1)
        with pytest.warns(PossibleUserWarning, match="at step 1 this metric does not exist yet") as said:
            trainer.epoch(batches=2)
        assert len(said) == 1
        assert kept(callback) == ["last.ckpt"]
        trainer.batch(validate={"val_loss": 1})
        assert kept(callback) == ["epoch=1-step=3.ckpt", "last.ckpt"]

    def test_a_metric_of_whole_epochs_at_a_step(self, tmp_path):
        _, trainer = started(
            tmp_path,
            FakeTrainer(tmp_path, num_val_batches=[], plan=Plan()),
            monitor="train_loss",
            every_n_train_steps=1,
        )
        with pytest.warns(PossibleUserWarning, match="does not exist yet"):
            trainer.batch()
        trainer.end_epoch(other=1)
        with pytest.raises(MisconfigurationException, match="save_on_train_epoch_end=True"):
            trainer.batch()

    def test_number_of_an_earlier_step(self, tmp_path):
        _, trainer = started(tmp_path, monitor="val_loss", every_n_train_steps=1, save_top_k=2)
        trainer.batch(validate={"val_loss": 1})
        with pytest.warns(PossibleUserWarning, match="the checkpoint of step 2 is compared by a number of step 1"):
            trainer.batch()

    def test_a_metric_of_training_is_not_of_an_earlier_step(self, tmp_path):
        callback, trainer = started(tmp_path, monitor="loss", every_n_train_steps=1, save_top_k=2)
        trainer.batch(loss=2, validate={"val_loss": 1})
        trainer.batch(loss=1)
        assert callback.best_model_score == 1


class TestLast:
    def test_last(self, tmp_path):
        callback, trainer = started(tmp_path, monitor="m", save_last=True)
        trainer.epoch(m=1)
        trainer.epoch(m=2)
        assert kept(callback) == ["epoch=0-step=2.ckpt", "last.ckpt"]
        assert (tmp_path / "kept" / "last.ckpt").read_text() == "4"
        assert callback.last_model_path == os.path.join(callback.dirpath, "last.ckpt")

    @pytest.mark.parametrize(
        "interval", [{"every_n_epochs": 10}, {"every_n_train_steps": 5}, {"train_time_interval": timedelta(hours=1)}]
    )
    def test_last_is_saved_at_every_epochs_end_whatever_the_interval(self, tmp_path, interval):
        callback, trainer = started(tmp_path, save_last=True, **interval)
        trainer.epoch(batches=3)
        assert kept(callback) == ["last.ckpt"]
        assert (tmp_path / "kept" / "last.ckpt").read_text() == "3"
        trainer.epoch(batches=3)
        assert (tmp_path / "kept" / "last.ckpt").read_text() == "6"
        assert kept(callback) == (
            ["epoch=1-step=5.ckpt", "last.ckpt"] if "every_n_train_steps" in interval else ["last.ckpt"]
        )

    def test_last_alone_follows_the_validations_when_their_rhythm_is_another(self, tmp_path):
        trainer = FakeTrainer(tmp_path, val_check_interval=0.5)
        callback, trainer = started(tmp_path, trainer, monitor="m", save_last=True, every_n_epochs=2)
        trainer.batch(validate={"m": 1})
        assert (tmp_path / "kept" / "last.ckpt").read_text() == "1"
        trainer.batch()
        trainer.end_epoch()
        assert (tmp_path / "kept" / "last.ckpt").read_text() == "1"
        trainer.batch(validate={"m": 2})
        assert kept(callback) == ["epoch=1-step=3.ckpt", "last.ckpt"]

    def test_last_alone_waits_for_a_save_that_is_due_at_the_same_point(self, tmp_path):
        callback, trainer = started(tmp_path, save_last=True, every_n_train_steps=2)
        trainer.progress.batch += 1
        callback._request(trainer, "last alone")  # while gradients are accumulated there is no save point
        trainer.progress.batch += 1
        callback._request(trainer)
        trainer.save_point()
        assert kept(callback) == ["epoch=0-step=0.ckpt", "last.ckpt"]
        assert trainer.written == ["epoch=0-step=0.ckpt", "last.ckpt"]

    def test_link(self, tmp_path):
        callback, trainer = started(tmp_path, monitor="m", save_last="link")
        trainer.epoch(m=2)
        assert os.readlink(callback.last_model_path) == "epoch=0-step=2.ckpt"
        trainer.epoch(m=1)
        assert os.readlink(callback.last_model_path) == "epoch=1-step=4.ckpt"
        trainer.epoch(m=3)  # nothing to link to: the last state is not among the best
        assert not os.path.islink(callback.last_model_path)
        assert (tmp_path / "kept" / "last.ckpt").read_text() == "6"
        assert (tmp_path / "kept" / "epoch=1-step=4.ckpt").read_text() == "4"

    def test_link_needs_a_local_folder(self):
        with pytest.raises(MisconfigurationException, match="remote folder 'memory://kept'"):
            FakeTrainer().start(ModelCheckpoint("memory://kept", save_last="link"))

    def test_copy_where_links_are_not_allowed(self, tmp_path, monkeypatch):
        def refuse(*_):
            raise OSError("no links here")

        monkeypatch.setattr(os, "symlink", refuse)
        _, trainer = started(tmp_path, save_last="link")
        trainer.epoch(m=2)
        assert (tmp_path / "kept" / "last.ckpt").read_text() == "2"

    def test_template_of_last(self, tmp_path):
        class Mine(ModelCheckpoint):
            CHECKPOINT_NAME_LAST = "last-{epoch}"

        callback = Mine(tmp_path / "kept", save_last=True, save_top_k=0)
        trainer = FakeTrainer(tmp_path).start(callback)
        trainer.epoch(m=1)
        trainer.epoch(m=1)
        assert kept(callback) == ["last-epoch=1.ckpt"]

    def test_a_file_named_last_by_the_template(self, tmp_path):
        callback, trainer = started(tmp_path, filename="last", save_last=True)
        trainer.epoch(m=1)
        trainer.epoch(m=1)
        assert kept(callback) == ["last-v1.ckpt", "last.ckpt"]
        assert callback.last_model_path.endswith("last.ckpt")

    def test_every_file_knows_the_name_of_the_last_one(self, tmp_path):
        callback, trainer = started(tmp_path, save_last="link")
        names = []
        write = trainer.save_checkpoint
        trainer.save_checkpoint = lambda *a: (names.append(callback.state_dict()["last_model_path"]), write(*a))
        trainer.epoch(m=1)
        assert names == [os.path.join(callback.dirpath, "last.ckpt")]


class TestFilesOfOthers:
    def test_are_not_overwritten(self, tmp_path):
        (tmp_path / "kept").mkdir()
        for name in ("epoch=0-step=2.ckpt", "epoch=0-step=2-v1.ckpt", "last.ckpt"):
            (tmp_path / "kept" / name).write_text("of another run")
        _, trainer = started(tmp_path, save_last=True)
        trainer.epoch(m=1)
        assert trainer.written == ["epoch=0-step=2-v2.ckpt", "last-v1.ckpt"]
        trainer.epoch(m=1)
        for name in ("epoch=0-step=2.ckpt", "epoch=0-step=2-v1.ckpt", "last.ckpt"):
            assert (tmp_path / "kept" / name).read_text() == "of another run"
        assert trainer.written[2:] == ["epoch=1-step=4.ckpt", "last-v1.ckpt"]

    def test_without_version_counter_they_are(self, tmp_path):
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept" / "best.ckpt").write_text("of another run")
        _, trainer = started(tmp_path, filename="best", enable_version_counter=False)
        trainer.epoch(m=1)
        assert (tmp_path / "kept" / "best.ckpt").read_text() == "2"

    def test_a_constant_name_is_reused_in_place(self, tmp_path):
        callback, trainer = started(tmp_path, filename="best", monitor="m", save_top_k=2)
        for loss in (3, 2, 1, 0):
            trainer.epoch(m=loss)
        assert kept(callback) == ["best-v1.ckpt", "best.ckpt"]
        assert {(tmp_path / "kept" / name).read_text() for name in kept(callback)} == {"6", "8"}

    def test_all_with_a_constant_name(self, tmp_path):
        callback, trainer = started(tmp_path, filename="file", save_top_k=-1)
        for _ in range(3):
            trainer.epoch(m=0)
        assert kept(callback) == ["file-v1.ckpt", "file-v2.ckpt", "file.ckpt"]

    def test_the_file_that_the_run_was_resumed_from_stays(self, tmp_path):
        callback, trainer = started(tmp_path)
        trainer.epoch(m=1)
        trainer.ckpt_path = callback.best_model_path
        trainer.epoch(m=1)
        assert kept(callback) == ["epoch=0-step=2.ckpt", "epoch=1-step=4.ckpt"]

    @pytest.mark.parametrize(("by_path", "stays"), [(True, True), (False, False)])
    def test_in_the_same_run_it_stays_when_it_was_named_by_its_path(self, tmp_path, by_path, stays):
        callback, trainer = started(tmp_path)
        trainer.epoch(m=1)
        trainer.ckpt_path, trainer.continues, trainer.resumed_by_path = callback.best_model_path, True, by_path
        trainer.epoch(m=1)
        trainer.epoch(m=1)
        assert kept(callback) == (["epoch=0-step=2.ckpt"] if stays else []) + ["epoch=2-step=6.ckpt"]

    def test_two_callbacks_in_one_folder(self, tmp_path):
        one, first = started(tmp_path, monitor="m")
        _, second = started(tmp_path, monitor="n")
        first.epoch(m=1)
        second.epoch(n=1)
        assert kept(one) == ["epoch=0-step=2-v1.ckpt", "epoch=0-step=2.ckpt"]


class TestFailures:
    @pytest.mark.parametrize("monitor", [None, "m"])
    def test_failing_write_leaves_everything_as_it_was(self, tmp_path, monitor):
        callback, trainer = started(tmp_path, monitor=monitor, save_last=True)
        trainer.epoch(m=2)
        state, files = lightnings(callback), kept(callback)
        trainer.full = True
        with pytest.raises(CheckpointWriteError, match=r"epoch=1-step=4.ckpt' could not be written"):
            trainer.epoch(m=1)
        assert lightnings(callback) == state
        assert callback.state_dict()["lightlib"]["evicted"] == []
        assert callback.state_dict()["lightlib"]["pending"] == ""
        assert kept(callback) == files
        trainer.full = False
        trainer.epoch(m=1)
        assert kept(callback) == ["epoch=2-step=6.ckpt", "last.ckpt"]

    def test_failing_last_keeps_the_old_best_until_the_next_save(self, tmp_path):
        callback, trainer = started(tmp_path, monitor="m", save_last=True)
        trainer.epoch(m=2)
        write = trainer.save_checkpoint

        def fail_for_last(path, weights_only):
            if path.endswith("last.ckpt"):
                raise CheckpointWriteError("disk full")
            write(path, weights_only)

        trainer.save_checkpoint = fail_for_last
        with pytest.raises(CheckpointWriteError):
            trainer.epoch(m=1)
        assert kept(callback) == ["epoch=0-step=2.ckpt", "epoch=1-step=4.ckpt", "last.ckpt"]
        trainer.save_checkpoint = write
        trainer.epoch(m=0)
        assert kept(callback) == ["epoch=2-step=6.ckpt", "last.ckpt"]

    def test_old_files_go_last(self, tmp_path):
        callback, trainer = started(tmp_path, save_last=True)
        trainer.epoch(m=1)
        seen = []
        callback._remove_checkpoint = lambda _, path: seen.append((os.path.basename(path), list(trainer.written)))
        trainer.epoch(m=1)
        assert seen == [
            ("epoch=0-step=2.ckpt", ["epoch=0-step=2.ckpt", "last.ckpt", "epoch=1-step=4.ckpt", "last.ckpt"])
        ]

    def test_failing_removal_is_said(self, tmp_path):
        callback, trainer = started(tmp_path)
        trainer.epoch(m=1)
        os.remove(callback.best_model_path)
        with pytest.warns(UserWarning, match=r"'.*epoch=0-step=2.ckpt' could not be removed, training continues"):
            trainer.epoch(m=1)

    def test_folders_are_removed_too(self, tmp_path):
        callback, trainer = started(tmp_path)
        trainer.epoch(m=1)
        os.remove(callback.best_model_path)
        os.makedirs(os.path.join(callback.best_model_path, "shard"))
        trainer.epoch(m=1)
        assert kept(callback) == ["epoch=1-step=4.ckpt"]

    def test_a_failing_logger_is_said_once(self, tmp_path):
        def fail(_):
            raise RuntimeError("service down")

        trainer = FakeTrainer(tmp_path, loggers=[SimpleNamespace(after_save_checkpoint=fail)])
        _, trainer = started(tmp_path, trainer)
        with pytest.warns(PossibleUserWarning, match=r"after_save_checkpoint failed.*service down") as said:
            [trainer.epoch(m=1) for _ in range(2)]
        assert len(said) == 1

    def test_loggers_are_told(self, tmp_path):
        told = []
        trainer = FakeTrainer(tmp_path)
        trainer.loggers = [
            SimpleNamespace(after_save_checkpoint=lambda callback: told.append(callback.best_model_path))
        ]
        callback, trainer = started(tmp_path, trainer)
        trainer.epoch(m=1)
        assert told == [callback.best_model_path]


class TestExceptions:
    @pytest.mark.parametrize("error", [RuntimeError("bad batch"), KeyboardInterrupt()])
    def test_save_on_exception(self, tmp_path, error):
        callback, trainer = started(tmp_path, monitor="m", save_on_exception=True, save_last=True)
        trainer.batch()
        callback.on_exception(trainer, None, error)
        assert trainer.written == ["epoch=0-step=1.ckpt", "last.ckpt"]
        assert callback.best_model_path == ""

    def test_only_when_asked_and_something_is_new(self, tmp_path):
        callback, trainer = started(tmp_path)
        trainer.batch()
        callback.on_exception(trainer, None, RuntimeError())
        callback, trainer = started(tmp_path, save_on_exception=True)
        callback.on_exception(trainer, None, RuntimeError())
        assert trainer.written == []

    def test_a_failing_save_does_not_hide_the_exception(self, tmp_path):
        callback, trainer = started(tmp_path, FakeTrainer(tmp_path, full=True), save_on_exception=True)
        trainer.batch()
        with pytest.warns(UserWarning, match=r"could not save after RuntimeError: .*disk full"):
            callback.on_exception(trainer, None, RuntimeError())

    def test_one_of_several_ranks(self, tmp_path):
        callback, trainer = started(tmp_path, FakeTrainer(tmp_path, world_size=2), save_on_exception=True)
        trainer.batch()
        with pytest.warns(UserWarning, match=r"with 2 processes, the other ranks wait"):
            callback.on_exception(trainer, None, RuntimeError())
        with pytest.warns(UserWarning, match=r"No checkpoint was saved after KeyboardInterrupt"):
            callback.on_exception(trainer, None, KeyboardInterrupt())  # the second Ctrl-C, which is obeyed anywhere
        trainer.stop_signal = KeyboardInterrupt()
        callback.on_exception(trainer, None, trainer.stop_signal)
        assert trainer.written == ["epoch=0-step=1.ckpt"]


class TestState:
    def test_goes_on_in_the_same_folder(self, tmp_path):
        callback, trainer = started(tmp_path, monitor="m", save_top_k=2, save_last=True)
        for loss in (3, 1, 2):
            trainer.epoch(m=loss)
        resumed, again = started(tmp_path, monitor="m", save_top_k=2, save_last=True)
        resumed.load_state_dict(callback.state_dict())
        assert lightnings(resumed) == lightnings(callback)
        again.progress = trainer.progress
        again.epoch(m=0)
        assert kept(resumed) == ["epoch=1-step=4.ckpt", "epoch=3-step=8.ckpt", "last.ckpt"]

    def test_the_keys_of_lightning_and_only_plain_values(self, tmp_path):
        callback, trainer = started(tmp_path, monitor="m")
        trainer.epoch(m=3)
        assert list(callback.state_dict()) == [
            "monitor",
            "best_model_score",
            "best_model_path",
            "current_score",
            "dirpath",
            "best_k_models",
            "kth_best_model_path",
            "kth_value",
            "last_model_path",
            "lightlib",
        ]
        torch.save(callback.state_dict(), tmp_path / "state.pt")
        assert torch.load(tmp_path / "state.pt", weights_only=True) == callback.state_dict()

    def test_another_folder_begins_anew(self, tmp_path, monkeypatch):
        said = []
        monkeypatch.setattr("lightlib.report.info", said.append)
        callback, trainer = started(tmp_path, monitor="m", save_last=True)
        trainer.epoch(m=1)
        resumed = ModelCheckpoint(tmp_path / "other", monitor="m", save_last=True)
        again = FakeTrainer(tmp_path).start(resumed)
        resumed.load_state_dict(callback.state_dict())
        assert resumed.best_model_path == callback.best_model_path
        assert resumed.best_k_models == {}
        assert "its list of best files starts empty" in said[0]
        again.epoch(m=5)
        assert kept(callback) == ["epoch=0-step=2.ckpt", "last.ckpt"]
        assert kept(resumed) == ["epoch=0-step=2.ckpt", "last.ckpt"]

    @pytest.mark.parametrize("where", ["kept/../precious.txt", "precious.txt", "kept/../kept/../precious.txt"])
    @pytest.mark.parametrize("part", ["best_k_models", "last_model_path", "latest", "evicted"])
    def test_a_forged_state_does_not_reach_files_elsewhere(self, tmp_path, part, where):
        """A forged path must not let a file be overwritten, copied to a shared folder, or removed."""
        precious = tmp_path / "precious.txt"
        precious.write_text("precious")
        options = {"monitor": "m", "save_top_k": 1, "save_last": "link" if part == "latest" else True}
        callback, trainer = started(tmp_path, **options)
        trainer.epoch(m=2)
        state = callback.state_dict()
        forged = f"{tmp_path}/{where}"
        state["lightlib"] |= {"pending": "last", "epoch": 0, "candidates": {"m": torch.tensor(2.0)}}
        if part == "best_k_models":
            state[part] = {forged: torch.tensor(9.0)}
        elif part == "last_model_path":
            state[part] = forged
        else:
            state["lightlib"][part] = [forged] if part == "evicted" else forged
        resumed, again = started(tmp_path, FakeTrainer(tmp_path, continues=True), **options)
        with pytest.warns(UserWarning, match=r"lists .*precious\.txt(.|\n)*left alone"):
            resumed.load_state_dict(state)
        again.progress = trainer.progress
        resumed.on_train_start(again, None)
        again.save_point()
        again.epoch(m=1)
        assert precious.read_text() == "precious"
        assert not any("precious" in os.path.realpath(tmp_path / "kept" / name) for name in kept(resumed))
        assert all((tmp_path / "kept" / name).read_text() != "precious" for name in kept(resumed))

    def test_files_that_are_gone(self, tmp_path):
        callback, trainer = started(tmp_path, monitor="m", save_top_k=2)
        trainer.epoch(m=1)
        trainer.epoch(m=2)
        os.remove(callback.best_model_path)
        resumed, _ = started(tmp_path, monitor="m", save_top_k=2)
        with pytest.warns(UserWarning, match=r"are gone: '.*epoch=0-step=2.ckpt'"):
            resumed.load_state_dict(callback.state_dict())
        assert resumed.best_model_score == 2

    def test_fewer_are_kept_after_a_resume(self, tmp_path):
        callback, trainer = started(tmp_path, monitor="m", save_top_k=3)
        for loss in (3, 2, 1):
            trainer.epoch(m=loss)
        resumed, again = started(tmp_path, monitor="m", save_top_k=1)
        resumed.load_state_dict(callback.state_dict())
        again.progress = trainer.progress
        again.epoch(m=0)
        assert kept(resumed) == ["epoch=3-step=8.ckpt"]

    def test_to_yaml(self, tmp_path):
        yaml = pytest.importorskip("yaml")
        callback, trainer = started(tmp_path, monitor="m", save_top_k=3)
        trainer.epoch(m=0.5)
        callback._once._keys.add("nan")
        trainer.epoch(m=math.nan)
        callback.to_yaml()
        found = yaml.safe_load((tmp_path / "kept" / "best_k_models.yaml").read_text())
        assert found == {path: value.item() for path, value in callback.best_k_models.items()}


class TestDoors:
    def test_what_clients_override(self, tmp_path):
        class Mine(ModelCheckpoint):
            calls: ClassVar[list] = []

            def _save_checkpoint(self, trainer, filepath):
                self.calls.append("save")
                super()._save_checkpoint(trainer, filepath)

            def _remove_checkpoint(self, trainer, filepath):
                self.calls.append("remove")
                super()._remove_checkpoint(trainer, filepath)

            def _update_best_and_save(self, current, trainer, monitor_candidates):
                self.calls.append(("update", current.item(), sorted(monitor_candidates)))
                super()._update_best_and_save(current, trainer, monitor_candidates)

            def format_checkpoint_name(self, metrics, filename=None, ver=None, prefix=None):
                return super().format_checkpoint_name(metrics, filename, ver, "mine")

            def file_exists(self, filepath, trainer):
                return super().file_exists(filepath, trainer)

        callback = Mine(tmp_path / "kept", monitor="m")
        trainer = FakeTrainer(tmp_path).start(callback)
        trainer.epoch(m=2)
        trainer.epoch(m=1)
        keys = ["epoch", "m", "step"]
        assert callback.calls == [("update", 2.0, keys), "save", ("update", 1.0, keys), "save", "remove"]
        assert kept(callback) == ["mine-epoch=1-step=4.ckpt"]

    def test_remote_folder(self):
        fsspec = pytest.importorskip("fsspec")
        files = fsspec.filesystem("memory")
        callback = ModelCheckpoint("memory://run/kept")
        trainer = FakeTrainer()
        trainer.save_checkpoint = lambda path, weights_only: files.pipe(path, b"content")
        trainer.start(callback)
        trainer.epoch(m=1)
        trainer.epoch(m=1)
        assert [path.rsplit("/", 1)[1] for path in files.ls("/run/kept", detail=False)] == ["epoch=1-step=4.ckpt"]
        files.rm("/run", recursive=True)
