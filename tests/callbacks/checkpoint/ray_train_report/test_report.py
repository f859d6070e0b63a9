"""Ray Train, by a stand-in, gets each complete checkpoint once, and runs resume from it."""

from __future__ import annotations

import shutil
import sys
import tempfile
import types
from contextlib import contextmanager, nullcontext
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch

import lightlib as L
from lightlib.callbacks import ModelCheckpoint, RayTrainReport
from lightlib.checkpoint import formats
from lightlib.errors import MisconfigurationException
from lightlib.testing import BoringModule
from tests.processes.ranks import ranks

QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class FakeCheckpoint:
    """A folder; one in a store is downloaded while it is used."""

    downloads = ()

    def __init__(self, path, remote=False):
        self.path, self.remote = path, remote

    @classmethod
    def from_directory(cls, path):
        return cls(path)

    @contextmanager
    def as_directory(self):
        if not self.remote:
            yield self.path
            return
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(self.path, folder, dirs_exist_ok=True)
            yield folder


class FakeTrain(types.ModuleType):
    """Stores a copy of each reported checkpoint at the time of the call."""

    Checkpoint = FakeCheckpoint

    def __init__(self, folder, remote=False):
        super().__init__("ray.train")
        self.folder, self.remote = Path(folder), remote
        self.reports = []

    def get_checkpoint(self):
        stored = sorted(self.folder.iterdir())
        return FakeCheckpoint(str(stored[-1]), self.remote) if stored else None

    def report(self, metrics, checkpoint=None):
        target = None
        if checkpoint is not None:
            target = self.folder / f"{len(self.reports):03}"
            shutil.copytree(checkpoint.path, target)  # follows links
            formats.verify(str(target / "checkpoint.ckpt"))
        self.reports.append((metrics, target))


def stand_in(folder, remote=False):
    """Put a stand-in for Ray Train into `sys.modules`."""
    train, ray = FakeTrain(folder, remote), types.ModuleType("ray")
    ray.__spec__ = ModuleSpec("ray", None)
    ray.train = train
    sys.modules.update({"ray": ray, "ray.train": train})
    return train


@pytest.fixture
def train(tmp_path, monkeypatch):
    for name in ("ray", "ray.train"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "store").mkdir()
    return stand_in(tmp_path / "store")


class Logs(BoringModule):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        loss = loss["loss"] if isinstance(loss, dict) else loss
        self.log("loss", loss)
        self.losses = [*getattr(self, "losses", []), loss.item()]
        return loss


def fit(saver, *more, epochs=2, ckpt_path=None, report=None):
    torch.manual_seed(0)
    module = Logs()
    trainer = L.Trainer(**QUIET, max_epochs=epochs, callbacks=[saver, report or RayTrainReport(), *more])
    trainer.fit(module, ckpt_path=ckpt_path)
    return module


def labels(train):
    return [formats.label_of(str(target / "checkpoint.ckpt")).step for _, target in train.reports]


@pytest.mark.parametrize("in_background", [False, True])
def test_each_checkpoint_is_reported_once_when_it_is_complete(train, in_background):
    saver = ModelCheckpoint("a", every_n_train_steps=3, save_last=True, async_save=in_background)
    module = fit(saver)
    steps = [3, 4, 6, 8]  # `last` is saved at the end of each epoch of four steps as well
    assert [metrics["step"] for metrics, _ in train.reports] == labels(train) == steps
    assert [metrics["epoch"] for metrics, _ in train.reports] == [0, 0, 1, 1]
    assert [metrics["loss"] for metrics, _ in train.reports] == [module.losses[step - 1] for step in steps]


def test_a_file_of_weights_alone_is_not_reported(train):
    weights = ModelCheckpoint("weights", every_n_train_steps=2, save_weights_only=True)
    fit(weights, ModelCheckpoint("full", every_n_train_steps=4))
    assert labels(train) == [4, 8]
    assert all(formats.label_of(str(target / "checkpoint.ckpt")).weights_only is False for _, target in train.reports)


class Fail(L.Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 7:
            raise RuntimeError("a worker is lost")


@pytest.mark.parametrize("remote", [False, True])
def test_a_new_worker_ends_with_the_weights_of_an_uninterrupted_run(train, tmp_path, remote):
    expected = fit(ModelCheckpoint("a", every_n_train_steps=3))
    shutil.rmtree(train.folder)
    train.folder.mkdir()
    train.reports.clear()
    assert RayTrainReport().latest() is None
    with pytest.raises(RuntimeError, match="a worker is lost"):
        fit(ModelCheckpoint("b", every_n_train_steps=3), Fail())
    train.remote = remote
    report = RayTrainReport()
    path = report.latest()
    assert path.startswith(str(train.folder)) != remote
    module = fit(ModelCheckpoint("c", every_n_train_steps=3), ckpt_path=path, report=report)
    assert module.losses == expected.losses
    for name, value in expected.state_dict().items():
        assert torch.equal(module.state_dict()[name], value)
    assert Path(path).exists() != remote  # a download is removed


def test_a_directory_and_a_disk_without_links(train, monkeypatch):
    def refuse(*_):
        raise PermissionError("no links")

    fit(ModelCheckpoint("a", every_n_train_steps=8, format="directory"))
    monkeypatch.setattr("os.symlink", refuse)
    fit(ModelCheckpoint("b", every_n_train_steps=8))
    assert labels(train) == [8, 8]
    assert [(target / "checkpoint.ckpt").is_dir() for _, target in train.reports] == [True, False]


def test_a_checkpoint_in_a_store(train):
    pytest.importorskip("fsspec")
    fit(ModelCheckpoint("memory://a", every_n_train_steps=8))
    assert labels(train) == [8]


def test_an_error_of_ray_ends_the_run(train, monkeypatch):
    def report(metrics, checkpoint=None):
        raise OSError("the store of Ray is full")

    monkeypatch.setattr(train, "report", report)
    with pytest.raises(OSError, match="the store of Ray is full"):
        fit(ModelCheckpoint("a", every_n_train_steps=3))


def test_outside_of_a_worker(train, monkeypatch):
    def get_checkpoint():
        raise RuntimeError("`get_checkpoint` cannot be used outside of a Ray Train training function.")

    monkeypatch.setattr(train, "get_checkpoint", get_checkpoint)
    expected = r"not started: `get_checkpoint` cannot (.|\n)*Expected: a worker of(.|\n)*Fix: TorchTrainer\("
    with pytest.raises(MisconfigurationException, match=expected):
        fit(ModelCheckpoint("a"))
    with pytest.raises(MisconfigurationException, match=expected):
        RayTrainReport().latest()


def test_without_ray(monkeypatch):
    for name in ("ray", "ray.train"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MisconfigurationException, match=r"RayTrainReport needs the package ray(.|\n)*pip install 'ray"):
        fit(ModelCheckpoint("a"))


# several workers
def reports_of(rank, in_background):
    train = stand_in(tempfile.mkdtemp())
    fit(ModelCheckpoint("a", every_n_train_steps=1, async_save=in_background))
    return [(metrics["step"], target is not None) for metrics, target in train.reports]


@pytest.mark.processes
@pytest.mark.parametrize("in_background", [False, True])
def test_all_workers_report_and_the_first_has_the_checkpoint(in_background):
    steps = [1, 2, 3, 4]
    first, second = ranks(2, reports_of, in_background)
    assert first == [(step, True) for step in steps]
    assert second == [(step, False) for step in steps]


def reports_of_failed_saves(rank):
    train = stand_in(tempfile.mkdtemp())
    save, calls = formats.save, []

    def fails_once(*args, **options):
        calls.append(args)
        if len(calls) == 2:
            raise OSError("no space left")
        save(*args, **options)

    formats.save = fails_once
    with pytest.warns(match="no space left") if rank == 0 else nullcontext():
        fit(ModelCheckpoint("a", every_n_train_steps=1, async_save=True, save_errors="warn"))
    return len(train.reports), sum(target is not None for _, target in train.reports)


@pytest.mark.processes
def test_workers_report_the_same_number_of_times_after_a_failed_save():
    assert ranks(2, reports_of_failed_saves) == [(3, 3), (3, 0)]
