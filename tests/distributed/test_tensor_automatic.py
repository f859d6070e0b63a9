"""Plans that the tensor axis finds itself: one device's numbers, and errors in place of wrong ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Shard as TensorShard
from torch.nn import functional as F

import lightlib as L
from lightlib.strategies.axes.shard import Shard
from lightlib.strategies.axes.tensor import Tensor
from lightlib.strategies.axes.transforms import Compile
from lightlib.strategies.mesh import MeshStrategy
from tests.distributed.runs import Decoder, assert_same, seeded, trained
from tests.distributed.test_tensor import Late
from tests.processes.ranks import ranks
from tests.strategies.axes.tensor.test_proposal import Attention, Gated

pytestmark = pytest.mark.processes

SHARDS = (TensorShard(0), TensorShard(1))
OPTIONS = {"gradient_clip_val": 0.5, "accumulate_grad_batches": 2}


class OwnNames(L.Module):
    """Layers with names that mean nothing, dropout, and a buffer that a forward changes."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.words = nn.Embedding(32, 4)
        self.into, self.one, self.two, self.out = nn.Linear(4, 8), Attention(), Gated(), nn.Linear(4, 32)
        self.back, self.drop = nn.Linear(8, 4), nn.Dropout(dropout)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        x = self.two(self.back(self.one(self.into(self.words(x)))))
        return self.out(self.drop(x))

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]).flatten(0, 1), batch[1].flatten())

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.3, momentum=0.9)


class OverBlocks(OwnNames):
    """Pairs of layers in two blocks, and layers that the module itself holds."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4))
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x):
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x + self.down(self.up(x).tanh()))


CASES = {
    "pairs over blocks": (OverBlocks, {}, {}),
    "own names": (OwnNames, {}, {}),
    "decoder, sequence": (Decoder, {"sequence_parallel": True}, {}),
    "decoder, compiled": (Decoder, {}, {"compile": Compile(backend="aot_eager")}),
    "decoder, computed again": (Decoder, {}, {"activation_checkpointing": True}),
    "without memory": (Late, {}, {"shard": Shard(1, meta=True)}),
}


def run(rank, case):
    make, axis, others = CASES[case]
    strategy = MeshStrategy(tensor=Tensor(2, **axis), **others)
    module = seeded(make)
    result = trained(module, strategy, 2, **OPTIONS)
    result["split"] = {
        name
        for name, parameter in module.named_parameters()
        if isinstance(parameter, DTensor)
        and dict(zip(parameter.device_mesh.mesh_dim_names, parameter.placements, strict=True)).get("tensor") in SHARDS
    }
    return result


@pytest.mark.parametrize("case", CASES)
def test_two_processes_compute_what_one_does(case):
    alone = trained(seeded(CASES[case][0]), **OPTIONS)
    both = ranks(2, run, case)
    assert_same(alone, both[0])
    if case == "own names":
        assert both[0]["split"] == {
            *(f"one.{name}.{kind}" for name in ("one", "two", "three") for kind in ("weight", "bias")),
            *(f"two.{name}.{kind}" for name in "ab" for kind in ("weight", "bias")),
            "one.last.weight", "two.c.weight",
        }  # fmt: skip


class Staged(OwnNames):
    """Layers in a row, which a pipeline can cut."""

    def __init__(self):
        super().__init__()
        del self.calls
        self.one = self.two = self.back = self.into = self.drop = None
        self.row = nn.Sequential(self.words, nn.Linear(4, 8), Attention(), nn.Linear(8, 4), Gated(), Gated(), self.out)
        self.words = self.out = None

    def forward(self, x):
        return self.row(x)


def run_four(rank, sizes, make, precision):
    return trained(seeded(make), MeshStrategy(tensor=2, **sizes), 4, precision=precision, **OPTIONS)


@pytest.mark.parametrize(
    ("sizes", "make", "precision", "tolerance"),
    [
        ({"shard": 2}, Decoder, "32-true", 1e-5),
        ({"shard": 2}, Decoder, "bf16-mixed", 5e-2),
        ({"shard": 2}, OverBlocks, "32-true", 1e-5),
        ({"pipeline": 2}, Staged, "32-true", 1e-5),
    ],
)
def test_it_composes_with_shards_and_stages(sizes, make, precision, tolerance):
    alone = trained(seeded(make), precision=precision, **OPTIONS)
    assert_same(alone, ranks(4, run_four, sizes, make, precision)[0], tolerance)


class Row(OwnNames):
    """Layers in one row: the part that is split has none that FSDP gathers at once."""

    def __init__(self):
        super().__init__()
        del self.calls
        self.one = self.two = self.back = self.into = self.drop = None
        blocks = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4)]
        self.row = nn.Sequential(self.words, *blocks, self.out)
        self.words = self.out = None

    def forward(self, x):
        return self.row(x)


def run_two(rank, make, precision):
    return trained(seeded(make), MeshStrategy(tensor=2), 2, precision=precision, **OPTIONS)


def test_the_first_forward_compares_in_the_dtype_of_the_run():
    alone = trained(seeded(Row), precision="bf16-mixed", **OPTIONS)
    assert_same(alone, ranks(2, run_two, Row, "bf16-mixed")[0], 5e-2)


class Switched(Gated):
    mixed = False

    def forward(self, x):
        y = self.a(x)
        return self.c(F.normalize(y, dim=-1) if self.mixed else y.relu()) + self.b(x).mean()


class Changes(OwnNames):
    """After the plan was made, its forward takes another way: features are mixed between the layers."""

    def __init__(self):
        super().__init__()
        self.two = Switched()

    def on_train_start(self):
        self.two.mixed = True


class UsedAlone(OwnNames):
    def training_step(self, batch, batch_idx):
        x = self.words(batch[0])
        return self.two.c(self.two.a(x)).square().mean()


def run_wrong(rank, make):
    trained(seeded(make), MeshStrategy(tensor=2), 2, limit_val_batches=0)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Changes, r"Split over the tensor axis, two does not compute what it computes in full: a difference of "),
        (Changes, r"The layers two\.a, two\.c were split without a plan\. Nothing has been trained yet"),
        (UsedAlone, r"two\.a is split over the tensor axis, as traced in the forward of two, but it was called"),
    ],
)
def test_wrong_numbers_are_an_error_that_names_the_layers(make, text):
    with pytest.raises(AssertionError, match=text):
        ranks(2, run_wrong, make)


def run_verified_once(rank):
    module = seeded(OwnNames)
    strategy = MeshStrategy(tensor=2)
    trained(module, strategy, 2, limit_val_batches=0)
    hooks = [part._forward_pre_hooks for part in (module.one, module.two)]
    return [len(one) for one in hooks], float(module.calls)


def test_the_check_runs_once_and_leaves_nothing():
    assert ranks(2, run_verified_once) == [([0, 0], 6.0)] * 2
