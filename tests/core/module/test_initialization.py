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
        ({"type": "Constant", "val": 0.5}, lambda t: init.constant_(t, 0.5)),
        ({"type": "ConstantInit", "val": 3}, lambda t: init.constant_(t, 3.0)),
        (
            {"type": "Caffe2Xavier"},
            lambda t: init.kaiming_uniform_(t, a=1, mode="fan_in", nonlinearity="leaky_relu"),
        ),
        ({"type": "Caffe2XavierInit"}, lambda t: init.kaiming_uniform_(t, a=1)),
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


class Foo(nn.Module):
    """The module in the examples of MMEngine's `initialize`."""

    def __init__(self):
        super().__init__()
        self.feat, self.reg, self.cls = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 10, 3), nn.Conv2d(16, 5, 3)


def values(module):
    """Return the value of all weights, and of all biases, of each part."""
    return {
        name: (part.weight.unique().tolist(), part.bias.unique().tolist()) for name, part in module.named_children()
    }


class TestRulesOfMMEngine:
    """Expected values are those that its documentation gives."""

    def test_override_of_a_part(self):
        module, rule = Foo(), {"type": "Constant", "val": 1, "bias": 2, "layer": "Conv2d"}
        override = {"type": "Constant", "name": "reg", "val": 3, "bias": 4}
        L.init_weights(module, {**rule, "override": override})
        assert values(module) == {"feat": ([1.0], [2.0]), "reg": ([3.0], [4.0]), "cls": ([1.0], [2.0])}
        L.init_weights(module, {**rule, "val": 5, "override": [{**override, "bias": 6}, {**override, "name": "cls"}]})
        assert values(module) == {"feat": ([5.0], [2.0]), "reg": ([3.0], [6.0]), "cls": ([3.0], [4.0])}

    def test_override_by_name_alone_has_the_options_of_the_rule_and_is_the_only_rule_without_a_layer(self):
        module = Foo()
        L.init_weights(module, {"type": "Constant", "val": 0, "bias": 7})
        L.init_weights(module, {"type": "Constant", "val": 1, "bias": 2, "override": {"name": "reg"}})
        assert values(module) == {"feat": ([0.0], [7.0]), "reg": ([1.0], [2.0]), "cls": ([0.0], [7.0])}

    def test_the_bias_for_a_probability(self):
        module = Foo()
        L.init_weights(module, {"type": "Normal", "std": 0.01, "bias_prob": 0.01, "layer": "Conv2d"})
        assert torch.sigmoid(module.reg.bias).tolist() == pytest.approx([0.01] * 10, rel=1e-5)
        assert module.reg.bias.tolist() == pytest.approx([-4.59511985013459] * 10)

    @pytest.mark.parametrize("extra", [{}, {"prefix": None}, {"map_location": "cpu"}])
    def test_pretrained(self, tmp_path, extra):
        source, module = built(), built()
        torch.save({"state_dict": {name: value + 1 for name, value in source.state_dict().items()}}, tmp_path / "a.pth")
        L.init_weights(module, {"type": "PretrainedInit", "checkpoint": str(tmp_path / "a.pth"), **extra})
        assert torch.equal(module[0].weight, source[0].weight + 1)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"override": {"type": "Normal", "std": 1.0}}, r"has override=\{'type': 'Normal', 'std': 1\.0\}"),
            ({"override": {"name": "reg", "std": 1.0}}, "with 'type' if it has options of its own"),
            ({"override": "reg"}, "has override='r'"),
            ({"override": {"name": "rge"}}, "matches no layer"),
            ({"bias": 0, "bias_prob": 0.5}, "has both 'bias' and 'bias_prob'"),
            ({"type": "constant", "value": 0, "val": 1}, "has both 'value' and 'val'"),
            ({"bias_prob": 1.0}, r"has bias_prob=1\.0"),
        ],
    )
    def test_mistakes(self, options, message):
        with pytest.raises(MisconfigurationException, match=message):
            L.init_weights(Foo(), {"type": "normal", "layer": "Conv2d", **options})


def test_in_a_module_that_is_trained():
    torch.manual_seed(4)
    module = Net()
    L.init_weights(module, {"type": "xavier", "layer": "Linear"})
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
        (3, ArgumentTypeError, r"init_weights\(rules=3 \(int\)\)"),
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
