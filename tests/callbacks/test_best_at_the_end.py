"""RestoreBest and PublishCheckpoint: the files and weights after a fit."""

from __future__ import annotations

import hashlib
import os
import re
import stat

import pytest
import torch
from torch.nn.functional import cross_entropy

import lightlib as L
from lightlib.callbacks import ModelCheckpoint, PublishCheckpoint, RestoreBest
from lightlib.callbacks.callback import Callback
from lightlib.checkpoint import formats, inspect
from lightlib.checkpoint.tools.command import main
from lightlib.errors import ArgumentTypeError, CheckpointError, CheckpointWriteError, MisconfigurationException
from lightlib.report import LightlibWarning
from tests.runs import plain
from tests.runs.plain import QUIET, batches, loader, momentum, network

LOSSES = (5.0, 1.0, 3.0, 2.0)  # the second epoch is the best
RUN = {name: value for name, value in QUIET.items() if name != "enable_checkpointing"} | {"max_epochs": 4}


class Net(plain.Net):
    """Validates with the losses of a list."""

    def __init__(self, width=0):
        super().__init__(momentum)
        self.save_hyperparameters()
        self.register_buffer("seen", torch.zeros(()))
        self.loaded = 0

    def training_step(self, batch, batch_idx):
        self.seen += 1
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", LOSSES[self.current_epoch])

    def on_load_checkpoint(self, checkpoint):
        self.loaded += 1


def by_hand(epochs):
    """Return the weights of a plain loop."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        for x, y in batches(6):
            optimizer.zero_grad()
            cross_entropy(net(x), y).backward()
            optimizer.step()
    return net.state_dict()


def fit(folder, *callbacks, module=None, **options):
    module = module or Net()
    ckpt = options.pop("ckpt_path", None)
    trainer = L.Trainer(**RUN | options, default_root_dir=folder, callbacks=[*callbacks])
    trainer.fit(module, loader(24), loader(1), ckpt_path=ckpt)
    return module, trainer


def saver(folder, **options):
    return ModelCheckpoint(folder, "{epoch}", **{"monitor": "val_loss", **options})


class Stop(Callback):
    """Ends the process in an epoch, as a signal does."""

    not_in_checkpoint = ("epoch",)

    def __init__(self, epoch):
        self.epoch = epoch

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == self.epoch:
            raise KeyboardInterrupt


class TestRestoreBest:
    def test_the_weights_are_those_of_the_plain_loop_and_of_the_file(self, tmp_path):
        best, restores = saver(tmp_path, save_last=True), RestoreBest()
        module, _ = fit(tmp_path, restores, best)
        assert best.best_model_path == restores.restored_path == str(tmp_path / "epoch=1.ckpt")
        expected = by_hand(2)
        assert all(torch.equal(value, expected[name]) for name, value in module.net.state_dict().items())
        saved = torch.load(best.best_model_path, weights_only=True)["state_dict"]
        assert all(torch.equal(value, saved[name]) for name, value in module.state_dict().items())
        assert module.seen == 12
        assert module.loaded == 1
        last = torch.load(best.last_model_path, weights_only=True)["state_dict"]
        assert torch.equal(last["net.0.weight"], by_hand(4)["0.weight"])  # checkpoints are not changed

    def test_in_the_background_too(self, tmp_path):
        module, _ = fit(tmp_path, saver(tmp_path, async_save=True), RestoreBest())
        assert torch.equal(module.net[0].weight, by_hand(2)["0.weight"])

    def test_a_directory(self, tmp_path):
        module, _ = fit(tmp_path, saver(tmp_path, format="directory"), RestoreBest())
        assert torch.equal(module.net[0].weight, by_hand(2)["0.weight"])

    def test_of_two_the_named_one(self, tmp_path):
        callbacks = [saver(tmp_path), ModelCheckpoint(tmp_path, "max-{epoch}", monitor="val_loss", mode="max")]
        extra = ModelCheckpoint(tmp_path, "other-{epoch}", monitor="epoch_number", mode="max")

        class Numbered(Net):
            def validation_step(self, batch, batch_idx):
                super().validation_step(batch, batch_idx)
                self.log("epoch_number", float(self.current_epoch))

        module, _ = fit(tmp_path, *callbacks, extra, RestoreBest("epoch_number"), module=Numbered())
        assert torch.equal(module.net[0].weight, by_hand(4)["0.weight"])

    def test_a_resumed_run_ends_with_the_same_bits(self, tmp_path):
        whole, _ = fit(tmp_path / "whole", saver(tmp_path / "whole", save_last=True), RestoreBest())
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            fit(tmp_path / "cut", saver(tmp_path / "cut", save_last=True), RestoreBest(), Stop(3))
        module, _ = fit(
            tmp_path / "cut", saver(tmp_path / "cut", save_last=True), RestoreBest(), Stop(None), ckpt_path="auto"
        )
        assert all(torch.equal(value, whole.state_dict()[name]) for name, value in module.state_dict().items())

    def test_a_run_that_was_complete_ends_with_the_best_again(self, tmp_path):
        fit(tmp_path, saver(tmp_path, save_last=True), RestoreBest())
        module, _ = fit(tmp_path, saver(tmp_path, save_last=True), RestoreBest(), ckpt_path="last")
        assert torch.equal(module.net[0].weight, by_hand(2)["0.weight"])

    def test_an_exception_leaves_the_weights(self, tmp_path):
        module = Net()
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            fit(tmp_path, saver(tmp_path), RestoreBest(), Stop(3), module=module)
        assert torch.equal(module.net[0].weight, by_hand(3)["0.weight"])

    def test_without_a_save_the_last_ones_stay(self, tmp_path):
        with pytest.warns(LightlibWarning, match="RestoreBest: no checkpoint was saved by 'val_loss'"):
            module, _ = fit(tmp_path, saver(tmp_path, save_top_k=0), RestoreBest())
        assert torch.equal(module.net[0].weight, by_hand(4)["0.weight"])

    @pytest.mark.parametrize(
        ("callbacks", "what"),
        [
            ([], r"finds no ModelCheckpoint .*only ModelCheckpoint\(monitor=None\)"),
            ([ModelCheckpoint(monitor="val_loss"), "accuracy"], "with monitor='accuracy' among"),
        ],
    )
    def test_refused_before_training(self, tmp_path, callbacks, what):
        monitor = callbacks.pop() if callbacks and isinstance(callbacks[-1], str) else None
        module = Net()
        with pytest.raises(MisconfigurationException, match=what):
            fit(tmp_path, *callbacks, RestoreBest(monitor), module=module)
        assert module.seen == 0

    def test_wrong_argument(self):
        with pytest.raises(ArgumentTypeError, match=r"RestoreBest\(monitor=3\)"):
            RestoreBest(3)

    def test_a_dry_run_restores_nothing(self, tmp_path):
        module, _ = fit(tmp_path, RestoreBest(), fast_dev_run=2)
        assert module.seen == 2


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
            ({"monitor": ["a"]}, ArgumentTypeError, r"PublishCheckpoint\(monitor=\['a'\]\)"),
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
