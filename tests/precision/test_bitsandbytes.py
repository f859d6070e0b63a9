"""BitsandbytesPrecision: layers, numbers on the CPU, checkpoints; without the package, the error."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import lightlib
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.precision import BitsandbytesPrecision
from tests.processes.ranks import ranks
from tests.runs.quiet import QUIET

QUIET = {**QUIET, "accelerator": "cpu", "max_epochs": 1}
MODES = ["nf4", "nf4-dq", "fp4", "fp4-dq", "int8", "int8-training"]
FOUR = MODES[:4]
DATA = [torch.randn(8, 64, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MisconfigurationException, match=r"not installed(.|\n)*pip install 'bitsandbytes>="):
        BitsandbytesPrecision("nf4")


@pytest.fixture
def package():
    """The package bitsandbytes; the test is skipped without it."""
    return pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")


class Net(lightlib.Module):
    """A frozen layer of bitsandbytes', and a head in float32 that is trained."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 1)

    def forward(self, x):
        return self.head(self.body(x).float())

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)


@pytest.mark.parametrize("mode", MODES)
def test_linear_layers_are_replaced_by_those_of_the_mode(package, mode):
    module = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Sequential(nn.Linear(64, 32, bias=False)))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    precision = BitsandbytesPrecision(mode)
    assert precision.convert(module) is module
    assert torch.equal(torch.get_rng_state(), state)
    kind = package.nn.Linear4bit if mode in FOUR else package.nn.Linear8bitLt
    assert isinstance(module[0], kind)
    assert isinstance(module[2][0], kind)
    assert isinstance(module[1], nn.LayerNorm)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    assert module[0].weight.requires_grad is (mode == "int8-training")
    if mode in FOUR:
        assert module[0].weight.quant_type == mode[:3]
        assert module[0].weight.compress_statistics is mode.endswith("dq")
        assert module[0].compute_dtype is precision.dtype
    else:
        assert module[0].state.threshold == 6.0
    first = module[0]
    assert precision.convert(module)[0] is first


def test_ignored_modules_are_prefixes(package):
    module = nn.ModuleDict({name: nn.Sequential(nn.Linear(8, 8)) for name in ("body", "body2", "head")})
    BitsandbytesPrecision("nf4", ignore_modules={"body2", "head.0"}).convert(module)
    assert [type(part[0]).__name__ for part in module.values()] == ["Linear4bit", "Linear", "Linear"]


@pytest.mark.parametrize("mode", FOUR)
def test_a_fit_on_the_cpu_has_the_numbers_of_a_plain_loop(package, mode):
    module = Net()
    precision = BitsandbytesPrecision(mode, torch.float32, {"head"})
    trainer = lightlib.Trainer(plugins=[precision], **QUIET)
    trainer.fit(module, DATA)
    assert module.body[0].weight.dtype is torch.uint8
    plain = Net()
    of_mode = {"quant_type": mode[:3], "compress_statistics": mode.endswith("dq")}
    packed, state = package.functional.quantize_4bit(plain.body[0].weight.data, blocksize=64, **of_mode)
    weight = package.functional.dequantize_4bit(packed, state)
    assert not torch.equal(weight, plain.body[0].weight)
    optimizer = torch.optim.SGD(plain.head.parameters(), lr=0.1)
    for batch in DATA:
        optimizer.zero_grad()
        body = torch.relu(nn.functional.linear(batch, weight, plain.body[0].bias))
        plain.head(body).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(module.head.weight, plain.head.weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(module.head.bias, plain.head.bias, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["nf4", "nf4-dq", "int8"])
def test_checkpoints_resume_and_weights_of_other_precisions_load(package, tmp_path, mode):
    def made(epochs):
        precision = BitsandbytesPrecision(mode, None, {"head"})
        return lightlib.Trainer(plugins=[precision], **{**QUIET, "max_epochs": epochs}), Net()

    full, module = made(2)
    full.fit(module, DATA)
    first, half = made(1)
    first.fit(half, DATA)
    first.save_checkpoint(tmp_path / "half.ckpt")
    second, resumed = made(2)
    second.fit(resumed, DATA, ckpt_path=tmp_path / "half.ckpt")
    assert torch.equal(resumed.head.weight, module.head.weight)
    assert torch.equal(resumed.body[0].weight, module.body[0].weight)
    kept = {"body.0.bias": module.body[0].bias.detach()}  # in 8 bits it has been trained
    resumed.load_state_dict({**Net().state_dict(), **kept})  # not quantized
    assert torch.equal(resumed.body[0].weight, module.body[0].weight)
    assert torch.equal(resumed.body(DATA[0].to(torch.float16)), module.body(DATA[0].to(torch.float16)))


def test_in_8_bits_a_layer_is_close_to_the_one_it_replaces(package):
    module, plain = Net(), Net()
    trainer = lightlib.Trainer(plugins=[BitsandbytesPrecision("int8", None, {"head"})], **QUIET)
    with torch.no_grad():
        (first, *_) = trainer.predict(module, DATA)
        torch.testing.assert_close(first, plain(DATA[0]), rtol=0.1, atol=0.05)
        assert not torch.equal(first, plain(DATA[0]))


def test_fabric(package):
    fabric = lightlib.Fabric(accelerator="cpu", devices=1, plugins=[BitsandbytesPrecision("nf4", torch.float32)])
    module = fabric.setup(nn.Sequential(nn.Linear(64, 64)))
    assert module(DATA[0]).dtype is torch.float32
    assert module.module[0].weight.dtype is torch.uint8


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: BitsandbytesPrecision("nf5"), UnknownNameError, "mode of BitsandbytesPrecision 'nf5'"),
        (lambda: BitsandbytesPrecision("int8", torch.bfloat16), MisconfigurationException, "Expected: torch.float16"),
        (lambda: BitsandbytesPrecision("nf4", torch.int8), ArgumentTypeError, "torch.int8"),
        (lambda: BitsandbytesPrecision("nf4").convert(nn.ReLU()), ArgumentTypeError, "ReLU, which has no torch.nn.Lin"),
        (lambda: lightlib.Trainer(strategy="fsdp", devices=2, plugins=[BitsandbytesPrecision("nf4")], **QUIET),
         MisconfigurationException, "FSDPStrategy, which shards or divides"),
        (lambda: lightlib.Trainer(plugins=[BitsandbytesPrecision("int8-training")], **QUIET),
         MisconfigurationException, "'bitsandbytes-int8-training' was given with the device 'cpu'"),
    ],
)  # fmt: skip
def test_errors_before_training(package, make, kind, text):
    with pytest.raises(kind, match=text):
        make()


def train_by_ddp(rank, folder):
    """Return the head after a run on two ranks that is saved, and after one that resumes it."""
    heads = []
    for epochs, path in ((2, None), (1, None), (2, "half.ckpt")):
        trainer = lightlib.Trainer(
            plugins=[BitsandbytesPrecision("nf4", torch.float32, {"head"})],
            strategy="ddp", devices=2, use_distributed_sampler=False, **{**QUIET, "max_epochs": epochs},
        )  # fmt: skip
        module = Net()
        trainer.fit(module, [batch.chunk(2)[rank] for batch in DATA], ckpt_path=path and f"{folder}/{path}")
        if epochs == 1:
            trainer.save_checkpoint(f"{folder}/half.ckpt")
        assert module.body[0].weight.dtype is torch.uint8
        heads.append(module.head.weight.tolist())
    return heads


@pytest.mark.processes
def test_ddp_has_the_numbers_of_one_device(package, tmp_path):
    (full, _, resumed), other = ranks(2, train_by_ddp, str(tmp_path))
    assert full == resumed == other[0]
    module = Net()
    precision = BitsandbytesPrecision("nf4", torch.float32, {"head"})
    lightlib.Trainer(plugins=[precision], **{**QUIET, "max_epochs": 2}).fit(module, DATA)
    torch.testing.assert_close(torch.tensor(full), module.head.weight.detach(), rtol=1e-5, atol=1e-6)
