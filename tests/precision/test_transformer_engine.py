"""TransformerEnginePrecision with a stand-in for the package: layers, contexts, numbers, errors."""

from __future__ import annotations

import contextlib
import enum
import sys
from types import ModuleType
from typing import ClassVar

import pytest
import torch
from torch import nn

import lightlib
from lightlib import compat, optional
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.precision import TransformerEnginePrecision, named, transformer_engine
from tests.runs.modules import Regression
from tests.runs.quiet import QUIET

QUIET = {**QUIET, "accelerator": "cpu", "max_epochs": 1}
DATA = [torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]


class Linear(nn.Module):
    """Computes as torch's, and notes that it does so within `fp8_autocast`."""

    __module__ = "transformer_engine.pytorch.module.linear"

    def __init__(self, in_features, out_features, bias=True):
        super().__init__()
        self.weight = nn.Parameter(torch.full((out_features, in_features), 9.0))
        self.bias = nn.Parameter(torch.full((out_features,), 9.0)) if bias else None

    def forward(self, x):
        Package.uses.append(Package.within)
        return nn.functional.linear(x, self.weight, self.bias)


class LayerNorm(nn.Module):
    __module__ = "transformer_engine.pytorch.module.layernorm"

    def __init__(self, size, eps=1e-5):
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(size)), nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class DelayedScaling:
    def __init__(self, **given):
        self.given = given


class Package:
    """Notes of the stand-in: the recipe of `fp8_autocast` around each use of a linear layer."""

    uses: ClassVar[list] = []
    within = None


@contextlib.contextmanager
def fp8_autocast(enabled, fp8_recipe):
    before, Package.within = Package.within, fp8_recipe if enabled else None
    try:
        yield
    finally:
        Package.within = before


@pytest.fixture
def package(monkeypatch):
    """A stand-in for transformer_engine, allowed on the CPU."""
    root, common = ModuleType("transformer_engine"), ModuleType("transformer_engine.common")
    recipe, layers = ModuleType("transformer_engine.common.recipe"), ModuleType("transformer_engine.pytorch")
    recipe.DelayedScaling = DelayedScaling
    recipe.Format = enum.Enum("Format", ["E4M3", "E5M2", "HYBRID"])
    layers.Linear, layers.LayerNorm, layers.fp8_autocast = Linear, LayerNorm, fp8_autocast
    root.common, root.pytorch, common.recipe = common, layers, recipe
    for module in (root, common, recipe, layers):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(transformer_engine, "DEVICES", ("cuda", "cpu"))
    monkeypatch.setattr(Package, "uses", [])
    return root


class Net(Regression):
    def __init__(self):
        torch.manual_seed(0)
        last = nn.Sequential(nn.Linear(16, 16, bias=False))
        super().__init__(nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), last))
        with torch.no_grad():
            self.net[1].bias.normal_()

    def loss(self, batch):
        return self.net(batch).float().square().mean()


@pytest.mark.parametrize("compatible", [False, True])
@pytest.mark.parametrize(
    ("name", "dtype"), [("transformer-engine", torch.bfloat16), ("transformer-engine-float16", torch.float16)]
)
def test_a_fit_by_name_has_the_numbers_of_a_plain_loop(package, name, dtype, compatible):
    if compatible:
        compat.install()
    try:
        trainer, module = lightlib.Trainer(precision=name, **QUIET), Net()
        if compatible:
            from lightning.pytorch.plugins import TransformerEnginePrecision as Theirs

            assert isinstance(trainer.precision_plugin, Theirs)
            assert trainer.precision_plugin.precision == name
        trainer.fit(module, DATA)
    finally:
        compat.uninstall()
    assert trainer.precision == name
    assert [type(part) for part in module.net] == [Linear, LayerNorm, nn.Tanh, nn.Sequential]
    assert type(module.net[3][0]) is Linear
    recipe = trainer.precision_plugin.recipe
    assert isinstance(recipe, DelayedScaling)
    assert Package.uses == [recipe] * 6  # two layers, three batches
    plain = Net().to(dtype)
    optimizer = plain.configure_optimizers()
    for batch in DATA:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = plain.net(batch.to(dtype)).float().square().mean()
        loss.backward()
        optimizer.step()
    for ours, expected in zip(module.parameters(), plain.parameters(), strict=True):
        assert ours.dtype is dtype
        assert torch.equal(ours, expected)


def test_fabric_steps_the_layers_that_are_replaced(package):
    fabric = lightlib.Fabric(accelerator="cpu", devices=1, precision="transformer-engine")
    user, plain = Net(), Net().bfloat16()
    module, optimizer = fabric.setup(user.net, user.configure_optimizers())
    expected = plain.configure_optimizers()
    for batch in DATA:
        optimizer.zero_grad()
        expected.zero_grad()
        fabric.backward(module(batch).square().mean())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = plain.net(batch.bfloat16())
        output.float().square().mean().backward()
        optimizer.step()
        expected.step()
    assert len(Package.uses) == 6
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_options(package):
    made = TransformerEnginePrecision(
        weights_dtype=torch.bfloat16, recipe={"fp8_format": "E4M3", "margin": 2}, fallback_compute_dtype=torch.float16
    )
    assert made.recipe.given == {"fp8_format": package.common.recipe.Format.E4M3, "margin": 2}
    assert (made.weights_dtype, made.fallback_compute_dtype) == (torch.bfloat16, torch.float16)
    with made.step_context("cpu")():
        assert torch.get_default_dtype() is torch.bfloat16
        assert torch.get_autocast_dtype("cpu") is torch.float16
        assert Package.within is made.recipe
    own = DelayedScaling()
    assert TransformerEnginePrecision(weights_dtype=torch.float16, recipe=own).recipe is own
    wide = TransformerEnginePrecision(weights_dtype=torch.float32)
    with wide.step_context("cpu")():
        assert not torch.is_autocast_enabled("cpu")


def test_layers_are_replaced_as_they_are_built_only_if_asked(package):
    for replace, kind in ((True, Linear), (None, nn.Linear), (False, nn.Linear)):
        precision = TransformerEnginePrecision(weights_dtype=torch.bfloat16, replace_layers=replace)
        with precision.init_context():
            built = nn.Linear(8, 16)
        assert type(built) is kind
        assert nn.Linear.__module__ == "torch.nn.modules.linear"
        placed = precision.convert(nn.Sequential(built))[0]
        assert type(placed) is (nn.Linear if replace is False else Linear)
        assert placed.weight.dtype is torch.bfloat16


def test_what_does_not_fit_stays(package):
    module = nn.Sequential(nn.Linear(8, 10), nn.Linear(8, 16), nn.LayerNorm((2, 8)), nn.LayerNorm(16, bias=False))
    module[1].weight.requires_grad = False
    module.eval()
    with pytest.warns(UserWarning, match=r"The layer '0' \(8 inputs, 10 outputs\) is not computed in 8 bits"):
        TransformerEnginePrecision(weights_dtype=torch.bfloat16).convert(module)
    assert [type(part) for part in module] == [nn.Linear, Linear, nn.LayerNorm, LayerNorm]
    assert not module[1].weight.requires_grad
    assert not module[1].training
    assert torch.equal(module[3].bias, torch.zeros(16, dtype=torch.bfloat16))
    assert not module[3].bias.requires_grad


class TestErrors:
    def test_without_the_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "transformer_engine", None)
        for make in (
            lambda: named("transformer-engine"),
            lambda: lightlib.Trainer(precision="transformer-engine-float16"),
        ):
            with pytest.raises(
                MisconfigurationException,
                match=r"not installed(.|\n)*pip install 'transformer-engine\[pytorch\]>=1.0', or precision=",
            ):
                make()

    def test_another_device(self, package, monkeypatch):
        monkeypatch.setattr(transformer_engine, "DEVICES", ("cuda",))
        with pytest.raises(MisconfigurationException, match="given with the device 'cpu'"):
            lightlib.Trainer(precision="transformer-engine", **QUIET)

    @pytest.mark.parametrize("strategy", ["fsdp", "tensor", "pipeline", "deepspeed", "zero1"])
    def test_a_strategy_that_shards(self, package, monkeypatch, strategy):
        monkeypatch.setattr(optional, "is_installed", lambda module: True)
        with pytest.raises(MisconfigurationException, match="which shards or divides layers"):
            lightlib.Trainer(precision="transformer-engine", strategy=strategy, devices=2, **QUIET)
        assert lightlib.Trainer(precision="transformer-engine", strategy="ddp", devices=2, **QUIET)

    def test_arguments(self, package):
        with pytest.raises(UnknownNameError, match=r"fp8_format 'E4M4'\. Did you mean 'E4M3'"):
            TransformerEnginePrecision(weights_dtype=torch.bfloat16, recipe={"fp8_format": "E4M4"})
        with pytest.raises(ArgumentTypeError, match="'bf16'"):
            TransformerEnginePrecision(weights_dtype="bf16")
        with pytest.raises(ArgumentTypeError, match=r"fallback_compute_dtype=torch\.int8"):
            TransformerEnginePrecision(weights_dtype=torch.bfloat16, fallback_compute_dtype=torch.int8)
