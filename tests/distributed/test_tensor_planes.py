"""Tensor parallelism in two dimensions and more: one device's numbers, and the bytes of each process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.strategies import TensorParallelStrategy
from lightlib.strategies.axes.tensor import Tensor, planes
from lightlib.strategies.axes.transforms import Compile
from lightlib.strategies.mesh import MeshStrategy
from tests.distributed.runs import WIDTH, WORDS, Block, Decoder, assert_same, seeded, texts, trained
from tests.processes.ranks import ranks
from tests.runs.quiet import QUIET

pytestmark = pytest.mark.processes

OPTIONS = {"gradient_clip_val": 0.5, "accumulate_grad_batches": 2}
PLAN = {
    "blocks.*.attention.[qkv]": "colwise", "blocks.*.attention.o": "rowwise",
    "blocks.*.network.gate": "colwise", "blocks.*.network.up": "colwise", "blocks.*.network.down": "rowwise",
}  # fmt: skip


def local(parameter):
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def run(rank, size, strategy, plan, options):
    module = seeded(Decoder, plan)
    result = trained(module, strategy(), size, **OPTIONS, **options)
    result["heads"] = module.blocks[0].attention.num_heads
    result["held"] = {name: local(parameter).numel() for name, parameter in module.named_parameters()}
    return result


def two():
    return TensorParallelStrategy(mode="2d")


def two_with_dims():
    return MeshStrategy(tensor=Tensor(4, mode="2d", dims=(2, 2)), activation_checkpointing=True)


def two_compiled():
    return MeshStrategy(tensor=Tensor(4, mode="2d"), compile=Compile(backend="aot_eager"))


def two_with_depth():
    return TensorParallelStrategy(4, mode="2.5d", depth=2)


def three():
    return TensorParallelStrategy(4, mode="3d", depth=2)


def wide():
    return MeshStrategy(tensor=Tensor(8, mode="2d", dims=(2, 4)))


CASES: dict[str, tuple[int, Any, Any, dict[str, Any]]] = {
    "2d, found": (4, two, None, {}),
    "2d, planned": (4, two_with_dims, {"tensor": PLAN}, {}),
    "2d, compiled": (4, two_compiled, None, {}),
    "2.5d": (8, two_with_depth, None, {}),
    "3d": (8, three, None, {}),
    "2 x 4": (8, wide, None, {}),
}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[pytest.mark.slow] * (size > 4)) for name, (size, *_) in CASES.items()]
)
def test_a_decoder_trains_as_on_one_device(case):
    size, strategy, plan, options = CASES[case]
    alone = trained(seeded(Decoder), **OPTIONS, **options)
    found = ranks(size, run, size, strategy, plan, options)
    assert_same(alone, found[0])
    assert found[0]["heads"] == 2
    full = {name: value.numel() for name, value in alone["weights"].items()}
    shards = size if case != "2.5d" else 4
    for one in found:
        for name, held in one["held"].items():
            if name.endswith("weight") and ("attention" in name or "network" in name):
                assert held * shards == full[name], name


def run_reduced(rank):
    return trained(seeded(Decoder), two(), 4, precision="bf16-mixed", **OPTIONS)


def test_reduced_precision():
    assert_same(trained(seeded(Decoder), precision="bf16-mixed", **OPTIONS), ranks(4, run_reduced)[0], 5e-2)


def fitted(strategy, devices, epochs, folder=None, ckpt_path=None):
    module = seeded(Decoder)
    trainer = L.Trainer(**QUIET, strategy=strategy, devices=devices, max_epochs=epochs, num_sanity_val_steps=0)
    trainer.fit(module, DataLoader(texts(), 8), DataLoader(texts(), 8), ckpt_path=ckpt_path)
    if folder is not None:
        trainer.save_checkpoint(f"{folder}/first.ckpt")
    return {name: value.clone() for name, value in trainer.strategy.module_state().items()}


def run_stopped(rank, folder):
    fitted(two(), 4, 1, folder)
    return fitted(two(), 4, 2), fitted(two(), 4, 2, ckpt_path=f"{folder}/first.ckpt")


def test_a_resumed_run_ends_with_the_same_bits_and_one_device_reads_its_checkpoint(tmp_path):
    uninterrupted, resumed = ranks(4, run_stopped, str(tmp_path))[0]
    assert uninterrupted
    for name, value in uninterrupted.items():
        assert torch.equal(resumed[name], value), name
    with pytest.warns(UserWarning, match="written by 4 processes and is resumed by 1"):
        alone = fitted("auto", 1, 2, ckpt_path=tmp_path / "first.ckpt")
    for name, value in alone.items():
        torch.testing.assert_close(value, uninterrupted[name], rtol=1e-5, atol=1e-6)


class Vision(L.Module):
    """A small vision transformer: patches by a convolution, a class token, and positions."""

    def __init__(self):
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, WIDTH, 2, 2), nn.Linear(WIDTH, WORDS)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Parameter(torch.randn(1, 5, WIDTH))
        self.blocks, self.norm = nn.ModuleList(Block(4) for _ in range(2)), nn.LayerNorm(WIDTH)

    def forward(self, words):
        pictures = F.one_hot(words % 2, 6).reshape(len(words), 3, 4, 4).float()
        x = self.patches(pictures).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1][:, 0])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.3, momentum=0.9)


def run_vision(rank):
    return trained(seeded(Vision), two(), 4, **OPTIONS)


def test_a_vision_transformer_trains_as_on_one_device():
    assert_same(trained(seeded(Vision), **OPTIONS), ranks(4, run_vision)[0])


class Pair(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.up, self.down = nn.Linear(6, 12, bias), nn.Linear(12, 8, bias)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def layers(rank, size, dims, bias):
    """Return outputs, and gradients of the input and of all parameters, of a split pair of layers."""
    distributed.init_process_group("gloo", rank=rank, world_size=size)
    pair = seeded(Pair, bias)
    mesh = init_device_mesh("cpu", dims, mesh_dim_names=planes.NAMES)
    planes.split(pair.up, "colwise", mesh)
    planes.split(pair.down, "rowwise", mesh)
    x, output = computed(pair)
    gradients = {name: parameter.grad.full_tensor() for name, parameter in pair.named_parameters()}
    placed = {name: tuple(parameter.to_local().shape) for name, parameter in pair.named_parameters()}
    return output.detach(), x.grad, gradients, placed


def computed(pair):
    x = torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(2)).requires_grad_()
    output = pair(x)
    output.square().sum().backward()
    return x, output


@pytest.mark.parametrize(
    ("size", "dims", "bias"),
    [(4, (2, 2), True), (4, (2, 2), False), pytest.param(8, (4, 2), True, marks=pytest.mark.slow)],
)
def test_linear_layers_forward_and_backward(size, dims, bias):
    pair = seeded(Pair, bias)
    x, wanted = computed(pair)
    for output, gradient, gradients, placed in ranks(size, layers, size, dims, bias):
        torch.testing.assert_close(output, wanted)
        torch.testing.assert_close(gradient, x.grad, rtol=1e-4, atol=1e-4)
        for name, parameter in pair.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-4)
        assert placed["up.weight"] == (12 // dims[0], 6 // dims[1])
        assert placed["down.weight"] == (8 // dims[1], 12 // dims[0])
