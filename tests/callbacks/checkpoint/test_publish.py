"""PublishCheckpoint: the file after a fit, and the command."""

from __future__ import annotations

import hashlib
import os
import re
import stat

import pytest
import torch
from torch import nn

import lightlib as L
from lightlib.callbacks import PublishAdapter, PublishCheckpoint
from lightlib.checkpoint import formats, inspect
from lightlib.checkpoint.tools.command import main
from lightlib.errors import ArgumentTypeError, CheckpointError, CheckpointWriteError, MisconfigurationException
from lightlib.report import LightlibWarning
from tests.callbacks.checkpoint.best import Net, by_hand, fit, saver


class TestPublish:
    def test_the_file(self, tmp_path):
        publishes = PublishCheckpoint("net", dirpath=tmp_path / "released")
        fit(tmp_path, saver(tmp_path), publishes)
        path = publishes.published_path
        (name,) = os.listdir(tmp_path / "released")
        digest = hashlib.sha256((tmp_path / "released" / name).read_bytes()).hexdigest()
        assert path == str(tmp_path / "released" / name)
        assert name == f"net-{digest[:8]}.ckpt"
        content = torch.load(path)  # plain torch, weights only
        assert list(content) == ["state_dict"]
        module = Net()
        module.load_state_dict(content["state_dict"], strict=True)
        assert all(torch.equal(value, by_hand(2)[name]) for name, value in module.net.state_dict().items())
        assert os.path.getsize(path) < os.path.getsize(tmp_path / "epoch=1.ckpt")
        assert not inspect(path).resumable

    def test_next_to_the_newest_checkpoint_by_default(self, tmp_path):
        publishes = PublishCheckpoint(keys=["state_dict", "hyper_parameters"])
        fit(tmp_path, saver(tmp_path, monitor=None), publishes, module=Net(width=3))
        assert re.fullmatch(r"epoch=3-[0-9a-f]{8}\.ckpt", os.path.basename(publishes.published_path))
        module = Net.load_from_checkpoint(publishes.published_path)
        assert module.hparams.width == 3
        assert torch.equal(module.net[0].weight, by_hand(4)["0.weight"])

    def test_the_same_weights_have_the_same_name_and_no_run_resumes_from_it(self, tmp_path):
        first, second = PublishCheckpoint("net"), PublishCheckpoint("net")
        fit(tmp_path, saver(tmp_path, save_last=True), first)
        _, trainer = fit(tmp_path, saver(tmp_path, save_last=True), second, ckpt_path="auto")
        assert trainer.global_step == 24
        assert first.published_path == second.published_path
        assert len(list(tmp_path.glob("net-*"))) == 1

    def test_to_a_store(self, tmp_path):
        pytest.importorskip("fsspec")
        publishes = PublishCheckpoint("net", dirpath="memory://published/nets")
        fit(tmp_path, saver(tmp_path), publishes)
        assert publishes.published_path.startswith("memory://published/nets/net-")
        assert list(formats.load(publishes.published_path)) == ["state_dict"]

    def test_a_folder_that_cannot_be_written(self, tmp_path):
        locked = tmp_path / "file"
        locked.write_text("no folder")
        with pytest.raises(CheckpointWriteError):
            fit(tmp_path, saver(tmp_path / "runs"), PublishCheckpoint(dirpath=locked))
        assert locked.read_text() == "no folder"
        assert stat.S_ISREG(locked.stat().st_mode)

    def test_nothing_was_saved(self, tmp_path):
        publishes = PublishCheckpoint()
        with pytest.warns(LightlibWarning, match="nothing is published"):
            fit(tmp_path, saver(tmp_path, save_top_k=0), publishes)
        assert publishes.published_path == ""

    def test_without_a_saver(self, tmp_path):
        with pytest.raises(MisconfigurationException, match="PublishCheckpoint finds no ModelCheckpoint"):
            fit(tmp_path, PublishCheckpoint(), enable_checkpointing=False)

    @pytest.mark.parametrize(
        ("arguments", "kind", "what"),
        [
            ({"filename": ""}, ArgumentTypeError, "filename=''"),
            ({"filename": 3}, ArgumentTypeError, "filename=3"),
            ({"filename": "a/b"}, MisconfigurationException, r"(?s)'a/b'\) has a folder.*'b', dirpath='a'"),
            ({"keys": "state_dict"}, ArgumentTypeError, "keys='state_dict'"),
            ({"keys": ["hyper_parameters"]}, MisconfigurationException, "has no weights"),
            ({"monitor": ["a"]}, ArgumentTypeError, r"PublishCheckpoint\(monitor=\['a'\] \(list\)\)"),
        ],
    )
    def test_wrong_arguments(self, arguments, kind, what):
        with pytest.raises(kind, match=what):
            PublishCheckpoint(**arguments)

    def test_the_command(self, tmp_path, capsys):
        fit(tmp_path, saver(tmp_path))
        source = str(tmp_path / "epoch=1.ckpt")
        assert main(["publish", source]) == 0
        (path,) = tmp_path.glob("epoch=1-*.ckpt")
        assert str(path) in capsys.readouterr().out
        assert main(["publish", source, str(tmp_path / "x"), "--keys", "state_dict", "nothing"]) == 1
        assert "has no entry 'nothing'" in capsys.readouterr().err
        with pytest.raises(CheckpointError, match="There is no checkpoint"):
            L.checkpoint.publish(tmp_path / "missing.ckpt")


class Adapted(nn.Sequential):
    """Stands for a model of peft; docs/how-to/peft.md runs with the package."""

    __module__ = "peft.peft_model"

    def save_pretrained(self, folder, state_dict):
        os.makedirs(folder)
        torch.save(state_dict, os.path.join(folder, "adapter.pt"))


class TestAdapter:
    @pytest.mark.parametrize("options", [{}, {"dirpath": "adapter"}, {"format": "directory"}], ids=str)
    def test_the_weights_are_the_best(self, tmp_path, monkeypatch, options):
        monkeypatch.chdir(tmp_path)
        where = [options.pop("dirpath")] if "dirpath" in options else []
        module = Net()
        module.net = Adapted(*module.net)
        fit(tmp_path, saver(tmp_path, **options), PublishAdapter(*where), module=module)
        found = torch.load(tmp_path / "adapter/adapter.pt")
        assert all(torch.equal(value, found[name]) for name, value in by_hand(2).items())

    @pytest.mark.parametrize(
        ("arguments", "layers", "text"),
        [([], nn.Sequential, "finds 0 models of peft"), (["memory://adapter"], Adapted, "a local folder")],
    )
    def test_refused(self, tmp_path, arguments, layers, text):
        module = Net()
        module.net = layers(*module.net)
        with pytest.raises(MisconfigurationException, match=text):
            fit(tmp_path, saver(tmp_path), PublishAdapter(*arguments), module=module)

    def test_wrong_arguments(self, tmp_path):
        with pytest.raises(ArgumentTypeError, match="dirpath=3"):
            PublishAdapter(3)
        with pytest.raises(MisconfigurationException, match="finds no ModelCheckpoint"):
            fit(tmp_path, PublishAdapter(), enable_checkpointing=False)
