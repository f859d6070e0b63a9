"""MixtureOfExperts on one device against a loop over tokens; and errors of the expert axis."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lightlib.errors import MisconfigurationException
from lightlib.strategies.axes.expert import Expert, MixtureOfExperts
from lightlib.strategies.axes.parallel_plan import ParallelPlan, container_of


def layer(count=3, top_k=2, **options):
    return MixtureOfExperts(nn.Linear(4, count), [nn.Linear(4, 5) for _ in range(count)], top_k, **options)


@pytest.mark.parametrize(("top_k", "normalize"), [(1, None), (2, None), (2, False), (3, True)])
def test_every_token_goes_through_its_best_experts(top_k, normalize):
    mixture, x = layer(top_k=top_k, normalize=normalize), torch.randn(2, 6, 4)
    expected = torch.zeros(2, 6, 5)
    for place in [(i, j) for i in range(2) for j in range(6)]:
        scores = mixture.router(x[place]).softmax(-1)
        weights, chosen = scores.topk(top_k)
        if normalize or (normalize is None and top_k > 1):
            weights = weights / weights.sum()
        expected[place] = sum(w * mixture.experts[int(e)](x[place]) for w, e in zip(weights, chosen, strict=True))
    torch.testing.assert_close(mixture(x), expected)


def test_all_parameters_get_gradients_even_of_experts_without_tokens():
    mixture = layer(top_k=1)
    with torch.no_grad():
        mixture.router.bias.copy_(torch.tensor([100.0, 0, 0]))
    mixture(torch.randn(3, 4)).sum().backward()
    assert all(p.grad is not None for p in mixture.parameters())
    assert float(mixture.experts[1].weight.grad.abs().sum()) == 0


def test_the_balance_is_one_when_all_get_as_much():
    mixture = layer(3, 1)
    with torch.no_grad():
        mixture.router.weight.zero_()
        mixture.router.bias.copy_(torch.tensor([100.0, 0, 0]))
    mixture(torch.randn(6, 4))
    assert float(mixture.balance.detach()) == pytest.approx(3)
    with torch.no_grad():
        mixture.router.bias.zero_()
        mixture.router.weight.copy_(torch.eye(4)[:3] * 100)
    mixture(torch.eye(4)[:3])
    assert float(mixture.balance.detach()) == pytest.approx(1, abs=1e-3)
    mixture.balance.backward()
    assert mixture.router.weight.grad is not None


def test_copies_and_reduced_precision():
    mixture = layer()
    mixture(torch.randn(3, 4))
    assert copy.deepcopy(mixture).balance is None
    assert mixture.to(torch.bfloat16)(torch.randn(3, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert layer()(torch.randn(3, 4)).dtype == torch.bfloat16


def test_experts_are_no_blocks():
    module = nn.Module()
    module.blocks = nn.ModuleList(layer(8) for _ in range(2))
    assert container_of(module)[0] == "blocks"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: layer(3, 4), r"MixtureOfExperts\(top_k=4\) of 3 experts"),
        (lambda: layer(3, 0), r"MixtureOfExperts\(top_k=0\) of 3 experts"),
        (lambda: MixtureOfExperts(nn.Linear(4, 2), []), "MixtureOfExperts has no experts"),
        (lambda: MixtureOfExperts(nn.Linear(4, 2), nn.LSTM(4, 5, proj_size=2)), "different first dimensions"),
        (
            lambda: MixtureOfExperts(nn.Linear(4, 2), [nn.Linear(4, 4)] * 3)(torch.ones(1, 4)),
            "returns 2 scores for 3 experts",
        ),
    ],
)
def test_bad_layers(make, text):
    with pytest.raises(MisconfigurationException, match=text):
        make()


@pytest.mark.parametrize(
    ("size", "sizes", "make", "plan", "text"),
    [
        (2, {"shard": 4}, layer, {}, r"expert=2 with shard=4: .* are those of shard"),
        (4, {"replicate": 2}, layer, {}, "expert=4 with replicate=2"),
        (
            2,
            {"shard": 2},
            lambda: nn.Sequential(nn.Linear(4, 4)),
            {},
            "expert=2, but Sequential has no MixtureOfExperts",
        ),
        (
            2,
            {"shard": 2},
            lambda: nn.Sequential(layer(3)),
            {},
            r"0 has 3 experts, which cannot be split over expert=2",
        ),
        (
            2,
            {"shard": 2},
            lambda: nn.Sequential(layer(4)),
            {"experts": ["0.router"]},
            r"names the experts '0.router' \(Linear\)",
        ),
        (-1, {"shard": 2}, lambda: nn.Sequential(layer(4).to("meta")), {}, "expert with a module on the meta device"),
    ],
)
def test_what_the_axis_refuses(size, sizes, make, plan, text):
    site = SimpleNamespace(plan=ParallelPlan(**plan), sizes={"shard": 1, "replicate": 1, **sizes})
    with pytest.raises(MisconfigurationException, match=text):
        Expert(size).check(make(), site)
