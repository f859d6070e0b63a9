"""ckpt_path="epoch:20" and "step:500": the checkpoint of an epoch or a step in the folders of a run."""

from __future__ import annotations

import shutil

import pytest
import torch

import lightlib as L
from lightlib.callbacks import ModelCheckpoint
from lightlib.checkpoint import formats
from lightlib.errors import CheckpointError, MisconfigurationException
from tests.runs.plain import QUIET, Net, loader, momentum

RUN = {name: value for name, value in QUIET.items() if name != "enable_checkpointing"}


class Starts(Net):
    """Notes where it starts; dropout and momentum show an inexact resume in the weights."""

    def __init__(self):
        super().__init__(momentum, dropout=0.5)
        self.first = None

    def on_train_start(self):
        self.first = (self.trainer.current_epoch, self.trainer.global_step)


def fit(folder, ckpt_path=None, epochs=4, name="{epoch}-{step}", **options):
    L.seed_everything(3)
    module, saver = Starts(), ModelCheckpoint(folder, name, **{"save_top_k": -1, **options})
    trainer = L.Trainer(**RUN, max_epochs=epochs, callbacks=saver, default_root_dir=folder)
    trainer.fit(module, loader(12, shuffle=True), ckpt_path=ckpt_path)
    return module, trainer


def test_an_epoch_is_resumed_with_the_same_bits(tmp_path):
    whole, _ = fit(tmp_path)
    module, trainer = fit(tmp_path, "epoch:1")
    assert module.first == (2, 6)
    assert trainer.ckpt_path == str(tmp_path / "epoch=1-step=6.ckpt")
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in module.state_dict().items())


def test_the_newest_of_an_epoch_and_a_step(tmp_path):
    fit(tmp_path, every_n_train_steps=1)
    found, _ = fit(tmp_path, "epoch:1", every_n_train_steps=1)
    assert found.first == (1, 6)  # before the epoch was counted
    (tmp_path / "epoch=1-step=6.ckpt").unlink()
    found, _ = fit(tmp_path, "epoch:1", every_n_train_steps=1)
    assert found.first == (1, 5)
    found, _ = fit(tmp_path, "step:4", every_n_train_steps=1)
    assert found.first == (1, 4)


def test_directories_and_names_of_ones_own(tmp_path):
    fit(tmp_path, format="directory", name="mine-{step}")
    found, _ = fit(tmp_path, "epoch:2", format="directory", name="mine-{step}")
    assert found.first == (3, 9)


def test_those_of_lightning_have_no_label(tmp_path):
    fit(tmp_path, epochs=2)
    for path in tmp_path.glob("*.ckpt"):
        content = formats.load(str(path))
        del content["lightlib"]
        torch.save(content, path)
    found, _ = fit(tmp_path, "epoch:0")
    assert found.first[1] == 3
    found, _ = fit(tmp_path, "step:6", epochs=3)
    assert found.first[1] == 6


def test_of_two_runs_the_newer_counts(tmp_path):
    fit(tmp_path, epochs=2, name="old-{epoch}")
    newer, _ = fit(tmp_path, epochs=2, name="new-{epoch}")
    _, trainer = fit(tmp_path, "epoch:0", epochs=2)
    assert trainer.ckpt_path == str(tmp_path / "new-epoch=0.ckpt")
    assert newer is not None


def test_an_evaluation_takes_it_as_well(tmp_path):
    _, trainer = fit(tmp_path, epochs=2)
    module = Starts()
    module.test_step = lambda batch, batch_idx: None
    trainer.test(module, loader(4), ckpt_path="epoch:0", verbose=False)
    saved = formats.load(str(tmp_path / "epoch=0-step=3.ckpt"))["state_dict"]
    assert all(torch.equal(value, saved[name]) for name, value in module.state_dict().items())


def test_weights_are_the_last_choice(tmp_path):
    _, trainer = fit(tmp_path, epochs=2)
    shutil.copy(tmp_path / "epoch=1-step=6.ckpt", tmp_path / "kept.ckpt")
    trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    _, trainer = fit(tmp_path, "epoch:1", epochs=3)
    assert trainer.ckpt_path in {str(tmp_path / "epoch=1-step=6.ckpt"), str(tmp_path / "kept.ckpt")}


@pytest.mark.parametrize(
    ("given", "what", "fix"),
    [
        ("epoch:20", r"epoch 20 in .*\n.*one of the epochs 0 \('epoch=0-step=3.ckpt'\), 1 \(", "epoch:1"),
        ("step:4", r"no checkpoint of step 4 in .*\n.*one of the steps 3 \(.*, 6 \('epoch=1-step=6.ckpt'\)", "step:3"),
    ],
)  # fmt: skip
def test_an_absent_one_lists_those_that_there_are(tmp_path, given, what, fix):
    fit(tmp_path, epochs=2)
    with pytest.raises(CheckpointError, match=what) as error:
        fit(tmp_path, given)
    assert f"Fix: ckpt_path='{fix}'" in str(error.value)


def test_no_checkpoint_at_all(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint of epoch 2 in") as error:
        fit(tmp_path, "epoch:2")
    assert "a checkpoint in a folder of this run" in str(error.value)


@pytest.mark.parametrize("given", ["epoch:", "epoch:last", "step:-1", "epoch:1.5", "step:٣"])
def test_no_number(tmp_path, given):
    with pytest.raises(MisconfigurationException, match="is no number"):
        fit(tmp_path, given)


def test_a_file_of_such_a_name_is_a_path(tmp_path, monkeypatch):
    fit(tmp_path, epochs=1)
    shutil.copy(tmp_path / "epoch=0-step=3.ckpt", tmp_path / "epoch:7")
    monkeypatch.chdir(tmp_path)
    found, _ = fit(tmp_path / "other", "epoch:7", epochs=2)
    assert found.first == (1, 3)
