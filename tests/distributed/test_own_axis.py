"""Third-party axes with mesh dimensions of their own compute the numbers of a plain loop."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.strategies import Axis, Compile, MeshStrategy
from tests.processes.ranks import ranks
from tests.runs.modules import Validated
from tests.runs.quiet import QUIET

TOKENS, CLIP, RATE, EPOCHS, BATCH = 4, 0.5, 0.2, 2, 8


class Columns(Axis):
    """Splits the outputs of one Linear layer over processes, and gathers them."""

    name = "columns"
    order = 60
    shards_parameters = True

    def __init__(self, size: int, layer: str = "net.0") -> None:
        self.size, self.layer = size, layer

    def check(self, module, site):
        if module.get_submodule(self.layer).out_features % self.size:
            raise MisconfigurationException(
                f"{self.layer} cannot be split.", expected="a multiple.", fix="another size"
            )

    def apply(self, module, site):
        style = ColwiseParallel(output_layouts=Replicate())
        parallelize_module(module.get_submodule(self.layer), site.mesh[self.name], style, src_data_rank=None)


class Own(Axis):
    """Replicas that read separate batches, outside of all other axes."""

    name, order, splits_batch = "own", 15, True

    def __init__(self, size: int) -> None:
        self.size = size
        self.stepped = 0

    def around(self, step):
        def counted(*args):
            self.stepped += 1
            return step(*args)

        return counted

    def state_dict(self):
        return {"stepped": self.stepped}


class Halves(Axis):
    """Gives each process some of the tokens of every sample."""

    name, order, splits_samples = "halves", 45, True

    def __init__(self, size: int) -> None:
        self.size = size

    def apply(self, module, site):
        self.rank = site.coordinate(self.name)

    def enter(self, name, method):
        def on_shard(batch, *args):
            return method([part.chunk(self.size, dim=1)[self.rank] for part in batch], *args)

        return on_shard


class Net(Validated):
    def __init__(self) -> None:
        layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 5))
        super().__init__(lambda parameters: torch.optim.SGD(parameters, RATE, momentum=0.9), net=layers)
        self.losses: list[float] = []

    def loss(self, batch):
        inputs, targets = batch
        return F.cross_entropy(self.net(inputs).flatten(0, 1), targets.flatten())

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.losses.append(float(loss.detach()))
        return loss


def samples() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(24, TOKENS, 8, generator=generator)
    return TensorDataset(inputs, torch.randint(5, (24, TOKENS), generator=generator))


def plain_loop() -> tuple[dict[str, torch.Tensor], list[float], float]:
    """Return weights, losses and the validation loss of a loop without lightlib."""
    torch.manual_seed(0)
    module = Net()
    optimizer = module.configure_optimizers()
    losses = []
    for _ in range(EPOCHS):
        for batch in DataLoader(samples(), BATCH):
            loss = module.loss(batch)
            losses.append(float(loss.detach()))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), CLIP)
            optimizer.step()
    with torch.no_grad():
        validation = float(module.loss(samples().tensors))
    return dict(module.state_dict()), losses, validation


def run(rank: int, kind: type[Axis], sizes: dict[str, Any]) -> dict[str, Any]:
    axis: Any = kind(2)
    strategy = MeshStrategy(extra_axes=[axis], **sizes)
    devices = 2 * sizes.get("replicate", 1) * sizes.get("shard", 1)
    trainer = L.Trainer(**QUIET, strategy=strategy, devices=devices, max_epochs=EPOCHS, gradient_clip_val=CLIP)
    torch.manual_seed(0)
    module = Net()
    readers = devices if kind.splits_batch else devices // 2
    trainer.fit(module, DataLoader(samples(), BATCH // readers), DataLoader(samples(), BATCH // readers))
    return {
        "weights": {name: value.clone() for name, value in strategy.module_state().items()},
        "losses": module.losses,
        "val_loss": float(trainer.callback_metrics["val_loss"]),
        "data": (strategy.data_rank, strategy.data_size, strategy.data.size),
        "mesh": dict(zip(strategy.device_mesh.mesh_dim_names, strategy.device_mesh.shape, strict=True)),
        "state": strategy.state_dict(),
        "sharded": {
            name for name, p in module.named_parameters() if isinstance(p, DTensor) and p.to_local().numel() < p.numel()
        },
    }


CASES = {
    "columns": (Columns, {}, [(0, 1, 1), (0, 1, 1)]),
    "own": (Own, {}, [(0, 2, 2), (1, 2, 2)]),
    "halves": (Halves, {}, [(0, 1, 2), (0, 1, 2)]),
    "columns with replicate": (Columns, {"replicate": 2}, [(0, 2, 2), (0, 2, 2), (1, 2, 2), (1, 2, 2)]),
    "own with shard": (Own, {"shard": 2}, [(0, 4, 4), (1, 4, 4), (2, 4, 4), (3, 4, 4)]),
    "halves with shard": (Halves, {"shard": 2}, [(0, 2, 4), (0, 2, 4), (1, 2, 4), (1, 2, 4)]),
}


@pytest.mark.processes
@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_those_of_a_plain_loop(case):
    kind, sizes, numbers = CASES[case]
    found = ranks(len(numbers), run, kind, sizes)
    weights, losses, validation = plain_loop()
    assert [one["data"] for one in found] == numbers
    for name, value in weights.items():
        torch.testing.assert_close(found[0]["weights"][name], value, rtol=1e-5, atol=1e-6, msg=name)
    means = torch.tensor([one["losses"] for one in found]).mean(0)
    torch.testing.assert_close(means, torch.tensor(losses), rtol=1e-5, atol=1e-6)
    assert found[0]["val_loss"] == pytest.approx(validation, rel=1e-5)
    assert found[0]["mesh"][kind.name] == 2
    assert found[0]["state"] == ({"own": {"stepped": len(losses)}} if kind is Own else {})
    if kind is Columns:
        assert {"net.0.weight", "net.0.bias"} == found[0]["sharded"]


def test_the_order_of_the_dimensions():
    strategy = MeshStrategy(replicate=2, tensor=2, extra_axes=[Columns(3), Halves(4), Own(5)])
    assert list(strategy.sizes) == ["pipeline", "own", "replicate", "shard", "context", "halves", "tensor", "columns"]
    assert strategy.describe() == "mesh (own 5 × replicate 2 × halves 4 × tensor 2 × columns 3)"  # noqa: RUF001


class Refusing(Columns):
    refused = (("compile", "its layer cannot be compiled.", "compile=False"),)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"extra_axes": [Columns(2), Columns(2)]}, "Columns and Columns: a dimension of the mesh named 'columns'"),
        ({"extra_axes": [Columns(0)]}, "MeshStrategy(columns=0)."),
        ({"extra_axes": [Columns(-1)], "shard": -1}, "shard=-1 and columns=-1: only one size"),
        ({"extra_axes": [Refusing(2)], "compile": True}, "columns=2 with compile: its layer cannot be compiled."),
    ],
)
def test_refusals(arguments, text):
    with pytest.raises(MisconfigurationException, match=re.escape(text)):
        MeshStrategy(**arguments)


def test_an_axis_that_is_none():
    with pytest.raises(ArgumentTypeError, match=r"MeshStrategy got 'columns' \(str\) as an axis"):
        MeshStrategy(extra_axes=["columns"])
    with pytest.raises(ArgumentTypeError, match="True or a Compile"):
        MeshStrategy(compile="yes")
    assert isinstance(MeshStrategy(compile=Compile())._given[-1], Compile)


class Inner(Own):
    order = 35


def run_inner(rank: int) -> str:
    try:
        run(rank, Inner, {"shard": 2})
    except Exception as error:  # noqa: BLE001  a rank that failed later reports the first one's error
        return str(error)
    return ""


@pytest.mark.processes
def test_replicas_inside_of_shards_are_refused():
    assert all("'own' splits batches, and stands further inside" in text for text in ranks(4, run_inner))
