"""Hyperparameters that are objects: refused by name, and read with `weights_only=False`."""

from __future__ import annotations

import argparse
import enum
import functools
import pathlib
from typing import Any

import pytest
import torch
import torchmetrics
from omegaconf import DictConfig, OmegaConf
from torch import nn

import lightlib
from lightlib.errors import CheckpointError
from tests.runs.quiet import QUIET


class Kind(enum.Enum):
    SMALL = "small"


class Container(dict):
    """A container that its values refer to, as in configuration libraries."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        if isinstance(value, Container):
            value.parent = self


def objects() -> dict[str, Any]:
    tree = Container()
    tree["inner"] = Container()
    return {
        "width": 3,
        "loss": nn.MSELoss(),
        "metric": torchmetrics.MeanSquaredError(),
        "activation": functools.partial(nn.LeakyReLU, negative_slope=0.5),
        "arguments": argparse.Namespace(depth=2),
        "kind": Kind.SMALL,
        "folder": pathlib.PurePosixPath("data"),
        "tree": tree,
        "config": OmegaConf.create({"encoder": {"size": 4}}),
    }


class Net(lightlib.Module):
    def __init__(self, width=1, loss=None, activation=None, config=None, **rest):
        super().__init__()
        self.given = {"width": width, "loss": loss, "activation": activation, "config": config, **rest}
        self.layer = nn.Linear(2, width)
        self.batches = []

    def training_step(self, batch, batch_idx):
        self.batches.append((self.current_epoch, batch_idx))
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


@pytest.fixture
def file(tmp_path):
    """A file with the layout of Lightning 2.6, written after one epoch of three batches."""
    net = Net(3)
    optimizer = net.configure_optimizers()
    for _ in range(3):
        net.layer(torch.ones(1, 2)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    four = {"ready": 3, "started": 3, "processed": 3, "completed": 3}
    one = dict.fromkeys(four, 1)
    loop = {
        "epoch_progress": {"total": one, "current": one},
        "epoch_loop.batch_progress": {"total": four, "current": four, "is_last_batch": True},
    }
    content = {
        "epoch": 0,
        "global_step": 3,
        "pytorch-lightning_version": "2.6.6",
        "state_dict": net.state_dict(),
        "loops": {"fit_loop": loop},
        "callbacks": {},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [],
        "hparams_name": "kwargs",
        "hyper_parameters": objects(),
    }
    torch.save(content, tmp_path / "lightning.ckpt")
    return tmp_path / "lightning.ckpt"


CLASSES = {
    "loss": "torch.nn.modules.loss.MSELoss",
    "metric": "torchmetrics.regression.mse.MeanSquaredError",
    "activation": "functools.partial",
    "arguments": "argparse.Namespace",
    "kind": "Kind",
    "folder": "pathlib.PurePosixPath",
}


def test_each_object_is_named_with_its_key_and_class_and_the_fix(file):
    for read in (
        lambda: Net.load_from_checkpoint(file),
        lambda: lightlib.Trainer(**QUIET, max_epochs=2).fit(Net(3), torch.ones(3, 2), ckpt_path=file),
    ):
        with pytest.raises(CheckpointError) as raised:
            read()
        text = str(raised.value)
        for key, kind in CLASSES.items():
            assert f"['hyper_parameters']['{key}'] (" in text
            assert f"{kind})" in text
        assert "and 3 more" in text
        assert "weights_only=False to fit and load_from_checkpoint" in text
        assert "truncated" not in text


@pytest.mark.parametrize("key", [*CLASSES, "tree", "config"])
def test_one_object_alone_is_named(file, key):
    content = torch.load(file, weights_only=False)
    content["hyper_parameters"] = {"width": 3, key: objects()[key]}
    torch.save(content, file)
    with pytest.raises(CheckpointError) as raised:
        Net.load_from_checkpoint(file)
    assert f"['hyper_parameters']['{key}']" in str(raised.value)
    assert "weights_only=False" in str(raised.value)


def test_the_objects_come_back_with_trust(file):
    given = Net.load_from_checkpoint(file, weights_only=False).given
    assert isinstance(given["loss"], nn.MSELoss)
    assert isinstance(given["metric"], torchmetrics.MeanSquaredError)
    assert (given["activation"].func, given["activation"].keywords) == (nn.LeakyReLU, {"negative_slope": 0.5})
    assert given["arguments"] == argparse.Namespace(depth=2)
    assert given["kind"] is Kind.SMALL
    assert given["folder"] == pathlib.PurePosixPath("data")
    assert given["tree"]["inner"].parent is given["tree"]
    assert isinstance(given["config"], DictConfig)
    assert given["config"].encoder.size == 4


def test_a_run_resumes_with_trust(file):
    content = torch.load(file, weights_only=False)
    net = Net(3)
    trainer = lightlib.Trainer(**QUIET, max_epochs=2)
    trainer.fit(net, torch.utils.data.DataLoader(torch.ones(3, 2)), ckpt_path=file, weights_only=False)
    assert net.batches == [(1, 0), (1, 1), (1, 2)]
    assert trainer.global_step == 6
    plain = Net(3)
    plain.load_state_dict(content["state_dict"])
    optimizer = plain.configure_optimizers()
    optimizer.load_state_dict(content["optimizer_states"][0])
    for _ in range(3):
        plain.layer(torch.ones(1, 2)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert net.layer.weight.equal(plain.layer.weight)


def test_a_class_that_cannot_be_imported_is_named(file, monkeypatch):
    monkeypatch.delattr(f"{__name__}.Kind")
    with pytest.raises(CheckpointError, match=r"holds objects of classes that cannot be imported: .*Kind"):
        Net.load_from_checkpoint(file, weights_only=False)


def test_one_configuration_that_holds_all_keeps_its_type(file):
    class Configured(lightlib.Module):
        def __init__(self, config):
            super().__init__()
            self.config = config
            self.layer = nn.Linear(2, config.width)

    config = OmegaConf.create({"width": 3, "encoder": {"size": 4}, "twice": "${encoder.size}"})
    content = torch.load(file, weights_only=False)
    content |= {"hyper_parameters": config, "hparams_name": "config", "hparams_type": DictConfig}
    torch.save(content, file)
    found = Configured.load_from_checkpoint(file, weights_only=False).config
    assert isinstance(found, DictConfig)
    assert (found.encoder.size, found.twice) == (4, 4)
    changed = Configured.load_from_checkpoint(file, weights_only=False, encoder={"size": 9}).config
    assert (changed.width, changed.twice) == (3, 9)
