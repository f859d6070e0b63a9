"""QuantizationAwareTraining against the calls of torchao, or of a stand-in where it is missing."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lightlib as L
from lightlib import checkpoint, optional
from lightlib.callbacks import ModelCheckpoint, QuantizationAwareTraining
from lightlib.errors import ArgumentTypeError, LightlibError, MisconfigurationException, UnknownNameError
from lightlib.report import LightlibWarning
from tests.processes.ranks import ranks
from tests.runs.modules import Validated
from tests.runs.plain import QUIET, Net, batches, loader, momentum, quiet_trainer, samples

KINDS = ["stand-in", "torchao"]


class Rounded(nn.Linear):
    """Rounds its weight to eighths, and passes gradients on."""

    __module__ = "torchao.stand_in"

    def forward(self, x):
        rounded = self.weight + ((8 * self.weight).round() / 8 - self.weight).detach()
        return nn.functional.linear(x, rounded, self.bias)


def quantize_(module, config, filter_fn=None):
    """Replace layers as torchao does: with the same parameters, and to convert, with rounded ones."""
    for name, part in list(module.named_modules()):
        prepares = config.step == "prepare" and filter_fn(part, name)
        if prepares or (config.step == "convert" and isinstance(part, Rounded)):
            kind = Rounded if prepares else nn.Linear
            made = kind(part.in_features, part.out_features, device="meta")
            made.weight = part.weight if prepares else nn.Parameter((8 * part.weight.detach()).round() / 8)
            made.bias = part.bias
            module.get_submodule(name.rpartition(".")[0]).add_module(name.rpartition(".")[2], made)


def modules_of(kind):
    """The modules of the stand-in; the test is skipped if it needs torchao and that is missing."""
    if kind == "torchao":
        if not optional.is_installed("torchao"):
            pytest.skip("torchao is not installed")
        return {}
    root, package, training = (ModuleType(f"torchao{rest}") for rest in ("", ".quantization", ".quantization.qat"))
    package.quantize_, package.PerGroup = quantize_, int
    package.Int8DynamicActivationIntxWeightConfig = package.IntxWeightOnlyConfig = SimpleNamespace
    training.QATConfig = lambda config, step: SimpleNamespace(base=config, step=step)
    return {each.__name__: each for each in (root, package, training)}


@pytest.fixture(params=KINDS)
def torchao(request, monkeypatch):
    for name, module in modules_of(request.param).items():
        monkeypatch.setitem(sys.modules, name, module)
    return importlib.import_module("torchao.quantization")


def net(dropout=0.0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Dropout(dropout), nn.Linear(64, 32), nn.Linear(32, 3))


def config_of(torchao, step, name="8da4w"):
    training = importlib.import_module("torchao.quantization.qat")
    if name == "int4":
        base = torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=torchao.PerGroup(32))
    else:
        group = {"weight_granularity": torchao.PerGroup(32)}
        base = torchao.Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, **group)
    return training.QATConfig(base, step=step)


def plain_loop(torchao, epochs=2, name="8da4w"):
    """Train as a user of torchao would, the last two layers rounded."""
    model = net()
    torchao.quantize_(model, config_of(torchao, "prepare", name), filter_fn=lambda _, name: name in ("3", "4"))
    optimizer = momentum(model.parameters())
    for x, y in batches(6) * epochs:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def same(one, other):
    return one.keys() == other.keys() and all(one[name].equal(value) for name, value in other.items())


def fitted(*callbacks, ckpt_path=None, dropout=0.0):
    module = Net(momentum, net=net(dropout))
    options = {"max_epochs": 2, "callbacks": list(callbacks), "enable_checkpointing": True}
    quiet_trainer(**options).fit(module, loader(24), ckpt_path=ckpt_path)
    return module


@pytest.mark.parametrize("name", ["8da4w", "int4"])
def test_a_run_has_the_bits_of_torchaos_own_calls_and_converts(torchao, tmp_path, name):
    callback = QuantizationAwareTraining(name, layers=["net.3", "net.4"])
    module, expected = fitted(callback, ModelCheckpoint(tmp_path)), plain_loop(torchao, name=name)
    assert same(module.net.state_dict(), expected.state_dict())
    rounded, unrounded = plain_loop(torchao, 0), net()
    x = samples(5)[0]
    assert not rounded.eval()(x).equal(unrounded.eval()(x))
    converted = callback.convert(module.eval())
    assert module.net(x).equal(expected.eval()(x))
    torchao.quantize_(expected, config_of(torchao, "convert", name))
    assert converted.net(x).equal(expected(x))
    assert [type(part) for part in converted.net] == [type(part) for part in net()]
    torch.testing.assert_close(converted.net(x), module.net(x))
    assert type(module.net[3]) is not nn.Linear  # it is trained on
    assert same(module.net.state_dict(), plain_loop(torchao, name=name).state_dict())


def test_a_config_of_torchao_is_passed_on(torchao):
    config = config_of(torchao, "prepare")
    config = config.base_config if hasattr(config, "base_config") else config.base
    module = fitted(QuantizationAwareTraining(config, layers="net.[34]"))
    assert same(module.net.state_dict(), plain_loop(torchao).state_dict())


def test_all_layers_but_subclasses_are_chosen_by_default(torchao):
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(32, 2), "head": nn.Linear(32, 3)})
    assert QuantizationAwareTraining().prepare(model) == ["head"]
    replaced = model["head"]
    assert QuantizationAwareTraining().prepare(model) == ["head"]  # a second run
    assert model["head"] is replaced


def test_a_resumed_run_has_the_same_bits(torchao, tmp_path):
    def run(group_size, ckpt_path=None):
        saver = ModelCheckpoint(tmp_path, every_n_train_steps=4, save_top_k=-1, filename="{step}")
        return fitted(
            QuantizationAwareTraining(layers="net.[34]", group_size=group_size), saver, ckpt_path=ckpt_path, dropout=0.2
        )

    first = run(32)
    assert same(first.state_dict(), run(32, tmp_path / "step=4.ckpt").state_dict())
    with pytest.warns(LightlibWarning, match=r"resumes with .*'group_size': 16.* was trained with .*'group_size': 32"):
        run(16, tmp_path / "step=4.ckpt")


def test_a_program_without_the_callback_loads_the_checkpoint(torchao, tmp_path):
    callback, saver = QuantizationAwareTraining(layers="net.[34]"), ModelCheckpoint(tmp_path)
    module = fitted(callback, saver)
    saved = checkpoint.load(saver.best_model_path)["state_dict"]
    assert list(saved) == list(Net(net=net()).state_dict())
    values = torch.load(saver.best_model_path, weights_only=False)["lightlib"]["user"]["values"]
    assert not any("quantizer" in place for place in values)  # scales that each forward computes are no state
    other, x = Validated(momentum, net=net()), samples(5)[0]
    quiet_trainer().validate(other, loader(8), ckpt_path=saver.best_model_path)
    assert same(other.state_dict(), module.state_dict())
    assert type(other.net[3]) is nn.Linear
    assert callback.convert(other.eval()).net(x).equal(callback.convert(module.eval()).net(x))


def test_evaluations_round(torchao):
    losses = []
    for callbacks in ([], [QuantizationAwareTraining(layers="net.[34]")]):
        trainer = quiet_trainer(callbacks=callbacks)
        losses.append(trainer.validate(Validated(net=net()), loader(8), verbose=False)[0]["val_loss"])
    model = plain_loop(torchao, 0).eval()
    x, y = samples(8)
    assert losses[1] == pytest.approx(cross_entropy(model(x), y).item(), rel=1e-6)
    assert losses[0] != losses[1]


def without_package():
    QuantizationAwareTraining().prepare(nn.Sequential(nn.Linear(32, 3)))


def test_a_missing_package_is_named(monkeypatch):
    for name in ("torchao", "torchao.quantization"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MisconfigurationException, match=r"torchao, which is not installed(?s:.)*pip install 'torchao"):
        without_package()


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"config": "8da4"}, UnknownNameError, "'8da4w'"),
        ({"layers": 5}, ArgumentTypeError, "layers=5"),
        ({"layers": []}, ArgumentTypeError, r"layers=\[\]"),
        ({"group_size": 0}, MisconfigurationException, "group_size=0"),
        (
            {"layers": ["net.4", "nett.3"]},
            MisconfigurationException,
            r"'nett.3' matches no linear layer of Net. D",
        ),
        ({"layers": "net.1"}, MisconfigurationException, r"(?s)'net.1' matches no.*layers are net.0, net.3, net.4"),
        ({}, MisconfigurationException, r"(?s)group_size=32\): 'net.0' has 6 inputs.*layers=\[…\] without net.0"),
    ],
)
def test_bad_arguments(arguments, kind, message):
    with pytest.raises(kind, match=message):
        fitted(QuantizationAwareTraining(**arguments))


def test_a_config_that_torchao_does_not_train():
    modules_of("torchao")
    with pytest.raises(MisconfigurationException, match=r"config=7\): torchao cannot prepare Net: Unexpected"):
        fitted(QuantizationAwareTraining(7, layers="net.3"))


def test_layers_of_configure_model_are_refused(torchao):
    module = Net(net=nn.Sequential(nn.Linear(32, 3)))
    module.configure_model = lambda: module.add_module("late", nn.Linear(32, 3))
    with pytest.raises(MisconfigurationException, match="has not changed late, which configure_model of Net builds"):
        quiet_trainer(callbacks=[QuantizationAwareTraining()]).fit(module, loader(8))


# several processes
def trained(rank, kind, strategy, steps=12):
    sys.modules.update(modules_of(kind))
    module, callback = Net(momentum, net=net()), QuantizationAwareTraining(layers="net.[34]")
    options = QUIET | {"enable_checkpointing": True, "max_steps": steps, "strategy": strategy, "devices": 2}
    saver = ModelCheckpoint("saved", every_n_train_steps=3)
    trainer = L.Trainer(**options, max_epochs=-1, callbacks=[callback, saver])
    trainer.fit(module, loader(24, 2))
    if strategy == "fsdp":
        with pytest.raises(MisconfigurationException, match="Net, of which this process has a shard"):
            callback.convert(module)
    return {name.removeprefix("net."): value for name, value in trainer.strategy.module_state().items()}


@pytest.mark.processes
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp"])
def test_strategies_compute_what_a_loop_over_parts_of_batches_does(torchao, strategy):
    kind = "torchao" if hasattr(torchao, "__file__") else "stand-in"
    model = plain_loop(torchao, 0)
    optimizer = momentum(model.parameters())
    for x, y in batches(6)[:3]:  # later, sums in another order may round a weight to another number
        optimizer.zero_grad()
        for part in range(2):
            (cross_entropy(model(x[part::2]), y[part::2]) / 2).backward()
        optimizer.step()
    found = ranks(2, trained, kind, strategy, 3)
    torch.testing.assert_close(found[0], dict(model.state_dict()), rtol=1e-5, atol=1e-6)
    assert not found[1] or same(*found)


def refused(rank, strategy):
    with pytest.raises(LightlibError) as caught:  # of one rank, which the other one names
        trained(rank, "stand-in", strategy)
    return str(caught.value)


@pytest.mark.processes
@pytest.mark.parametrize("strategy", ["tensor", "pipeline"])
def test_strategies_that_divide_layers_are_refused(strategy):
    for error in ranks(2, refused, strategy):
        assert "which shards or divides layers" in error
