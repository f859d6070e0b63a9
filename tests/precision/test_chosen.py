"""Inputs that are cast and modules that stay in float32, against loops by hand, bit for bit."""

from __future__ import annotations

import copy
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lightlib import Fabric
from lightlib.callbacks import LambdaCallback
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from lightlib.precision.chosen import cast_chosen
from tests.runs import plain
from tests.runs.plain import batches, momentum, quiet_trainer, same_weights

HALF = torch.bfloat16


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Sequential(nn.Linear(8, 3)))


class Net(plain.Net):
    """Weighs the samples, and notes the types of its inputs."""

    def __init__(self):
        super().__init__(momentum, net=network())
        self.seen = []

    def training_step(self, batch, batch_idx):
        x, y, weight = batch
        self.seen.append((x.dtype, weight.dtype))
        return (cross_entropy(self.net(x).float(), y, reduction="none") * weight).mean()


def data(n=6):
    return [(x, y, torch.rand(len(x), generator=torch.Generator().manual_seed(3))) for x, y in batches(n)]


def fit(precision, module=None, path=None, **arguments):
    module = module or Net()
    trainer = quiet_trainer(plugins=precision, **arguments)
    trainer.fit(module, data(), ckpt_path=path)
    return module, trainer


def by_hand(forward, net, cast_x=False, cast_weight=False):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for x, y, weight in data():
        optimizer.zero_grad()
        scores = forward(net, x.to(HALF) if cast_x else x)
        losses = cross_entropy(scores.float(), y, reduction="none")
        (losses * (weight.to(HALF) if cast_weight else weight)).mean().backward()
        optimizer.step()
    return net


def autocast(net, x):
    with torch.autocast("cpu", HALF):
        return net(x)


def half_but_norm(net, x):
    return net[3](net[2](net[1](net[0](x).float()).to(HALF)))


def autocast_but_norm(net, x):
    with torch.autocast("cpu", HALF):
        x = net[0](x)
        with torch.autocast("cpu", enabled=False):
            x = net[1](x.float())
        return net[3](net[2](x))


class TestInputs:
    @pytest.mark.parametrize(
        ("make", "chosen"),
        [
            (HalfPrecision, [0]),  # without it torch refuses: float32 into layers of bfloat16
            (HalfPrecision, [0, 2]),
            (MixedPrecision, [0]),
            (MixedPrecision, [2]),
            (MixedPrecision, [0, 2]),
        ],
    )
    def test_only_the_chosen_are_cast(self, make, chosen):
        true = make is HalfPrecision
        module, _ = fit(make("bf16-true" if true else "bf16-mixed", inputs_to_half=chosen))
        dtypes = [HALF if index in chosen else torch.float32 for index in (0, 2)]
        assert module.seen == [tuple(dtypes)] * 6
        net = network().to(HALF) if true else network()
        plain = by_hand((lambda net, x: net(x)) if true else autocast, net, 0 in chosen, 2 in chosen)
        assert same_weights(module.net, plain)

    def test_without_it_all_or_none(self):
        assert fit(HalfPrecision("bf16-true"))[0].seen[0] == (HALF, HALF)
        assert fit(MixedPrecision("bf16-mixed"))[0].seen[0] == (torch.float32, torch.float32)

    def test_forms_of_batches(self):
        one = torch.ones(2)
        assert cast_chosen(one, [0], HALF).dtype is HALF
        pair = namedtuple("pair", "x y")(one, one)  # noqa: PYI024  a batch of torch's default_collate
        cast = cast_chosen(pair, [1], HALF)
        assert type(cast) is type(pair)
        assert (cast.x.dtype, cast.y.dtype) == (torch.float32, HALF)
        named = cast_chosen({"x": [one, one], "y": one, "n": torch.tensor(1)}, ["x", "n"], HALF)
        assert [part.dtype for part in named["x"]] == [HALF, HALF]
        assert (named["y"].dtype, named["n"].dtype) == (torch.float32, torch.int64)
        record = dataclass(type("Record", (), {"__annotations__": {"x": object, "y": object}}))(one, one)
        assert cast_chosen(record, ["x"], HALF).x.dtype is HALF
        assert record.x.dtype is torch.float32

    @pytest.mark.parametrize(
        ("chosen", "text"),
        [
            ([3], r"(?s)holds 3, and a batch is a tuple with the entries \[0, 1, 2\].*inputs_to_half=\[0\]"),
            (["image"], r"holds 'image', and a batch is a tuple"),
        ],
    )
    def test_an_entry_that_is_not_there(self, chosen, text):
        module = Net()
        with pytest.raises(MisconfigurationException, match=text):
            fit(HalfPrecision("bf16-true", inputs_to_half=chosen), module)
        assert module.seen == []

    def test_of_fabric_by_place_and_by_name(self):
        class Takes(nn.Module):
            def forward(self, x, y, mask=None):
                return [str(one.dtype) for one in (x, y, mask)]

        fabric = Fabric(accelerator="cpu", plugins=[MixedPrecision("bf16-mixed", inputs_to_half=[1, "mask"])])
        one = torch.ones(1)
        assert fabric.setup(Takes())(one, one, mask=one) == ["torch.float32", "torch.bfloat16", "torch.bfloat16"]


class TestModules:
    @pytest.mark.parametrize("chosen", [["net.1"], [nn.BatchNorm1d], ["net.1", nn.BatchNorm1d]])
    @pytest.mark.parametrize("make", [HalfPrecision, MixedPrecision])
    def test_they_compute_in_float32(self, make, chosen):
        true = make is HalfPrecision
        module, _ = fit(make("bf16-true" if true else "bf16-mixed", float32_modules=chosen))
        if true:
            plain = by_hand(half_but_norm, half(network()), cast_x=True, cast_weight=True)
        else:
            plain = by_hand(autocast_but_norm, network())
        assert same_weights(module.net, plain)
        other, _ = fit(make("bf16-true" if true else "bf16-mixed"))
        assert true or not same_weights(module.net, other.net)

    def test_dtypes_and_values_of_parameters(self):
        module = Net()
        module.net[1].weight.data.fill_(1 + 2**-20)  # bfloat16 does not have it
        before = module.net[1].weight
        precision = HalfPrecision("bf16-true", float32_modules=["net.1", "net.*.0"])
        assert precision.convert(module) is module
        assert [p.dtype for p in module.parameters()] == [HALF] * 2 + [torch.float32] * 4
        assert module.net[1].running_mean.dtype is torch.float32
        assert module.net[1].weight is before
        assert before[0] == 1 + 2**-20
        x = torch.randn(4, 6, dtype=HALF)
        assert module.net(x).dtype is HALF
        assert copy.deepcopy(module).net(x).equal(module.net(x))
        assert precision.convert(module).net(x).equal(module.net(x))  # a second fit

    def test_a_later_precision_undoes_it(self):
        module, _ = fit(MixedPrecision("bf16-mixed", float32_modules=["net.1"]))
        fit(MixedPrecision("bf16-mixed"), module)
        assert "forward" not in vars(module.net[1])

    def test_a_forward_of_the_users_own_is_kept(self):
        net = nn.Sequential(nn.Linear(2, 2))
        kept = vars(net[0])["forward"] = lambda x: x * 2
        MixedPrecision("bf16-mixed", float32_modules=["0"]).convert(net)
        assert net(torch.ones(1, 2)).tolist() == [[2.0, 2.0]]
        MixedPrecision("bf16-mixed").convert(net)
        assert vars(net[0])["forward"] is kept

    def test_a_resumed_run_ends_with_the_same_bits(self, tmp_path):
        precision = HalfPrecision("bf16-true", inputs_to_half=[0], float32_modules=[nn.BatchNorm1d])
        save = LambdaCallback(
            on_train_batch_end=lambda trainer, *_: trainer.save_checkpoint(tmp_path / f"{trainer.global_step}.ckpt")
        )
        whole, _ = fit(precision, callbacks=[save])
        module, _ = fit(precision, path=tmp_path / "3.ckpt")
        assert module.seen == whole.seen  # what is in the module is resumed, too
        assert same_weights(module, whole)

    @pytest.mark.parametrize(
        ("chosen", "text"),
        [
            (["net.7"], r"(?s)holds 'net\.7', which matches no module of Net.*for instance 'net\.3'"),
            (["nett.*"], r"holds 'nett\.\*', which matches no module"),
            ([nn.LayerNorm], r"(?s)holds LayerNorm, and Net has no module of this class.*BatchNorm1d"),
        ],
    )
    def test_a_module_that_is_not_there(self, chosen, text):
        module = Net()
        with pytest.raises(MisconfigurationException, match=text):
            fit(MixedPrecision("bf16-mixed", float32_modules=chosen), module)
        assert module.seen == []


def half(net):
    net = net.to(HALF)
    net[1].float()
    return net


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: HalfPrecision("bf16-true", inputs_to_half=0), ArgumentTypeError, r"inputs_to_half=0 \(int\)"),
        (lambda: HalfPrecision("bf16-true", inputs_to_half=[-1]), ArgumentTypeError, r"(?s)\[-1\].*indices from 0"),
        (lambda: HalfPrecision("bf16-true", inputs_to_half=[]), MisconfigurationException, "which casts no input"),
        (lambda: HalfPrecision("bf16-true", float32_modules="net"), ArgumentTypeError, "(?s)'net'.*a list of names"),
        (lambda: HalfPrecision("bf16-true", float32_modules=[3]), ArgumentTypeError, "a list of names of modules"),
        (
            lambda: Precision("32-true", *[torch.float32] * 3, inputs_to_half=[0]),
            MisconfigurationException,
            "(?s)inputs_to_half was given for precision '32-true'.*computes in float16 or bfloat16",
        ),
        (lambda: DoublePrecision(float32_modules=["a"]), TypeError, "float32_modules"),
    ],
)
def test_what_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize("name", ["inputs_to_half", "float32_modules"])
@pytest.mark.parametrize("strategy", ["fsdp", "tensor", "pipeline"])
def test_strategies_that_shard_are_refused(name, strategy):
    precision = HalfPrecision("bf16-true", **{name: [0] if name == "inputs_to_half" else ["net.1"]})
    with pytest.raises(MisconfigurationException, match=f"(?s)with {name} was given with .*strategy='ddp'"):
        quiet_trainer(strategy=strategy, devices=2, plugins=precision)
