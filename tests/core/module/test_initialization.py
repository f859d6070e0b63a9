"""init_weights: the values of torch.nn.init, by class and name, from files, and its mistakes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import init

import lightlib as L
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from tests.runs.plain import Net, batches, quiet_trainer, same_weights


def built():
    """A small network, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), nn.ReLU()
        )


KAIMING = {"nonlinearity": "relu", "mode": "fan_out"}


@pytest.mark.parametrize(
    ("rule", "function"),
    [
        ({"type": "kaiming"}, lambda t: init.kaiming_normal_(t, **KAIMING)),
        ({"type": "Kaiming", "distribution": "uniform", "a": 2}, lambda t: init.kaiming_uniform_(t, a=2, **KAIMING)),
        ({"type": "kaiming", "mode": "fan_in", "nonlinearity": "leaky_relu"}, init.kaiming_normal_),
        ({"type": "xavier", "gain": 2.0}, lambda t: init.xavier_normal_(t, 2.0)),
        ({"type": "Xavier", "distribution": "uniform"}, init.xavier_uniform_),
        ({"type": "normal", "mean": 1.0, "std": 0.1}, lambda t: init.normal_(t, 1.0, 0.1)),
        ({"type": "trunc_normal", "std": 0.5}, lambda t: init.trunc_normal_(t, std=0.5)),
        ({"type": "TruncNormal", "a": -1}, lambda t: init.trunc_normal_(t, a=-1)),
        ({"type": "uniform", "a": -1, "b": 3}, lambda t: init.uniform_(t, -1, 3)),
        ({"type": "constant", "value": 0.5}, lambda t: init.constant_(t, 0.5)),
        ({"type": "orthogonal"}, init.orthogonal_),
        ({"type": init.sparse_, "sparsity": 0.5}, lambda t: init.sparse_(t, 0.5)),
    ],
)
def test_each_type(rule, function):
    ours, theirs = built(), built()
    torch.manual_seed(4)
    L.init_weights(ours, {**rule, "layer": "Linear", "bias": 0.25})
    torch.manual_seed(4)
    for layer in theirs[2]:
        function(layer.weight)
        init.constant_(layer.bias, 0.25)
    assert same_weights(ours, theirs)


def test_a_list_in_order_by_class_and_by_name():
    ours, theirs = built(), built()
    rules = [
        {"type": "kaiming", "layer": ["Conv2d", nn.Linear]},
        {"type": "constant", "value": 1, "layer": "_BatchNorm"},  # a base class
        {"type": "constant", "value": 2.0, "name": "2.*", "layer": "Linear", "bias": None},
        {"type": "constant", "value": 3.0, "name": ["2.1"]},
    ]
    torch.manual_seed(4)
    L.init_weights(ours, rules)
    torch.manual_seed(4)
    for layer in (theirs[0], *theirs[2]):
        init.kaiming_normal_(layer.weight, **KAIMING)
        init.zeros_(layer.bias)
    init.ones_(theirs[1].weight)
    init.zeros_(theirs[1].bias)
    init.constant_(theirs[2][0].weight, 2.0)
    init.constant_(theirs[2][1].weight, 3.0)
    assert same_weights(ours, theirs)


def test_in_a_module_that_is_trained():
    class Initialised(Net):
        def __init__(self):
            super().__init__()
            L.init_weights(self, {"type": "xavier", "layer": "Linear"})

    torch.manual_seed(4)
    module = Initialised()
    first = [p.detach().clone() for p in module.parameters()]
    torch.manual_seed(4)
    plain = Net()
    for layer in (plain.net[0], plain.net[3]):
        init.xavier_normal_(layer.weight)
        init.zeros_(layer.bias)
    assert all(map(torch.equal, first, plain.parameters()))
    quiet_trainer().fit(module, batches(2))
    assert not torch.equal(module.net[0].weight, first[0])


def test_pretrained_values(tmp_path):
    source, path = built(), tmp_path / "a.ckpt"
    torch.save({"state_dict": {f"backbone.{name}": value + 1 for name, value in source.state_dict().items()}}, path)
    ours = nn.ModuleDict({"body": built(), "head": nn.Linear(2, 2)})
    head = ours["head"].weight.detach().clone()
    L.init_weights(ours, {"type": "Pretrained", "checkpoint": path, "prefix": "backbone.", "name": "body"})
    assert torch.equal(ours["body"][0].weight, source[0].weight + 1)
    assert torch.equal(ours["head"].weight, head)
    with pytest.raises(MisconfigurationException, match=r"no name that begins with 'bone\.'"):
        L.init_weights(ours, {"type": "pretrained", "checkpoint": path, "prefix": "bone.", "name": "body"})
    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    with pytest.raises(MisconfigurationException, match="built without memory"):
        L.init_weights(empty, {"type": "pretrained", "checkpoint": path})


@pytest.mark.parametrize(
    ("rules", "kind", "message"),
    [
        (3, ArgumentTypeError, r"`rules` of init_weights is 3 \(int\)"),
        ([3], ArgumentTypeError, r"A rule of init_weights is 3 \(int\)"),
        ({"layer": "Linear"}, ArgumentTypeError, "a dict with 'type'"),
        ({"type": "kaimin"}, UnknownNameError, "Did you mean 'kaiming'"),
        ({"type": 3}, ArgumentTypeError, r"type=3 \(int\)"),
        ({"type": "normal", "sdt": 1.0}, MisconfigurationException, r"has the option 'sdt'\. Did you mean 'std'"),
        ({"type": "pretrained", "checkpoint": "a", "layer": "x"}, MisconfigurationException, "has the option 'layer'"),
        (
            {"type": "normal", "layer": "Linnear"},
            MisconfigurationException,
            r"matches no layer .*Did you mean 'Linear'",
        ),
        (
            {"type": "normal", "name": "3.*"},
            MisconfigurationException,
            r"(?s)matches no layer.*there are 0, 1, 2\.0, 2\.1",
        ),
        ({"type": "xavier", "distribution": "cauchy"}, MisconfigurationException, "distribution='cauchy'"),
    ],
)
def test_mistakes(rules, kind, message):
    with pytest.raises(kind, match=message):
        L.init_weights(built(), rules)
