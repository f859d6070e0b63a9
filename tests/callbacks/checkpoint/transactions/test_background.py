"""Background saves and failed saves: the state afterwards, and when each rank is notified."""

from __future__ import annotations

import os
import pickle
import threading
from types import SimpleNamespace

import pytest

from lightlib.callbacks import EarlyStopping, ModelCheckpoint
from lightlib.errors import ArgumentTypeError, CheckpointWriteError, UnknownNameError
from tests.callbacks.checkpoint.test_model_checkpoint import kept, lightnings, started
from tests.callbacks.fake_trainer import FakeTrainer


class SlowTrainer(FakeTrainer):
    """Writes once the test allows it."""

    def __init__(self, *args, **attributes):
        super().__init__(*args, **attributes)
        self.may = threading.Event()
        self.at_once = self.most = 0

    def _write(self, path, content):
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        assert self.may.wait(20)
        super()._write(path, content)
        self.at_once -= 1


def settled(callback, trainer):
    callback._transactions.writer.join()
    trainer.batch()


def text(callback, name):
    with open(os.path.join(callback.dirpath, name)) as file:
        return file.read()


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"save_errors": "ignore"}, "Unknown save_errors of ModelCheckpoint 'ignore'"),
            ({"format": "files"}, "Unknown format of ModelCheckpoint 'files'. Did you mean 'file'"),
        ],
    )
    def test_refused(self, arguments, text):
        with pytest.raises(UnknownNameError, match=text):
            ModelCheckpoint(**arguments)

    def test_wrong_type(self):
        with pytest.raises(ArgumentTypeError, match="async_save=1"):
            ModelCheckpoint(async_save=1)

    @pytest.mark.parametrize("format", [None, "file", "directory"])
    def test_format_is_handed_on(self, tmp_path, format):  # noqa: A002
        _, trainer = started(tmp_path, format=format)
        trainer.epoch()
        assert trainer.formats == [format]


class TestBackground:
    def test_training_goes_on_while_a_file_is_written(self, tmp_path):
        callback, trainer = started(tmp_path, SlowTrainer(tmp_path), async_save=True, save_last=True)
        trainer.epoch()
        trainer.batch()
        assert trainer.written == []
        trainer.may.set()
        settled(callback, trainer)
        assert kept(callback) == ["epoch=0-step=2.ckpt", "last.ckpt"]
        assert text(callback, "last.ckpt") == "2"  # of the moment of the save
        assert trainer.written == ["epoch=0-step=2.ckpt"]  # the last one is its copy

    def test_old_files_go_when_all_is_written(self, tmp_path):
        callback, trainer = started(tmp_path, SlowTrainer(tmp_path), async_save=True, monitor="m", save_last="link")
        trainer.may.set()
        trainer.epoch(m=2)
        settled(callback, trainer)
        trainer.may.clear()
        trainer.epoch(m=1)
        assert kept(callback) == ["epoch=0-step=2.ckpt", "last.ckpt"]
        assert os.readlink(callback.last_model_path) == "epoch=0-step=2.ckpt"
        trainer.may.set()
        settled(callback, trainer)
        assert kept(callback) == ["epoch=1-step=5.ckpt", "last.ckpt"]
        assert os.readlink(callback.last_model_path) == "epoch=1-step=5.ckpt"

    def test_two_saves_never_overlap(self, tmp_path):
        one, trainer = started(tmp_path, SlowTrainer(tmp_path), async_save=True, monitor="m", save_top_k=-1)
        two = ModelCheckpoint(tmp_path / "kept", async_save=True, filename="{step}")
        trainer.start(two)
        timer = threading.Timer(0.2, trainer.may.set)
        timer.start()
        for _ in range(3):
            trainer.callback = one
            trainer.epoch(m=1)
            assert one.state_dict()["lightlib"]["pending"] == ""  # as every save asks: it waits for this callback's
            trainer.callback = two
            trainer.epoch(m=1)
            assert two.state_dict()["lightlib"]["evicted"] == []
        one.on_train_end(trainer, None)
        two.on_train_end(trainer, None)
        assert trainer.most == 1
        assert len(kept(one)) == 4

    def test_names_of_files_that_are_being_written_are_taken(self, tmp_path):
        one, trainer = started(tmp_path, SlowTrainer(tmp_path), async_save=True)
        trainer.epoch()
        two = ModelCheckpoint(tmp_path / "kept", monitor="m", async_save=True)
        trainer.start(two)
        path = one.best_model_path
        assert not os.path.exists(path)
        assert two._get_metric_interpolated_filepath_name({"epoch": 0, "step": 2}, trainer).endswith("-v1.ckpt")
        trainer.may.set()
        one.on_train_end(trainer, None)
        assert os.path.exists(path)

    def test_loggers_are_told_when_it_is_complete(self, tmp_path):
        told = []
        callback, trainer = started(tmp_path, SlowTrainer(tmp_path), async_save=True)
        trainer.loggers = [SimpleNamespace(after_save_checkpoint=lambda one: told.append(kept(one)))]
        trainer.epoch()
        trainer.batch()
        assert told == []
        trainer.may.set()
        settled(callback, trainer)
        assert told == [["epoch=0-step=2.ckpt"]]

    def test_at_the_end_it_waits(self, tmp_path):
        callback, trainer = started(tmp_path, SlowTrainer(tmp_path), async_save=True)
        trainer.epoch()
        threading.Timer(0.1, trainer.may.set).start()
        callback.on_train_end(trainer, None)
        assert kept(callback) == ["epoch=0-step=2.ckpt"]
        callback.teardown(trainer, None, "fit")
        assert callback._transactions.writer is None

    def test_an_exception_waits_and_its_own_save_is_made_at_once(self, tmp_path):
        callback, trainer = started(tmp_path, SlowTrainer(tmp_path), async_save=True, save_on_exception=True)
        trainer.epoch()
        trainer.batch()
        threading.Timer(0.1, trainer.may.set).start()
        callback.on_exception(trainer, None, RuntimeError())
        assert kept(callback) == ["epoch=0-step=2.ckpt", "epoch=1-step=3.ckpt"]

    def test_can_be_sent_to_another_process(self, tmp_path):
        callback, trainer = started(tmp_path, async_save=True)
        trainer.epoch()
        callback.on_train_end(trainer, None)
        callback.teardown(trainer, None, "fit")
        again = pickle.loads(pickle.dumps(callback))
        assert again.best_model_path == callback.best_model_path


@pytest.mark.parametrize("make", [lambda: ModelCheckpoint("a", monitor="m"), lambda: EarlyStopping("m")])
def test_a_copy_has_equal_attributes(make):
    callback = make()
    again = pickle.loads(pickle.dumps(callback))
    assert vars(again) == vars(callback)
    callback._once.info("a message")
    assert vars(again) != vars(callback)


class TestFailuresInTheBackground:
    def failed(self, tmp_path, **arguments):
        callback, trainer = started(tmp_path, monitor="m", async_save=True, save_last=True, **arguments)
        trainer.epoch(m=2)
        callback._transactions.writer.join()
        state, files = lightnings(callback), kept(callback)
        trainer.full = True
        trainer.epoch(m=1)
        callback._transactions.writer.join()
        return callback, trainer, state, files

    def test_ends_training_at_the_next_batch(self, tmp_path):
        callback, trainer, state, files = self.failed(tmp_path)
        with pytest.raises(CheckpointWriteError, match=r"epoch=1-step=4.ckpt' could not be written: disk full"):
            trainer.batch()
        assert lightnings(callback) == state
        assert kept(callback) == files == ["epoch=0-step=2.ckpt", "last.ckpt"]

    @pytest.mark.parametrize(
        "hook",
        [
            lambda callback, trainer: callback.on_validation_end(trainer, None),
            lambda callback, trainer: callback.on_train_epoch_end(trainer, None),
            lambda callback, trainer: callback.on_train_end(trainer, None),
        ],
    )
    def test_or_where_it_is_seen_next(self, tmp_path, hook):
        callback, trainer, state, files = self.failed(tmp_path)
        with pytest.raises(CheckpointWriteError, match="disk full"):
            hook(callback, trainer)
        assert lightnings(callback) == state
        assert kept(callback) == files

    def test_a_state_that_is_asked_for_meanwhile_knows_nothing_of_the_failed_save(self, tmp_path):
        callback, _, state, _ = self.failed(tmp_path)
        assert lightnings(callback) == state
        assert callback.state_dict()["lightlib"]["saved_at_batch"] == 2

    def test_warn(self, tmp_path):
        callback, trainer, state, _ = self.failed(tmp_path, save_errors="warn")
        with pytest.warns(
            UserWarning, match=r"a save failed; training continues with the earlier checkpoints.*disk full"
        ):
            trainer.batch()
        assert lightnings(callback) == state
        trainer.batch()
        trainer.full = False
        trainer.epoch(m=0)
        callback._transactions.writer.join()
        assert kept(callback) == ["epoch=2-step=8.ckpt", "last.ckpt"]

    def test_another_process_hears_of_it_at_the_next_save(self, tmp_path):
        callback, trainer, _, _ = self.failed(tmp_path, save_errors="warn")
        trainer.world_size = 2
        with pytest.warns(UserWarning, match="a save failed"):
            trainer.batch()
        assert callback.best_model_score == 1  # as on the other ranks
        trainer.full = False
        trainer.epoch(m=0)  # without a second warning
        callback._transactions.writer.join()
        assert kept(callback) == ["epoch=2-step=7.ckpt", "last.ckpt"]

    def test_of_another_process(self, tmp_path):
        callback, trainer = started(tmp_path, monitor="m", async_save=True)
        trainer.epoch(m=2)
        trainer.strategy.reduce_boolean_decision = lambda decision: False
        with pytest.raises(CheckpointWriteError, match="Another process could not write"):
            callback.on_train_end(trainer, None)

    def test_only_the_last_one_fails(self, tmp_path, monkeypatch):
        callback, trainer = started(tmp_path, monitor="m", async_save=True, save_last=True, save_errors="warn")
        trainer.epoch(m=2)
        callback._transactions.writer.join()

        def fail(*_):
            raise CheckpointWriteError("disk full")

        with monkeypatch.context() as patch:
            patch.setattr("lightlib.checkpoint.storage.filesystem.copy", fail)
            trainer.epoch(m=1)
            callback._transactions.writer.join()
        with pytest.warns(UserWarning, match="disk full"):
            trainer.batch()
        assert kept(callback) == ["epoch=0-step=2.ckpt", "epoch=1-step=4.ckpt", "last.ckpt"]
        assert callback.best_model_score == 1
        trainer.epoch(m=0)
        callback._transactions.writer.join()
        assert kept(callback) == ["epoch=2-step=7.ckpt", "last.ckpt"]

    def test_at_an_exception_it_is_said(self, tmp_path):
        callback, trainer, state, _ = self.failed(tmp_path)
        with pytest.warns(UserWarning, match="the last save failed; earlier checkpoints are complete.*disk full"):
            callback.on_exception(trainer, None, RuntimeError())
        assert lightnings(callback) == state

    def test_a_failing_removal_is_said(self, tmp_path):
        callback, trainer = started(tmp_path, async_save=True)
        trainer.epoch()
        callback._transactions.writer.join()
        os.remove(callback.best_model_path)
        trainer.epoch()
        callback._transactions.writer.join()
        with pytest.warns(UserWarning, match=r"could not be removed, training continues"):
            trainer.batch()


class TestWarn:
    def test_is_said_and_tried_again(self, tmp_path):
        callback, trainer = started(tmp_path, monitor="m", save_last=True, save_errors="warn")
        trainer.epoch(m=3)
        state, files = lightnings(callback), kept(callback)
        trainer.full = True
        for _ in range(2):
            with pytest.warns(UserWarning, match=r"a save failed; training continues(.|\n)*disk full") as said:
                trainer.epoch(m=1)
            assert len(said) == 1
        assert (lightnings(callback), kept(callback)) == (state, files)
        trainer.full = False
        trainer.epoch(m=2)
        assert kept(callback) == ["epoch=3-step=8.ckpt", "last.ckpt"]

    def test_what_is_no_failure_to_write_still_ends_training(self, tmp_path):
        callback, trainer = started(tmp_path, save_errors="warn")
        trainer.save_checkpoint = lambda *_: 1 / 0
        with pytest.raises(ZeroDivisionError):
            trainer.epoch()
        assert callback.best_model_path == ""
