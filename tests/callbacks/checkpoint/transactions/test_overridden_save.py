"""A Trainer that overrides `save_checkpoint`: every checkpoint of a run is saved through it."""

from __future__ import annotations

import hashlib
import signal
from pathlib import Path

import pytest

from lightlib.callbacks import Callback, ModelCheckpoint, OnExceptionCheckpoint
from lightlib.core.trainer import Trainer
from lightlib.errors import MisconfigurationException
from tests.runs.plain import QUIET, Net, loader, with_methods


class Signs(Trainer):
    """Writes the digest of each file next to it, with the arguments of Lightning's method."""

    def save_checkpoint(self, filepath, weights_only=None, storage_options=None):
        super().save_checkpoint(filepath, weights_only, storage_options)
        Path(f"{filepath}.digest").write_text(digest(filepath))


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def unsigned(folder):
    """Return the checkpoints below `folder` that have another digest, or none."""
    files = sorted(folder.rglob("*.ckpt"))
    assert files
    return [path.name for path in files if not Path(f"{path}.digest").exists()] + [
        path.name for path in files if Path(f"{path}.digest").read_text() != digest(path)
    ]


def trainer(*callbacks, kind=Signs, **arguments):
    return kind(**{**QUIET, "enable_checkpointing": True, "max_epochs": 3, **arguments}, callbacks=list(callbacks))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"monitor": "v", "save_top_k": 2, "save_last": True},
        {"every_n_train_steps": 2, "save_top_k": -1, "save_last": True},
        {"save_top_k": 0, "save_last": True, "save_on_train_epoch_end": False},
        {"monitor": "v", "save_weights_only": True},
    ],
)
def test_every_file_is_saved_through_it(tmp_path, arguments):
    module = with_methods(validation_step=lambda self, *_: self.log("v", float(self.trainer.current_epoch)))
    trainer(ModelCheckpoint(tmp_path / "some", **arguments)).fit(module, loader(8), loader(4))
    assert unsigned(tmp_path) == []


class Raises(Callback):
    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == 3:
            raise ZeroDivisionError


class Interrupts(Callback):
    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == 3:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("ends", "names"), [(Raises, ["on.ckpt", "some.ckpt"]), (Interrupts, ["interrupted.ckpt"])])
def test_the_files_of_a_run_that_ends_early(tmp_path, ends, names):
    callbacks = [
        ModelCheckpoint(tmp_path / "some", "some", save_on_exception=True, every_n_epochs=9),
        OnExceptionCheckpoint(tmp_path / "on", "on"),
    ]
    with pytest.raises((ZeroDivisionError, SystemExit)):
        trainer(*callbacks, ends()).fit(Net(), loader(8))
    assert {path.name for path in tmp_path.rglob("*.ckpt")} >= set(names)
    assert unsigned(tmp_path) == []


def test_a_method_of_the_object(tmp_path):
    one, paths = trainer(ModelCheckpoint(tmp_path, "{epoch}"), kind=Trainer), []
    save = one.save_checkpoint
    one.save_checkpoint = lambda path, *args, **options: (paths.append(Path(path).name), save(path, *args, **options))
    one.fit(Net(), loader(8))
    assert paths == ["epoch=0.ckpt", "epoch=1.ckpt", "epoch=2.ckpt"]


def test_training_waits_for_it(tmp_path):
    callback = ModelCheckpoint(tmp_path, async_save=True, save_last=True)
    with pytest.warns(UserWarning, match=r"Signs overrides save_checkpoint.*so training waits"):
        trainer(callback).fit(Net(), loader(8))
    assert unsigned(tmp_path) == []


def test_a_format_that_it_does_not_accept(tmp_path):
    with pytest.raises(MisconfigurationException, match=r"Signs.save_checkpoint.*has no argument 'format'"):
        trainer(ModelCheckpoint(tmp_path, format="directory")).fit(Net(), loader(8))
