"""HSDP, tensor parallelism and FSDP with its options under a Fabric: the numbers of one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.strategies import FSDPStrategy
from tests.processes.ranks import ranks
from tests.runs.plain import samples

BATCH = 8
STRATEGIES: dict[str, Any] = {
    "tensor": lambda: "tensor",
    "meta": lambda: FSDPStrategy(meta=True),
    "offloaded": lambda: "fsdp_cpu_offload",
    "unused": lambda: "ddp_find_unused_parameters_true",
    "hsdp": lambda: "hsdp",
    "model_parallel": lambda: L.strategies.ModelParallelStrategy(2, 2),
}


class Parallel(nn.Module):
    """A module that every strategy can split."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 3)

    def parallel_plan(self) -> L.ParallelPlan:
        return L.ParallelPlan(tensor={"up": "colwise", "down": "rowwise"})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))


def batches_of(size: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*samples(48)), BATCH // size)


def by_fabric(rank: int, name: str, size: int, readers: int, path: str) -> dict[str, Any]:
    fabric = L.Fabric(accelerator="cpu", devices=size, strategy=STRATEGIES[name]())
    fabric.launch()
    torch.manual_seed(0)
    with fabric.init_module():
        net = Parallel()
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    losses = []
    for i, (x, y) in enumerate(fabric.setup_dataloaders(batches_of(readers))):
        with fabric.no_backward_sync(model, enabled=i % 2 == 0):
            loss = cross_entropy(model(x), y)
            fabric.backward(loss / 2)
        losses.append(float(fabric.all_reduce(loss.detach())))
        if i % 2:
            fabric.clip_gradients(model, optimizer, max_norm=0.1)
            optimizer.step()
            optimizer.zero_grad()
    fabric.save(path, {"model": model})
    return {"losses": losses, "weights": fabric.load(path)["model"]}


def by_torch() -> dict[str, Any]:
    torch.manual_seed(0)
    net = Parallel()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for i, (x, y) in enumerate(batches_of(1)):
        loss = cross_entropy(net(x), y)
        (loss / 2).backward()
        losses.append(float(loss.detach()))
        if i % 2:
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    return {"losses": losses, "weights": net.state_dict()}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "size", "readers"),
    [
        ("tensor", 2, 1),
        ("meta", 2, 2),
        ("offloaded", 2, 2),
        ("unused", 2, 2),
        ("hsdp", 4, 4),
        ("model_parallel", 4, 2),
    ],
)
def test_the_numbers_of_one_device(name: str, size: int, readers: int, tmp_path: Path):
    wanted = by_torch()
    found = ranks(size, by_fabric, name, size, readers, str(tmp_path / "run.ckpt"))[0]
    assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-4)
    for key, value in wanted["weights"].items():
        torch.testing.assert_close(found["weights"][key], value, rtol=1e-4, atol=1e-5)
