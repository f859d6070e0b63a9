"""load_weights, and strict="shapes" of loads and resumes: names and shapes that differ."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lightlib as L
from lightlib.errors import ArgumentTypeError, CheckpointError, MisconfigurationException
from lightlib.report import PossibleUserWarning
from tests.runs import plain
from tests.runs.plain import QUIET, loader, network


def pretrained():
    """Weights under other names, and with a head of another size."""
    state = network().state_dict()
    state = {f"module.backbone.{name}": value + 1 for name, value in state.items()}
    return {**state, "module.backbone.3.weight": torch.ones(5, 8), "module.backbone.3.bias": torch.ones(5)}


RENAME = {"module.backbone.*": "*"}


def test_names_and_shapes_that_differ(tmp_path):
    torch.save({"state_dict": pretrained()}, tmp_path / "base.ckpt")
    net = network()
    result = L.load_weights(net, tmp_path / "base.ckpt", strict="shapes", rename=RENAME)
    assert result.loaded == ("0.weight", "0.bias")
    assert result.left == ("module.backbone.3.weight", "module.backbone.3.bias")
    assert result.new == ("3.weight", "3.bias")
    assert result.shapes == {"3.weight": ((5, 8), (3, 8)), "3.bias": ((5,), (3,))}
    assert torch.equal(net[0].weight, network()[0].weight + 1)
    assert torch.equal(net[3].weight, network()[3].weight)


def test_a_file_of_weights_alone_and_ignored_names(tmp_path):
    torch.save(pretrained(), tmp_path / "base.pth")
    net = network()
    result = L.load_weights(net, tmp_path / "base.pth", rename=RENAME, ignore="3.*")
    assert result.loaded == ("0.weight", "0.bias")
    with pytest.raises(CheckpointError, match="shapes differ"):
        L.load_weights(network(), tmp_path / "base.pth", rename=RENAME)
    assert torch.equal(net[3].weight, network()[3].weight)


def test_stars_stand_for_the_same_text_in_order():
    source = {"block0.attn.w": torch.ones(2), "block1.attn.w": torch.zeros(2)}
    net = nn.ParameterDict({"attn_0": nn.Parameter(torch.full((2,), 5.0)), "attn_1": nn.Parameter(torch.ones(2))})
    assert L.load_weights(net, source, rename={"block*.*.w": "attn_*"}).loaded == ("attn_0", "attn_1")
    assert net["attn_0"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("strict", "source", "text"),
    [
        (True, {"0.weight": torch.zeros(8, 6)}, "the module has names that the file lacks"),
        (True, {**network().state_dict(), "more": torch.ones(1)}, "the file has names that the module lacks"),
        (False, {"0.weight": torch.zeros(9, 6)}, "shapes differ"),
        (False, {"x": torch.ones(1)}, "no name fits"),
    ],
)
def test_what_does_not_fit_changes_nothing(strict, source, text):
    net = network()
    with pytest.raises(CheckpointError, match=text):
        L.load_weights(net, source, strict=strict)
    assert all(torch.equal(value, network().state_dict()[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"rename": {"a.*": "*"}}, MisconfigurationException, "fits no name of the source"),
        ({"rename": {"0.*": "*.*"}}, MisconfigurationException, "no more stars"),
        ({"rename": {"*.weight": "w"}}, MisconfigurationException, "both become 'w'"),
        ({"rename": 3}, ArgumentTypeError, "rename"),
        ({"rename": {"0.*": 1}}, ArgumentTypeError, "rename"),
        ({"ignore": ["heads.*"]}, MisconfigurationException, r"ignore='heads\.\*'"),
        ({"ignore": 3}, ArgumentTypeError, "ignore=3"),
        ({"strict": "shape"}, MisconfigurationException, "'shape'"),
        ({"strict": 1}, MisconfigurationException, "strict=1"),
    ],
)
def test_wrong_arguments(arguments, error, text):
    with pytest.raises(error, match=text):
        L.load_weights(network(), network().state_dict(), **arguments)


def test_a_file_without_weights(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "none.pth")
    with pytest.raises(CheckpointError, match="holds no weights"):
        L.load_weights(network(), tmp_path / "none.pth")


def sized(classes=3):
    module = plain.Net()
    module.net[3] = nn.Linear(8, classes)
    return module


def test_equal_shapes_of_a_checkpoint(tmp_path):
    module, path = sized(), str(tmp_path / "run.ckpt")
    trainer = L.Trainer(**QUIET, max_epochs=1)
    trainer.fit(module, loader(8))
    trainer.save_checkpoint(path)
    with pytest.warns(PossibleUserWarning, match=r"keeps its own values of 'net\.3\.weight', 'net\.3\.bias'"):
        other = plain.Net.load_from_checkpoint(path, strict="shapes", net=sized(5).net)
    assert torch.equal(other.net[0].weight, module.net[0].weight)
    other = sized(5)
    parts = dict.fromkeys(("optimizers", "schedules", "progress", "callbacks", "random"), False)
    with pytest.warns(PossibleUserWarning, match="strict='shapes'"):
        L.Trainer(**QUIET, max_steps=0).fit(other, loader(8), ckpt_path=path, resume={**parts, "strict": "shapes"})
    assert torch.equal(other.net[0].weight, module.net[0].weight)
    with pytest.raises(CheckpointError, match="size mismatch"):
        L.Trainer(**QUIET, max_epochs=1).fit(sized(5), loader(8), ckpt_path=path)
