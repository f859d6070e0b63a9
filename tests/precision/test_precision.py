"""Precision against plain torch: names, conversion, contexts, and the effect of a dtype on a step."""

import collections
import dataclasses
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from lightlib import registry
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.precision import Precision, named
from lightlib.precision import precision as precision_file
from lightlib.report import PossibleUserWarning

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


@pytest.mark.parametrize(
    ("spellings", "dtypes", "scales_loss"),
    [
        ((64, "64", "64-true"), (F64, F64, F64), False),
        ((32, "32", "32-true"), (F32, F32, F32), False),
        ((16, "16", "16-mixed"), (F32, F16, F32), True),
        (("bf16", "bf16-mixed"), (F32, BF16, F32), False),
        (("16-true",), (F16, F16, F16), False),
        (("bf16-true",), (BF16, BF16, BF16), False),
    ],
)
def test_every_spelling(spellings, dtypes, scales_loss):
    for spelling in spellings:
        precision = named(spelling)
        assert precision == Precision.named(spelling)
        assert precision.name == spellings[-1]
        assert (precision.param_dtype, precision.compute_dtype, precision.reduce_dtype) == dtypes
        assert precision.scales_loss is scales_loss
        assert precision.autocasts is precision.name.endswith("mixed")
        assert precision.converts_input is (precision.name in {"64-true", "16-true", "bf16-true"})
        assert hash(precision) == hash(named(spelling))


def test_built_in_names_are_those_of_the_registry():
    for name in registry.BUILT_IN["precision"]:
        if name.startswith(("transformer-engine", "fp8")):  # need a package: test_transformer_engine.py, test_float8.py
            continue
        assert registry.get("precision", name)(name).name == name


@pytest.mark.parametrize(
    ("name", "near"),
    [("bf16-mix", "bf16-mixed"), ("16-treu", "16-true"), (8, ""), ("bf32", ""), ("", "")],
)
def test_an_unknown_name(name, near):
    with pytest.raises(UnknownNameError) as caught:
        named(name)
    assert f"Unknown precision {name!r}." in str(caught.value)
    assert (f"Did you mean {near!r}?" in str(caught.value)) is bool(near)
    assert "'bf16-mixed'" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("fp16", "16"),
        ("FP16", "16"),
        ("fp16-mixed", "16-mixed"),
        ("bfloat16", "bf16"),
        ("fp32", "32"),
        ("half", ""),
        ("mixed", ""),
        ("double", ""),
    ],
)
def test_the_name_of_another_framework_is_never_answered_with_another_dtype(name, near):
    with pytest.raises(UnknownNameError) as caught:
        named(name)
    assert ("Did you mean" in str(caught.value)) is bool(near)
    assert str(caught.value).endswith(f"Fix: Trainer(precision={near or '32-true'!r})")


@pytest.mark.parametrize("name", [True, 16.0, None, F16])
def test_a_name_of_another_type(name):
    with pytest.raises(ArgumentTypeError, match=rf"precision=.* \({type(name).__name__}\)\)"):
        named(name)


def test_the_name_of_an_installed_package(monkeypatch):
    eight = Precision("8-mixed", F32, BF16, F32)
    monkeypatch.setattr(registry, "names", lambda group: ["8-mixed"])
    monkeypatch.setattr(registry, "get", lambda group, name: lambda: eight)
    assert named("8-mixed") is eight
    monkeypatch.setattr(registry, "get", lambda group, name: dict)
    with pytest.raises(ArgumentTypeError, match="returned a dict"):
        named("8-mixed")


def test_what_cannot_be_described():
    with pytest.raises(ArgumentTypeError, match=r"Precision\(param_dtype=torch\.int64"):
        Precision("x", torch.int64, F32, F32)
    with pytest.raises(ArgumentTypeError, match=r"Precision\(reduce_dtype='float32' \(str\)\)"):
        Precision("x", F32, F32, "float32")
    with pytest.raises(MisconfigurationException, match=r"stores torch\.float32 and computes in torch\.float64"):
        Precision("x", F32, F64, F32)
    with pytest.raises(MisconfigurationException, match="does not scale the loss"):
        Precision("x", F32, BF16, F32, scaler={"init_scale": 2.0})
    with pytest.raises(UnknownNameError, match=r"Did you mean 'init_scale'\?"):
        Precision("x", F32, F16, F32, scales_loss=True, scaler={"init_scal": 2.0})


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.linear.weight
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        self.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))

    def forward(self, x):
        return self.tied(self.norm(self.linear(x)))


@pytest.mark.parametrize("name", ["64-true", "16-true", "bf16-true"])
def test_convert_casts_what_is_floating(name):
    precision, model = named(name), Model()
    assert precision.convert(model) is model
    assert model.linear.weight.dtype is precision.param_dtype
    assert model.norm.running_mean.dtype is precision.param_dtype
    assert model.count.dtype is torch.int64
    assert model.norm.num_batches_tracked.dtype is torch.int64
    assert model.phase.dtype is torch.complex64
    assert model.tied.weight is model.linear.weight


@pytest.mark.parametrize("name", ["32-true", "16-mixed", "bf16-mixed"])
def test_convert_leaves_the_others_alone(name):
    model = Model().double()
    parameters = list(model.parameters())
    assert named(name).convert(model) is model
    assert all(
        p is q and p.dtype in {F64, torch.complex64} for p, q in zip(model.parameters(), parameters, strict=True)
    )


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    label: str
    length: int = dataclasses.field(init=False, default=7)


class Labelled(collections.UserDict):
    """As the batch class of transformers: a mapping that is no dict."""


def test_convert_input_looks_everywhere():
    x, y = torch.ones(2), torch.ones(2, dtype=torch.int64)
    default = collections.defaultdict(list, a=x)
    batch = {
        "list": [x, y, (x, y)],
        "pair": Pair(x, y),
        "sample": Sample(x, "a"),
        "ordered": collections.OrderedDict(b=x, a=y),
        "default": default,
        "labelled": Labelled(x=x),
        "packed": pack_sequence([x, x]),
        "mask": y.bool(),
        "complex": torch.ones(1, dtype=torch.complex64),
        "text": "text",
        "none": None,
    }
    cast = named("64-true").convert_input(batch)
    assert [cast["list"][0].dtype, cast["list"][1].dtype, cast["list"][2][0].dtype] == [F64, torch.int64, F64]
    assert isinstance(cast["list"][2], tuple)
    assert isinstance(cast["pair"], Pair)
    assert (cast["pair"].x.dtype, cast["pair"].y.dtype) == (F64, torch.int64)
    assert cast["sample"].x.dtype is F64
    assert (cast["sample"].label, cast["sample"].length) == ("a", 7)
    assert list(cast["ordered"]) == ["b", "a"]
    assert isinstance(cast["ordered"], collections.OrderedDict)
    assert cast["default"].default_factory is list
    assert isinstance(cast["labelled"], Labelled)
    assert cast["labelled"]["x"].dtype is F64
    assert cast["packed"].data.dtype is F64
    assert cast["packed"].batch_sizes.dtype is torch.int64
    assert cast["mask"].dtype is torch.bool
    assert cast["complex"].dtype is torch.complex64
    assert (cast["text"], cast["none"]) == ("text", None)
    assert batch["sample"].x.dtype is F32
    assert default["a"].dtype is F32
    assert batch["list"][0] is x


@pytest.mark.parametrize("name", ["32-true", "16-mixed", "bf16-mixed"])
def test_convert_input_is_identity_for_the_others(name):
    batch = [torch.ones(1, dtype=F64)]
    assert named(name).convert_input(batch) is batch


@pytest.mark.parametrize("name", ["64-true", "16-true", "bf16-true"])
def test_new_tensors_have_the_dtype(name):
    precision = named(name)
    with precision.init_context():
        assert nn.Linear(1, 1).weight.dtype is precision.param_dtype
    make = precision.step_context("cuda")
    for _ in range(2):
        with make():
            assert torch.ones(1).dtype is precision.compute_dtype
    assert torch.get_default_dtype() is F32


def test_default_dtype_comes_back_after_an_error_and_when_nested():
    make = named("64-true").step_context("cpu")
    with make():
        with pytest.raises(IndexError, match="Dimension out of range"), make():
            torch.ones(1).sum(dim=3)
        assert torch.ones(1).dtype is F64
    assert torch.get_default_dtype() is F32


@pytest.mark.parametrize("name", ["32-true", "16-mixed", "bf16-mixed"])
def test_float32_parameters_need_no_init_context(name):
    with named(name).init_context():
        assert torch.ones(1).dtype is F32


def test_32_true_needs_no_context():
    assert named(32).step_context("cpu") is None
    assert named(32).step_context("cuda") is None


@pytest.mark.parametrize("name", ["16-mixed", "bf16-mixed"])
@pytest.mark.filterwarnings("ignore:.*computes in float16 on the CPU")
def test_mixed_is_plain_autocast(name):
    precision = named(name)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)), torch.randn(3, 4)
    with torch.autocast("cpu", dtype=precision.compute_dtype):
        expected = model(x)
    with precision.step_context("cpu")():
        assert torch.is_autocast_cache_enabled() is precision_file._cache_keeps_gradients()
        result = model(x)
    assert result.dtype is precision.compute_dtype
    assert torch.equal(result, expected)
    assert not torch.is_autocast_enabled("cpu")


def test_a_device_that_cannot_autocast():
    with pytest.raises(MisconfigurationException, match="on 'meta' devices, where torch cannot autocast"):
        named("bf16-mixed").step_context("meta")


@pytest.mark.parametrize(("name", "better"), [("16-mixed", "bf16-mixed"), ("16-true", "bf16-true")])
def test_float16_on_the_cpu_warns_once(name, better):
    precision_file._warn_of_float16_on_cpu.cache_clear()
    with pytest.warns(PossibleUserWarning, match=f"precision='{name}' .* slower .* precision='{better}' is fast"):
        named(name).step_context("cpu")
    named(name).step_context("cpu")
    precision_file._warn_of_float16_on_cpu.cache_clear()
    named(name).step_context("cuda")


@pytest.mark.parametrize("name", ["64-true", "bf16-true", "bf16-mixed", "32-true"])
def test_training_is_that_of_plain_torch(name):
    precision = named(name)

    def train(*, ours):
        torch.manual_seed(0)
        x, y = torch.randn(8, 4), torch.randn(8, 1)
        if ours:
            with precision.init_context():
                model = precision.convert(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
            make = precision.step_context("cpu")
            (x, y) = precision.convert_input((x, y))
        else:
            torch.set_default_dtype(precision.param_dtype)
            model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
            torch.set_default_dtype(F32)
            x, y, make = x.to(precision.param_dtype), y.to(precision.param_dtype), None
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            if make is not None:
                with make():
                    loss = (model(x) - y).square().mean()
            else:
                with torch.autocast("cpu", dtype=BF16, enabled=precision.autocasts):
                    loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
        return list(model.parameters())

    for ours, plain in zip(train(ours=True), train(ours=False), strict=True):
        assert ours.dtype is precision.param_dtype
        assert torch.equal(ours, plain)


def test_loss_scaler_only_where_the_loss_is_scaled():
    assert named("bf16-mixed").loss_scaler("cpu") is None
    scaler = named("16-mixed").loss_scaler("cpu")
    assert scaler.grad_scaler.get_scale() == 65536.0
    assert named("16-mixed").loss_scaler("cpu") is not scaler
    given = torch.amp.GradScaler("cpu", init_scale=4.0)
    assert Precision("16-mixed", F32, F16, F32, True, given).loss_scaler("cpu").grad_scaler is given
