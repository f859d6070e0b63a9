"""The tensor axis in several processes: one device's numbers, with and without data processes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.strategies.axes.shard import Shard
from lightlib.strategies.axes.tensor import Tensor
from lightlib.strategies.axes.transforms import Compile
from lightlib.strategies.mesh import MeshStrategy
from tests.distributed.runs import Decoder, assert_same, seeded, texts, trained
from tests.processes.ranks import ranks

pytestmark = pytest.mark.processes

FULL = {
    "words": "vocab", "head": "vocab", "blocks.*.attention.[qkv]": "colwise", "blocks.*.attention.o": "rowwise",
    "blocks.*.network.gate": "colwise", "blocks.*.network.up": "colwise", "blocks.*.network.down": "rowwise",
}  # fmt: skip
CASES = {
    "found by itself": ({}, {}),
    "all layers": ({"tensor": FULL}, {}),
    "sequence": ({"tensor": FULL}, {"sequence_parallel": True}),
    "loss": ({"tensor": FULL, "loss_parallel": True}, {}),
    "sequence and loss": ({"tensor": FULL}, {"sequence_parallel": True, "loss_parallel": True}),
}


def run(rank, plan, axis, sizes, options, tied=False):
    strategy = MeshStrategy(tensor=Tensor(sizes.pop("tensor"), **axis), **sizes)
    devices = 2 * max(1, *sizes.values()) if sizes else 2
    module = seeded(Decoder, plan, tied=tied)
    result = trained(module, strategy, devices, **options)
    result["heads"] = module.blocks[0].attention.num_heads
    return result


@pytest.mark.parametrize("case", CASES)
def test_two_processes_compute_what_one_does(case):
    plan, axis = CASES[case]
    options = {"gradient_clip_val": 0.5, "accumulate_grad_batches": 2}
    alone = trained(seeded(Decoder), **options)
    both = ranks(2, run, plan, axis, {"tensor": 2}, options)
    assert_same(alone, both[0])
    for mine, theirs in zip(both[0]["losses"], both[1]["losses"], strict=True):
        assert mine == theirs
    torch.testing.assert_close(torch.tensor(both[0]["losses"]), torch.tensor(alone["losses"]), rtol=1e-5, atol=1e-6)
    assert both[0]["kinds"] == {"DTensor", "Parameter"}  # those that are not split are plain
    assert both[0]["heads"] == 2


@pytest.mark.parametrize("sizes", [{"shard": 2}, {"replicate": 2}])
def test_it_composes_with_data_processes(sizes):
    plan = {"tensor": FULL, "loss_parallel": True}
    alone = trained(seeded(Decoder, tied=True), gradient_clip_val=0.5)
    four = ranks(4, run, plan, {"sequence_parallel": True}, {"tensor": 2, **sizes}, {"gradient_clip_val": 0.5}, True)
    assert_same(alone, four[0])
    assert four[0]["losses"] == four[1]["losses"] != four[2]["losses"]


def run_with(rank, name):
    """Blocks that are compiled, or computed again, and a module that was built without memory."""
    kinds = {
        "compiled": {"compile": Compile(backend="aot_eager")},
        "computed again": {"activation_checkpointing": True},
        "without memory": {"shard": Shard(1, meta=True)},
    }
    made = Late if name == "without memory" else Decoder
    return trained(seeded(made, {"tensor": FULL}), MeshStrategy(tensor=2, **kinds[name]), 2, gradient_clip_val=0.5)


class Late(Decoder):
    """Builds its layers when the strategy calls configure_model."""

    def __init__(self, plan=None):
        L.Module.__init__(self)
        self.plan, self.lr, self.losses = plan, 0.3, []

    def configure_model(self):
        if not hasattr(self, "words"):
            built = Decoder()
            for name, part in built.named_children():
                self.add_module(name, part)


@pytest.mark.parametrize("name", ["compiled", "computed again", "without memory"])
def test_it_composes_with_transforms(name):
    made = Late if name == "without memory" else Decoder
    alone = trained(seeded(made), gradient_clip_val=0.5)
    assert_same(alone, ranks(2, run_with, name)[0])


class AtOnce(Decoder):
    """Its optimizer steps all parameters at once: plain ones, and split ones, also `by_hand` in configure_model."""

    def __init__(self, how, plan=None, by_hand=False):
        super().__init__(plan)
        self.how, self.by_hand = how, by_hand

    def configure_model(self):
        styles = {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
        for block in self.blocks if self.by_hand else ():
            parallelize_module(block.network, self.device_mesh["tensor"], styles, src_data_rank=None)

    def configure_optimizers(self):
        # the keys' biases have no gradient
        return torch.optim.AdamW(self.parameters(), 1e-3, eps=1e-4, **{self.how: True})


def run_at_once(rank, how, precision, by_hand):
    strategy = MeshStrategy(tensor=2)
    made = seeded(AtOnce, how, None if by_hand else {"tensor": FULL}, by_hand)
    result = trained(made, strategy, 2, precision=precision)
    trainer = L.Trainer(accelerator="cpu", strategy=strategy, devices=2, logger=False, enable_progress_bar=False)
    module = strategy.module
    result["prediction"] = trainer.strategy.predict_step((torch.arange(8)[None],), 0).detach()
    assert isinstance(module, AtOnce)
    return result


@pytest.mark.filterwarnings("ignore:.*computes in float16 on the CPU")
@pytest.mark.parametrize(
    ("how", "precision", "tolerance", "by_hand"),
    [
        ("foreach", "32-true", 1e-5, False),
        ("fused", "bf16-mixed", 3e-2, False),
        ("foreach", "16-mixed", 3e-2, False),
        ("fused", "32-true", 1e-5, True),
        ("foreach", "16-mixed", 3e-2, True),
    ],
)
def test_optimizers_that_step_all_at_once_and_lower_precision(how, precision, tolerance, by_hand):
    alone = trained(seeded(AtOnce, how), precision=precision)
    both = ranks(2, run_at_once, how, precision, by_hand)
    assert_same(alone, both[0], tolerance)
    assert torch.equal(both[0]["prediction"], both[1]["prediction"])


NETWORKS = {"gate": "colwise", "up": "colwise", "down": "rowwise"}


def run_and_loop(rank, precision):
    """Return the weights of a run, and those of a loop with torch's functions."""
    plan = {f"blocks.*.network.{name}": style for name, style in NETWORKS.items()}
    run = trained(seeded(Decoder, {"tensor": plan}), MeshStrategy(tensor=2), 2, precision=precision)["weights"]
    net, mesh = seeded(Decoder), init_device_mesh("cpu", (2,))
    kinds = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
    for block in net.blocks:
        parallelize_module(block.network, mesh, {name: kinds[style]() for name, style in NETWORKS.items()})
    optimizer = net.configure_optimizers()
    for text, following in [*DataLoader(texts(), 8)] * 2:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
            loss = F.cross_entropy(net(text).flatten(0, 1), following.flatten())
        loss.backward()
        optimizer.step()
    loop = {name: p.full_tensor() if isinstance(p, DTensor) else p for name, p in net.named_parameters()}
    return run, {name: value.detach().clone() for name, value in loop.items()}


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_bits_are_those_of_a_loop_by_hand(precision):
    run, loop = ranks(2, run_and_loop, precision)[0]
    assert run.keys() == loop.keys()
    for name, value in loop.items():
        assert torch.equal(run[name], value), name


class Normed(L.Module):
    """Its norms see only a part of the heads."""

    def __init__(self, plan):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.norm, self.plan = nn.LayerNorm(2), plan

    def parallel_plan(self):
        return {"tensor": self.plan}

    def training_step(self, batch, batch_idx):
        x = F.one_hot(batch[0] % 8, 8).float()
        q, k, v = (layer(x).unflatten(-1, (-1, 2)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        x = F.scaled_dot_product_attention(self.norm(q), self.norm(k), v).transpose(1, 2).flatten(2)
        return self.o(x).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.5)


def run_normed(rank, plan):
    return trained(
        seeded(Normed, {**dict.fromkeys("qkv", "colwise"), "o": "rowwise", **plan}), MeshStrategy(tensor=2), 2
    )


def test_a_layer_that_sees_only_a_part_is_found_by_its_gradients():
    with pytest.raises(AssertionError, match=r"The gradient of norm\.weight differs over the processes of tensor=2"):
        ranks(2, run_normed, {})
    assert_same(trained(seeded(Normed, {})), ranks(2, run_normed, {"norm": "sequence"})[0])


class Torchs(L.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.words = nn.Embedding(32, 16)

    def training_step(self, batch, batch_idx):
        return self.layer(self.words(batch[0])).square().mean() + self.layer(self.words(batch[1])).mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layer(self.words(batch[0])).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def run_torchs(rank):
    return trained(seeded(Torchs), MeshStrategy(tensor=2), 2)


def test_torchs_transformer_layers_train_and_evaluate():
    assert_same(trained(seeded(Torchs)), ranks(2, run_torchs)[0])


def run_uneven(rank):
    module = seeded(Decoder, {"tensor": FULL, "loss_parallel": True})
    trained(module, MeshStrategy(tensor=Tensor(2, sequence_parallel=True)), 2, data=texts(length=7))


def test_tokens_that_do_not_divide_are_refused():
    with pytest.raises(AssertionError, match="7 tokens cannot be split over tensor=2"):
        ranks(2, run_uneven)
