"""LoRA by names: the numbers of a plain loop, checkpoints, merged weights and refused names."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lightlib as L
from lightlib import checkpoint
from lightlib.callbacks import ModelCheckpoint
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.transforms import lora, merge_lora
from tests.callbacks.checkpoint.best import RUN
from tests.runs import plain
from tests.runs.plain import batches, loader, network


def adapted():
    torch.manual_seed(4)
    module = plain.Net(lambda parameters: torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.5))
    module.net = lora(module.net, ["0"], rank=2, alpha=4.0, train=["3.bias"])
    return module


def by_hand(epochs):
    """Train W + 4 / 2 · B A, with the formula written out."""
    net = network().requires_grad_(False)
    change = adapted().net[0].parametrizations.weight[0]
    a, b = change.lora_A.detach().clone().requires_grad_(), torch.zeros(8, 2, requires_grad=True)
    bias = net[3].bias.detach().clone().requires_grad_()
    optimizer = torch.optim.SGD([a, b, bias], lr=0.5)

    def scores(x):
        hidden = torch.tanh(nn.functional.linear(x, net[0].weight + 2.0 * (b @ a), net[0].bias))
        return nn.functional.linear(hidden, net[3].weight, bias)

    for _ in range(epochs):
        for x, y in batches(6):
            optimizer.zero_grad()
            cross_entropy(scores(x), y).backward()
            optimizer.step()
    return a, b, bias, scores


def test_it_trains_as_a_plain_loop_and_its_checkpoints_hold_the_change_alone(tmp_path):
    module, saver = adapted(), ModelCheckpoint(tmp_path, save="trainable")
    L.Trainer(**RUN | {"max_epochs": 2}, callbacks=[saver]).fit(module, loader(24))
    a, b, bias, scores = by_hand(2)
    change = module.net[0].parametrizations.weight[0]
    assert torch.allclose(change.lora_A, a, atol=1e-6)
    assert torch.allclose(change.lora_B, b, atol=1e-6)
    assert torch.allclose(module.net[3].bias, bias, atol=1e-6)
    assert b.abs().max() > 1e-3
    prefix = "net.0.parametrizations.weight.0."
    assert set(checkpoint.load(saver.best_model_path)["state_dict"]) == {
        f"{prefix}lora_A", f"{prefix}lora_B", "net.3.bias",
    }  # fmt: skip
    x = plain.samples(5)[0]
    merge_lora(module)
    assert type(module.net[0]) is nn.Linear
    assert set(module.state_dict()) == set(plain.Net().state_dict())
    assert torch.allclose(module.net(x), scores(x), atol=1e-6)


def test_parameters_of_attention_and_weights_of_more_dimensions():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.conv = nn.Conv2d(4, 6, 3)
            self.words = nn.Embedding(10, 8)

    model, x = Model(), torch.randn(2, 3, 8)
    expected = model.attention(x, x, x)[0]
    lora(model, ["attention.in_proj_weight", "conv", "words"], rank=2)
    assert sum(parameter.requires_grad for parameter in model.parameters()) == 6
    assert torch.allclose(model.attention(x, x, x)[0], expected, atol=1e-6)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    loss = model.attention(x, x, x)[0].sum() + model.conv(torch.randn(1, 4, 5, 5)).sum()
    (loss + model.words(torch.arange(10)).sum()).backward()
    assert all(parameter.grad is not None for parameter in trained)


@pytest.mark.parametrize(
    ("names", "options", "error", "text"),
    [
        ("1x", {}, MisconfigurationException, "fits no name"),
        ("0.bias", {}, MisconfigurationException, r"shape \(8,\)"),
        (3, {}, ArgumentTypeError, "names=3"),
        ("0", {"train": 3}, ArgumentTypeError, "train=3"),
        ("0", {"rank": 0}, MisconfigurationException, "rank=0"),
        ("0", {"rank": 6}, MisconfigurationException, "less than 6"),
        ("0", {"alpha": 0.0}, MisconfigurationException, "alpha=0.0"),
    ],
)
def test_refused(names, options, error, text):
    with pytest.raises(error, match=text):
        lora(network(), names, **{"rank": 2, **options})


def test_a_star_leaves_vectors_as_they_are():
    model = lora(network(), "*", rank=2)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert len(trained) == 4
    assert all("lora_" in name for name in trained)


def test_a_further_call_leaves_what_is_trained():
    model = lora(lora(network(), "0", rank=2, train=["0.bias"]), "3", rank=1)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    changes = [f"{layer}.parametrizations.weight.0.lora_{letter}" for layer in "03" for letter in "AB"]
    assert sorted(trained) == sorted(["0.bias", *changes])


@pytest.mark.parametrize("names", ["0", "*"])
def test_a_tied_matrix_is_refused(names):
    """Merging would add the change to the layer that has none, or twice."""
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9, bias=False), nn.Linear(9, 9))
    model[1].weight = model[0].weight
    with pytest.raises(MisconfigurationException, match=r"'0\.weight', which is tied to '1\.weight'") as error:
        lora(model, names, rank=2)
    assert "Fix: patterns that leave it out" in str(error.value)
    assert all(parameter.requires_grad for parameter in model.parameters())
    lora(model, "2", rank=2)


def test_twice_and_merged_without_a_change():
    model = lora(network(), "0", rank=2)
    with pytest.raises(MisconfigurationException, match="parametrized already"):
        lora(model, "0.*original", rank=2)
    with pytest.raises(MisconfigurationException, match="no matrix has a low-rank change"):
        merge_lora(network())
