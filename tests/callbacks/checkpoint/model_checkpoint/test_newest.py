"""ModelCheckpoint: the newest n files, and a first save at a later epoch or step."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest

from lightlib.callbacks import CheckpointGC, ModelCheckpoint
from lightlib.errors import ArgumentTypeError, CheckpointWriteError, MisconfigurationException
from lightlib.report import LightlibWarning
from tests.callbacks.fake_trainer import FakeTrainer
from tests.callbacks.killed import command


def started(folder, **arguments):
    callback = ModelCheckpoint(folder / "kept", **arguments)
    return callback, FakeTrainer(folder).start(callback)


def kept(callback):
    return sorted(name for name in os.listdir(callback.dirpath) if not name.startswith("."))


class TestNewest:
    def test_three_of_five(self, tmp_path):
        callback, trainer = started(tmp_path, keep_last=3, filename="{epoch}")
        seen = []
        for loss in (1, 5, 4, 3, 2):
            trainer.epoch(val_loss=loss)
            seen.append(kept(callback))
        assert seen[:3] == [[f"epoch={n}.ckpt" for n in range(count)] for count in (1, 2, 3)]
        assert seen[3] == ["epoch=1.ckpt", "epoch=2.ckpt", "epoch=3.ckpt"]
        assert seen[4] == ["epoch=2.ckpt", "epoch=3.ckpt", "epoch=4.ckpt"]
        assert os.path.basename(callback.best_model_path) == "epoch=4.ckpt"

    def test_with_the_best_by_a_second_callback_and_the_last(self, tmp_path):
        made = []

        def callbacks():
            made[:] = [
                ModelCheckpoint(tmp_path, "best-{epoch}", monitor="val_loss", save_top_k=1),
                ModelCheckpoint(tmp_path, "{epoch}", keep_last=2, save_last=True),
            ]
            return made

        command(tmp_path, callbacks, losses=(9.0, 9.0, 9.0, 7.0, 8.0, 9.0, 1.0, 8.0, 8.0, 8.0, 8.0, 8.0), max_epochs=4)
        assert kept(made[0]) == ["best-epoch=1.ckpt", "epoch=2.ckpt", "epoch=3.ckpt", "last.ckpt"]

    def test_one_name_for_all_is_one_file(self, tmp_path):
        callback, trainer = started(tmp_path, keep_last=2, filename="model", enable_version_counter=False)
        for _ in range(4):
            trainer.epoch(val_loss=1)
        assert kept(callback) == ["model.ckpt"]

    def test_a_failed_save_is_undone(self, tmp_path):
        callback, trainer = started(tmp_path, keep_last=2, filename="{epoch}")
        trainer.epoch(val_loss=1)
        trainer.epoch(val_loss=1)
        before = callback.state_dict()
        trainer.full = True
        with pytest.raises(CheckpointWriteError):
            trainer.epoch(val_loss=1)
        assert callback.state_dict()["lightlib"]["newest"] == before["lightlib"]["newest"]
        assert kept(callback) == ["epoch=0.ckpt", "epoch=1.ckpt"]
        trainer.full = False
        trainer.epoch(val_loss=1)
        assert kept(callback) == ["epoch=1.ckpt", "epoch=3.ckpt"]

    def test_continues_with_its_files(self, tmp_path):
        callback, trainer = started(tmp_path, keep_last=2, filename="{epoch}")
        for _ in range(3):
            trainer.epoch(val_loss=1)
        resumed, again = started(tmp_path, keep_last=2, filename="{epoch}")
        resumed.load_state_dict(callback.state_dict())
        again.progress = trainer.progress
        again.epoch(val_loss=1)
        assert kept(resumed) == ["epoch=2.ckpt", "epoch=3.ckpt"]

    def test_a_file_that_is_gone_is_not_counted(self, tmp_path):
        callback, trainer = started(tmp_path, keep_last=2, filename="{epoch}")
        for _ in range(3):
            trainer.epoch(val_loss=1)
        os.remove(tmp_path / "kept" / "epoch=1.ckpt")
        resumed, again = started(tmp_path, keep_last=2, filename="{epoch}")
        with pytest.warns(LightlibWarning, match="are gone"):
            resumed.load_state_dict(callback.state_dict())
        again.progress = trainer.progress
        again.epoch(val_loss=1)
        assert kept(resumed) == ["epoch=2.ckpt", "epoch=3.ckpt"]

    def test_a_run_that_kept_one_before(self, tmp_path):
        callback, trainer = started(tmp_path, filename="{epoch}")
        trainer.epoch(val_loss=1)
        resumed, again = started(tmp_path, keep_last=2, filename="{epoch}")
        resumed.load_state_dict(callback.state_dict())
        again.progress = trainer.progress
        for _ in range(2):
            again.epoch(val_loss=1)
        assert kept(resumed) == ["epoch=1.ckpt", "epoch=2.ckpt"]

    def test_a_forged_state_does_not_remove_files_elsewhere(self, tmp_path):
        precious = tmp_path / "precious.txt"
        precious.write_text("precious")
        callback, trainer = started(tmp_path, keep_last=1, filename="{epoch}")
        trainer.epoch(val_loss=1)
        state = callback.state_dict()
        state["lightlib"]["newest"] = [str(tmp_path / "kept" / ".." / "precious.txt")]
        resumed, again = started(tmp_path, keep_last=1, filename="{epoch}")
        with pytest.warns(LightlibWarning, match="left alone"):
            resumed.load_state_dict(state)
        again.progress = trainer.progress
        again.epoch(val_loss=1)
        again.epoch(val_loss=1)
        assert precious.read_text() == "precious"

    def test_a_collector_takes_them_out(self, tmp_path):
        made = []

        def callbacks():
            made[:] = [ModelCheckpoint(tmp_path, "{epoch}", keep_last=3), CheckpointGC(0, 1, 1, monitor="val_loss")]
            return made

        command(tmp_path, callbacks, losses=(9.0, 9.0, 9.0, 1.0), max_epochs=4)
        assert set(made[0]._files.newest) == {str(tmp_path / name) for name in kept(made[0])}


class TestFirst:
    def test_epochs_count_from_it(self, tmp_path):
        _, trainer = started(tmp_path, save_top_k=-1, save_begin=3, every_n_epochs=2, filename="{epoch}")
        for _ in range(8):
            trainer.epoch(val_loss=1)
        assert trainer.written == ["epoch=2.ckpt", "epoch=4.ckpt", "epoch=6.ckpt"]  # the third, fifth, seventh

    def test_steps_count_from_it(self, tmp_path):
        _, trainer = started(tmp_path, save_top_k=-1, save_begin=4, every_n_train_steps=3, filename="{step}")
        for _ in range(11):
            trainer.batch()
        assert trainer.written == ["step=4.ckpt", "step=7.ckpt", "step=10.ckpt"]

    def test_the_last_does_not_wait(self, tmp_path):
        callback, trainer = started(tmp_path, save_begin=3, save_last=True, filename="{epoch}")
        trainer.epoch(val_loss=1)
        assert kept(callback) == ["last.ckpt"]
        for _ in range(2):
            trainer.epoch(val_loss=1)
        assert kept(callback) == ["epoch=2.ckpt", "last.ckpt"]


@pytest.mark.parametrize(
    ("arguments", "kind", "what"),
    [
        ({"keep_last": 0}, MisconfigurationException, r"keep_last=0"),
        ({"keep_last": 2.0}, ArgumentTypeError, r"keep_last=2.0"),
        ({"keep_last": True}, ArgumentTypeError, r"keep_last=True"),
        ({"keep_last": 2, "monitor": "a"}, MisconfigurationException, r"(?s)keep_last=2, monitor='a'.*callbacks=\["),
        ({"keep_last": 2, "save_top_k": -1}, MisconfigurationException, r"keep_last=2, save_top_k=-1"),
        ({"save_begin": -1}, MisconfigurationException, r"save_begin=-1"),
        ({"save_begin": "3"}, ArgumentTypeError, r"save_begin='3'"),
        (
            {"save_begin": 3, "train_time_interval": timedelta(1)},
            MisconfigurationException,
            "save_begin with epochs or steps",
        ),
    ],
)  # fmt: skip
def test_refused(arguments, kind, what):
    with pytest.raises(kind, match=what):
        ModelCheckpoint(**arguments)
