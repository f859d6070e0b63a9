"""param_groups: every parameter once, with the options that its name, kind and layer give it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.optim import param_groups
from tests.runs.plain import Net, batches, network, quiet_trainer, same_weights


def convolutions():
    return nn.ModuleDict(
        {
            "stem": nn.Conv2d(3, 8, 3),
            "norm": nn.BatchNorm2d(8),
            "depthwise": nn.Conv2d(8, 8, 3, groups=8),
            "blocks": nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)),
            "recurrent": nn.LSTM(4, 4),
            "scale": nn.ParameterList([nn.Parameter(torch.ones(5))]),
        }
    )


def options_of(net, groups, *names):
    """By name of a parameter: the values of its group."""
    by_id = {id(p): tuple(group.get(name) for name in names) for group in groups for p in group["params"]}
    assert len(by_id) == sum(len(group["params"]) for group in groups)  # each once
    return {name: by_id[id(p)] for name, p in net.named_parameters() if id(p) in by_id}


def test_norms_and_biases_do_not_decay():
    net = convolutions()
    found = options_of(net, param_groups(net, 1.0, 2.0), "lr", "weight_decay")
    assert set(found) == {name for name, _ in net.named_parameters()}
    zero = {"stem.bias", "norm.weight", "norm.bias", "depthwise.bias", "blocks.0.bias", "blocks.2.bias"}
    zero |= {"recurrent.bias_ih_l0", "recurrent.bias_hh_l0"}
    assert found == {name: (1.0, 0.0 if name in zero else 2.0) for name in found}


def test_every_kind_has_its_multiplier():
    net = convolutions()
    groups = param_groups(
        net, 1.0, 1.0, norm_decay_mult=2, bias_decay_mult=3, dwconv_decay_mult=5, flat_decay_mult=7, bias_lr_mult=11
    )
    found = options_of(net, groups, "lr", "weight_decay")
    assert found["stem.weight"] == found["blocks.0.weight"] == (1, 1)
    assert found["norm.weight"] == found["norm.bias"] == (1, 2)  # a norm's bias is no bias
    assert found["stem.bias"] == found["depthwise.bias"] == found["recurrent.bias_ih_l0"] == (11, 3)
    assert found["depthwise.weight"] == (1, 5)
    assert found["scale.0"] == (1, 7)


def test_a_norm_of_another_package_is_known_by_its_name():
    class OwnRMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

    net = nn.Sequential(nn.Linear(3, 3), OwnRMSNorm())
    assert options_of(net, param_groups(net, 1.0, 1.0), "weight_decay")["1.weight"] == (0.0,)


def test_a_rule_comes_before_a_type_and_a_later_rule_before_an_earlier_one():
    net = convolutions()
    groups = param_groups(
        net,
        1.0,
        1.0,
        types={nn.Linear: {"lr_mult": 2, "decay_mult": 3}, "torch.nn.modules.conv.Conv2d": {"lr_mult": 13}},
        rules={"blocks": {"lr_mult": 5}, "blocks.2.*": {"lr_mult": 7, "betas": (0.5, 0.6)}, "*stem.b?as": {"lr": 0.25}},
    )
    found = options_of(net, groups, "lr", "weight_decay", "betas")
    assert found["blocks.0.weight"] == found["blocks.0.bias"] == (5, 3, None)
    assert found["blocks.2.weight"] == (7, 3, (0.5, 0.6))
    assert found["stem.weight"] == (13, 1, None)
    assert found["stem.bias"] == (0.25, 0, None)


def test_layers_decay_from_the_last_to_the_first():
    net = convolutions()
    groups = param_groups(net, 1.0, 0.0, layers=[["stem", "norm"], "depthwise", "blocks"], layer_decay=0.5)
    found = options_of(net, groups, "lr")
    expected = {"stem": 0.125, "norm": 0.125, "depthwise": 0.25, "blocks.0": 0.5, "blocks.2": 1, "recurrent": 1}
    for layer, rate in expected.items():
        assert {value for name, value in found.items() if name.startswith(layer)} == {(rate,)}
    scaled = param_groups(net, 1.0, layers=["stem", "blocks"], layer_decay=0.5, rules={"stem": {"lr_mult": 8}})
    assert options_of(net, scaled, "lr")["stem.weight"] == (8 * 0.25,)


def test_shared_parameters_are_in_one_group_and_any_of_their_names_matches():
    net = nn.ModuleDict({"embedding": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    net["head"].weight = net["embedding"].weight
    (group,) = param_groups(net, 1.0, rules={"head.weight": {"lr_mult": 3}})
    assert len(group["params"]) == 1
    assert group["lr"] == 3


def test_frozen_parameters_are_left_out_unless_wanted():
    net = network()
    net[0].requires_grad_(False)
    assert set(options_of(net, param_groups(net, rules={"0": {"lr": 0.5}}))) == {"3.weight", "3.bias"}
    assert len(options_of(net, param_groups(net, frozen=True))) == 4
    with pytest.raises(MisconfigurationException, match="no parameter to train in Sequential, which has 4"):
        param_groups(net.requires_grad_(False))


def test_values_that_are_not_given_stay_the_optimizers():
    net = network()
    weights, biases = param_groups(net)
    assert set(weights) == {"params"}
    assert set(biases) == {"params", "weight_decay"}
    optimizer = torch.optim.AdamW(param_groups(net), lr=0.5, weight_decay=0.25)
    assert [(g["lr"], g["weight_decay"]) for g in optimizer.param_groups] == [(0.5, 0.25), (0.5, 0.0)]


def test_a_run_equals_a_loop_with_the_groups_by_hand():
    def configure(parameters):
        return torch.optim.AdamW(param_groups(model.net, 0.1, 0.5, rules={"3": {"lr_mult": 0.1}}))

    model, plain = Net(configure), network()
    quiet_trainer(max_epochs=2).fit(model, batches(5))
    first, last = plain[0], plain[3]
    by_hand = [
        {"params": [first.weight], "lr": 0.1, "weight_decay": 0.5},
        {"params": [first.bias], "lr": 0.1, "weight_decay": 0.0},
        {"params": [last.weight], "lr": 0.1 * 0.1, "weight_decay": 0.5},
        {"params": [last.bias], "lr": 0.1 * 0.1, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(by_hand)
    for _ in range(2):
        for x, y in batches(5):
            optimizer.zero_grad()
            cross_entropy(plain(x), y).backward()
            optimizer.step()
    assert same_weights(model.net, plain)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rules": {"haed": {"lr_mult": 2}}}, MisconfigurationException, "'haed' in `rules`.*Did you mean 'head'"),
        ({"layers": ["head", "boddy"], "layer_decay": 0.5}, MisconfigurationException, "'boddy'.*Did you mean 'body'"),
        ({"types": {"Liner": {}}}, MisconfigurationException, "'Liner' in `types`.*Did you mean 'Linear'"),
        ({"types": {nn.Conv2d: {}}}, MisconfigurationException, "'Conv2d' in `types`"),
        ({"rules": {"head": {"lr_mul": 2}}}, MisconfigurationException, "'lr_mul' for 'head'.*'lr_mult'"),
        ({"rules": {"head": {"params": []}}}, MisconfigurationException, "option 'params'"),
        ({"rules": {"head": {"lr_mult": -1}}}, MisconfigurationException, r"rules\['head'\]\['lr_mult'\]=-1"),
        ({"rules": ["head"]}, ArgumentTypeError, "rules="),
        ({"rules": {"head": 2}}, ArgumentTypeError, "rules="),
        ({"lr": "fast"}, ArgumentTypeError, "lr='fast'"),
        ({"weight_decay": -1.0}, MisconfigurationException, "weight_decay=-1.0"),
        ({"norm_decay_mult": True}, ArgumentTypeError, "norm_decay_mult=True"),
        ({"lr": None, "bias_lr_mult": 2.0}, MisconfigurationException, "multiplier 2 of `lr` for 'body.bias', but no"),
        ({"weight_decay": None, "bias_decay_mult": 2}, MisconfigurationException, "of `weight_decay` for"),
        ({"layer_decay": 0.5}, MisconfigurationException, "`layer_decay` without `layers`"),
        ({"layers": ["head"]}, MisconfigurationException, "`layers` without `layer_decay`"),
        ({"layers": "head", "layer_decay": 0.5}, ArgumentTypeError, "layers='head'"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    net = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 2)})
    with pytest.raises(error, match=message):
        param_groups(net, **{"lr": 0.1, "weight_decay": 0.1, **arguments})


def test_a_list_of_parameters_is_refused():
    with pytest.raises(ArgumentTypeError, match=r"expected an nn.Module|an nn\.Module"):
        param_groups(list(network().parameters()))
