"""Bad input: folders that cannot be written are found before training; a full disk loses nothing."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest
import torch

from lightlib.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from lightlib.checkpoint.storage import local
from lightlib.errors import ArgumentTypeError, CheckpointWriteError, MisconfigurationException
from lightlib.loggers import CSVLogger, TensorBoardLogger
from tests.runs.bad_input import Net, loader, refused, refuses_fit, trainer, with_methods
from tests.runs.plain import raising

WRONG = MisconfigurationException
A_FOLDER = "a folder that exists or can be made, and into which this user may write."
A_LOG_FOLDER = "a directory that exists or can be created, and to which this user may write."
ANOTHER_LOG_FOLDER = (
    "give the logger another save_dir (or the Trainer another default_root_dir), or change permissions."
)
ROOM = "a writable directory with enough room."
FREE_SOME = "free some space or choose another directory; earlier checkpoints are unchanged."


@pytest.fixture
def plain_file():
    """A regular file: below it nothing can be made, not even by root."""
    Path("file").write_text("mine")
    yield
    assert Path("file").read_text() == "mine"


def listing(folder="."):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*"))


@pytest.mark.usefixtures("plain_file")
class TestFolders:
    """Found before the first step, and nothing is left behind."""

    @pytest.mark.parametrize("folder", ["file", "file/x", "file/x/y", "/proc/x", "/proc"])
    @pytest.mark.parametrize("kind", [ModelCheckpoint, OnExceptionCheckpoint])
    def test_of_checkpoints(self, kind, folder):
        error = (
            WRONG,
            f"{kind.__name__} cannot write into {os.path.realpath(folder)!r}: [Errno ***.",
            A_FOLDER,
            f"{kind.__name__}(dirpath='another/folder'), or another default_root_dir of the Trainer.",
        )
        refuses_fit(Net(), error=error, callbacks=kind(folder), enable_checkpointing=True)
        assert listing() == ["file"]

    def test_of_everything(self):
        folder = os.path.join(os.path.realpath("file/runs"), "checkpoints")
        error = (WRONG, f"ModelCheckpoint cannot write into {folder!r}: [Errno 20] ***.", A_FOLDER, "***")
        refuses_fit(Net(), error=error, default_root_dir="file/runs", enable_checkpointing=True)

    @pytest.mark.parametrize("logger", [True, "csv", "tensorboard"])
    def test_of_the_default_logger(self, logger):
        error = (
            WRONG,
            "The log directory 'file/runs/lightning_logs' cannot be written: [Errno 20] Not a directory: 'file/runs'",
            A_LOG_FOLDER,
            ANOTHER_LOG_FOLDER,
        )
        refuses_fit(Net(), error=error, default_root_dir="file/runs", logger=logger)

    @pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
    @pytest.mark.parametrize("folder", ["file/x", "/proc/x"])
    def test_of_a_logger(self, kind, folder):
        error = (
            WRONG,
            f"The log directory '{folder}/***' cannot be written: [Errno ***",
            A_LOG_FOLDER,
            ANOTHER_LOG_FOLDER,
        )
        refuses_fit(Net(), error=error, logger=kind(folder))

    def test_a_folder_that_is_good_stays_as_it_was(self):
        fails = with_methods(on_fit_start=raising(RuntimeError("mine")))
        with pytest.raises(RuntimeError, match="mine"):
            trainer(enable_checkpointing=True, callbacks=ModelCheckpoint("new/folder")).fit(fails, loader())
        assert listing() == ["file"]


class TestSaving:
    """`trainer.save_checkpoint`."""

    @pytest.fixture
    def run(self):
        run = trainer()
        run.fit(Net(), loader())
        return run

    @pytest.mark.parametrize("path", [3, None, "", ["a"]])
    def test_a_path_that_is_none(self, run, path):
        with refused(
            ArgumentTypeError,
            f"trainer.save_checkpoint(filepath={path!r} ({type(path).__name__})).",
            "a path or a URL.",
            "trainer.save_checkpoint(filepath='model.ckpt')",
        ):
            run.save_checkpoint(path)
        assert listing() == []

    @pytest.mark.usefixtures("plain_file")
    @pytest.mark.parametrize("path", ["file/a.ckpt", "/proc/a.ckpt"])
    def test_a_folder_that_cannot_be_written(self, run, path):
        with refused(
            CheckpointWriteError,
            f"The checkpoint '{path}' could not be written: [Errno ***]***. *** MiB are free there.",
            ROOM,
            "choose another directory; earlier checkpoints are unchanged.",
        ):
            run.save_checkpoint(path)
        assert listing() == ["file"]

    def test_a_folder_of_this_name(self, run):
        os.mkdir("a.ckpt")
        with refused(
            CheckpointWriteError,
            "The checkpoint 'a.ckpt' could not be written: [Errno 21] Is a directory: ***",
            ROOM,
            "choose another directory; earlier checkpoints are unchanged.",
        ):
            run.save_checkpoint("a.ckpt")
        assert listing() == ["a.ckpt"]

    def test_storage_options(self, run):
        with refused(
            WRONG,
            "save_checkpoint got storage_options for the local path 'a.ckpt'.",
            "None: only a store that fsspec opens has options.",
            "leave it out.",
        ):
            run.save_checkpoint("a.ckpt", storage_options={})

    def test_something_that_cannot_be_pickled(self):
        def on_save_checkpoint(self, checkpoint):
            checkpoint["mine"] = [lambda: 1]

        run = trainer()
        run.fit(with_methods(Net, on_save_checkpoint), loader(), weights_only=False)
        Path("a.ckpt").write_text("the one before")
        with refused(
            CheckpointWriteError,
            "The checkpoint 'a.ckpt' could not be written: it has an object that cannot be pickled at ['mine'][0] "
            "(function): ***",
            "tensors, numbers, strings, lists and dicts of them.",
            "remove it from what on_save_checkpoint or state_dict returns; earlier checkpoints are unchanged.",
        ):
            run.save_checkpoint("a.ckpt")
        assert listing() == ["a.ckpt"]
        assert Path("a.ckpt").read_text() == "the one before"


class Full:
    """A file on a disk that is full after `room` bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()


@pytest.fixture
def disk(monkeypatch):
    """A function that makes the disk full after so many bytes, or with None empty again."""
    real = os.fdopen

    def room(size):
        monkeypatch.setattr(local.os, "fdopen", real if size is None else lambda *args: Full(real(*args), size))

    return room


def weights_after(epochs):
    torch.manual_seed(1)
    module = Net()
    data = loader()
    trainer(max_epochs=epochs).fit(module, data)
    return module.state_dict()


class TestFullDisk:
    """Every earlier checkpoint stays, and so does the state of the training."""

    @pytest.mark.parametrize("room", [0, 1, 100, 4000])
    def test_while_training(self, disk, tmp_path, room):
        torch.manual_seed(1)
        module, data = Net(), loader()
        callback = ModelCheckpoint(tmp_path / "kept", save_top_k=-1, save_last=True)
        run = trainer(enable_checkpointing=True, callbacks=callback, max_epochs=1)
        run.fit(module, data)
        before = {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()}
        best, last = callback.best_model_path, callback.last_model_path
        assert sorted(before) == ["epoch=0-step=4.ckpt", "last.ckpt"]

        disk(room)
        run.max_epochs = 2
        with refused(
            CheckpointWriteError,
            f"The checkpoint '{tmp_path}/kept/epoch=1-step=8.ckpt' could not be written: ***. *** MiB are free there.",
            ROOM,
            FREE_SOME,
        ):
            run.fit(module, data)
        assert {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()} == before
        assert (callback.best_model_path, callback.last_model_path) == (best, last)
        assert (run.current_epoch, run.global_step, module.steps) == (2, 8, 8)

        disk(None)
        run.max_epochs = 3
        run.fit(module, data)
        assert (run.current_epoch, run.global_step, module.steps) == (3, 12, 12)
        assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
            "epoch=0-step=4.ckpt",
            "epoch=2-step=12.ckpt",
            "last.ckpt",
        ]
        torch.manual_seed(1)
        expected = weights_after(3)
        assert all(module.state_dict()[name].equal(value) for name, value in expected.items())

    def test_an_existing_file_of_this_name(self, disk):
        run = trainer()
        run.fit(Net(), loader())
        run.save_checkpoint("a.ckpt")
        before = Path("a.ckpt").read_bytes()
        disk(500)
        with pytest.raises(CheckpointWriteError, match=r"'a\.ckpt' could not be written"):
            run.save_checkpoint("a.ckpt")
        assert listing() == ["a.ckpt"]
        assert Path("a.ckpt").read_bytes() == before
        disk(None)
        run.save_checkpoint("a.ckpt")
        assert torch.load("a.ckpt")["global_step"] == 4

    def test_a_flush_that_fails(self, monkeypatch):
        def fails(handle):
            raise OSError(errno.EIO, "Input/output error")

        run = trainer()
        run.fit(Net(), loader())
        monkeypatch.setattr(local.os, "fsync", fails)
        with refused(
            CheckpointWriteError,
            "The checkpoint 'a.ckpt' could not be written: [Errno 5] Input/output error. *** MiB are free there.",
            ROOM,
            "choose another directory; earlier checkpoints are unchanged.",
        ):
            run.save_checkpoint("a.ckpt")
        assert listing() == []

    def test_a_limit_of_the_system(self):
        run = trainer()
        run.fit(Net(), loader())
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        try:
            with pytest.raises(CheckpointWriteError) as caught:
                run.save_checkpoint("a.ckpt")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "free some space or choose another directory" in str(caught.value)
        assert listing() == []

    def test_an_interrupt_while_writing(self, monkeypatch):
        def stops(content, file, **options):
            file.write(b"half")
            raise KeyboardInterrupt

        run = trainer()
        run.fit(Net(), loader())
        monkeypatch.setattr(torch, "save", stops)
        with pytest.raises(KeyboardInterrupt):
            run.save_checkpoint("a.ckpt")
        assert listing() == []
