"""Hyperparameters of OmegaConf under compat: they keep their type, as in Lightning 2.6.6."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lightlib
from lightlib import conventions
from lightlib.errors import CheckpointError
from lightlib_lightning.order import LIGHTNING
from tests.runs.quiet import QUIET

omegaconf = pytest.importorskip("omegaconf")
pytestmark = pytest.mark.filterwarnings("ignore:The hyperparameters ")


@pytest.fixture(autouse=True)
def _installed():
    with conventions.following(LIGHTNING):
        yield


def config():
    return omegaconf.OmegaConf.create(
        {"net": {"width": 2, "lr": 0.5}, "twice": "${net.width}", "layers": [1, {"a": 2}], "api_key": "sk-1"}
    )


class Base(lightlib.Module):
    def __init__(self):
        super().__init__()
        self.batches = []

    def training_step(self, batch, batch_idx):
        self.batches.append(batch_idx)
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.net.lr)


class Whole(Base):
    """Keeps one configuration, as templates for Hydra do."""

    def __init__(self, cfg):
        super().__init__()
        self.save_hyperparameters(cfg)
        self.layer = torch.nn.Linear(2, self.hparams.net.width)


class Arguments(Base):
    """Keeps a configuration among its arguments."""

    def __init__(self, net, depth=1):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(2, self.hparams.net.width)


def fit(net, epochs=1, **options):
    trainer = lightlib.Trainer(**QUIET, max_epochs=epochs)
    trainer.fit(net, torch.utils.data.DataLoader(torch.ones(3, 2)), **options)
    return trainer


def test_one_configuration_is_the_hyperparameters():
    given = config()
    net = Whole(given)
    assert net.hparams is given
    net.hparams.net.lr = 0.25
    assert (given.net.lr, net.hparams_initial.net.lr) == (0.25, 0.5)
    assert isinstance(net.hparams_initial, omegaconf.DictConfig)
    assert (net.hparams.twice, type(net.hparams.layers)) == (2, omegaconf.ListConfig)
    net.save_hyperparameters({"more": 1})  # replaces it, as in Lightning
    assert dict(net.hparams) == {"more": 1}


def test_without_compat_it_is_a_dictionary():
    with conventions.following(conventions.LIGHTLIB):
        net = Whole(config())
        fit(net).save_checkpoint("plain.ckpt")
    assert type(net.hparams) is not omegaconf.DictConfig
    assert torch.load("plain.ckpt")["hyper_parameters"]["net"] == {"width": 2, "lr": 0.5}


@pytest.mark.parametrize("kind", [Whole, Arguments])
def test_a_checkpoint_keeps_the_type_and_needs_trust(kind):
    given = config()
    fit(kind(given if kind is Whole else given.net)).save_checkpoint("a.ckpt")
    stored = torch.load("a.ckpt", weights_only=False)
    hparams = stored["hyper_parameters"]
    assert (type(hparams), stored.get("hparams_type")) == (
        (omegaconf.DictConfig, omegaconf.DictConfig) if kind is Whole else (dict, None)
    )
    assert type(hparams["net"]) is omegaconf.DictConfig
    assert b"sk-1" not in Path("a.ckpt").read_bytes()  # neither in it, nor in the configuration that it is part of
    with pytest.raises(CheckpointError, match="weights_only=False"):
        kind.load_from_checkpoint("a.ckpt")
    again = kind.load_from_checkpoint("a.ckpt", weights_only=False)
    assert type(again.hparams.net) is omegaconf.DictConfig
    assert again.hparams.net == {"width": 2, "lr": 0.5}
    if kind is Whole:
        again.hparams.net.width = 7
        assert again.hparams.twice == 7  # references stay references


@pytest.mark.parametrize("kind", [Whole, Arguments])
def test_a_run_resumes_exactly(kind):
    def made():
        torch.manual_seed(3)
        return kind(config() if kind is Whole else config().net)

    full, first, second = made(), made(), made()
    fit(full, 2)
    fit(first).save_checkpoint("a.ckpt")
    with pytest.raises(CheckpointError, match="weights_only=False"):
        fit(made(), 2, ckpt_path="a.ckpt")
    fit(second, 2, ckpt_path="a.ckpt", weights_only=False, resume={"changes": "refuse"})
    assert second.batches[-3:] == [0, 1, 2]
    assert second.layer.weight.equal(full.layer.weight)


def test_changes_of_training_are_resumed_in_a_configuration_that_is_closed():
    class Changes(Whole):
        def training_step(self, batch, batch_idx):
            self.hparams.net.lr /= 2
            return super().training_step(batch, batch_idx)

    fit(Changes(config())).save_checkpoint("a.ckpt")
    given = config()
    omegaconf.OmegaConf.set_struct(given, True)
    net = Changes(given)
    fit(net, 2, ckpt_path="a.ckpt", weights_only=False)
    assert net.hparams.net.lr == 0.5 / 2**6
    assert net.hparams.twice == 2


def test_missing_values_and_unknown_resolvers_do_not_stop_a_run():
    given = config()
    given.later, given.elsewhere = "???", "${nobody:1}"
    fit(Whole(given)).save_checkpoint("a.ckpt")
    stored = torch.load("a.ckpt", weights_only=False)["hyper_parameters"]
    assert omegaconf.OmegaConf.is_missing(stored, "later")
    assert omegaconf.OmegaConf.to_container(stored)["elsewhere"] == "${nobody:1}"


class Copied(Base):
    """Keeps a plain copy of its configuration, as in `save_hyperparameters(dict(cfg))`."""

    def __init__(self, cfg):
        super().__init__()
        self.save_hyperparameters(dict(cfg))
        self.layer = torch.nn.Linear(2, self.hparams["net"]["width"])


def test_a_plain_copy_of_a_configuration_builds_the_module_again():
    fit(Copied(config())).save_checkpoint("a.ckpt")
    assert Copied.load_from_checkpoint("a.ckpt", weights_only=False).layer.out_features == 2
