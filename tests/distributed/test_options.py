"""Options of the strategies, through the Trainer: what each does to the numbers, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.errors import MisconfigurationException
from lightlib.strategies.mesh import MeshStrategy
from lightlib.strategies.presets import FSDPStrategy, ModelParallelStrategy
from tests.distributed.processes import processes
from tests.distributed.user import BATCH, CLASSES, WIDTH, Block, Net, built, data

QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


def fit(strategy: Any, net: L.Module, data_size: int = 2, **options: Any) -> L.Trainer:
    trainer = L.Trainer(**QUIET, strategy=strategy, **{"max_steps": 5} | options)
    trainer.fit(net, DataLoader(data(), BATCH // data_size), DataLoader(data(37, seed=2), BATCH))
    return trainer


def alone(net: Net, steps: int = 5, accumulate: int = 1) -> dict[str, torch.Tensor]:
    """Return the weights after a plain loop on one device."""
    from tests.distributed.user import plain_loop

    plain_loop(net, steps, accumulate, BATCH)
    return net.state_dict()


def assert_near(found: dict[str, Any], wanted: dict[str, Any], within: float = 1e-6) -> None:
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        error = ((found[name] - value).norm() / value.norm().clamp(min=1e-6)).item()
        assert error <= within, f"{name}: {error}"


# by hand, as Lightning documents it
class ByHand(Net):
    """Builds and spreads its layers itself."""

    def __init__(self, whole: bool = False, meta: bool = False, shards: bool = True) -> None:
        super().__init__()
        del self.model
        self.whole, self.on_meta, self.shards = whole, meta, shards

    def parallel_plan(self):
        return None

    def configure_model(self) -> None:
        if hasattr(self, "model"):
            return
        torch.manual_seed(3)
        with torch.device("meta" if self.on_meta else "cpu"):
            self.model = nn.Sequential(
                nn.Linear(4, WIDTH), *(Block(WIDTH) for _ in range(4)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
            )
        torch.manual_seed(3)
        if self.device_mesh is None:
            return
        tensor, shard = self.device_mesh["tensor_parallel"], self.device_mesh["data_parallel"]
        for block in self.model[1:-2]:
            if tensor.size() > 1:
                parallelize_module(block, tensor, {"up": ColwiseParallel(), "down": RowwiseParallel()})
            if self.shards:
                fully_shard(block, mesh=shard)
        if self.shards:
            fully_shard(self if self.whole else self.model, mesh=shard)


def by_hand(rank: int, data_size: int, tensor: int, whole: bool, meta: bool) -> Any:
    net = ByHand(whole, meta)
    strategy = ModelParallelStrategy(data_size, tensor)
    trainer = fit(strategy, net, data_size, accumulate_grad_batches=3, gradient_clip_val=0.5)
    metrics = trainer.validate(net, DataLoader(data(37, seed=2), BATCH), verbose=False)[0]
    names = strategy.device_mesh.mesh_dim_names
    trainer.save_checkpoint("one.ckpt")
    return trainer.strategy.module_state(), metrics, names, isinstance(net.model, FSDPModule)


@pytest.mark.parametrize(
    ("data_size", "tensor", "whole", "meta"), [(2, 1, False, False), (1, 2, True, True), (2, 2, True, False)]
)
def test_a_module_that_spreads_itself(data_size: int, tensor: int, whole: bool, meta: bool):
    from tests.distributed.user import evaluated, plain_loop

    net = ByHand()
    net.configure_model()
    plain_loop(net, 5, 3, BATCH, 0.5)
    found = processes(data_size * tensor, by_hand, data_size, tensor, whole, meta)
    assert_near(found[0][0], net.state_dict(), 1e-5)
    assert found[0][2] == ("data_parallel", "tensor_parallel")
    loss, accuracy = evaluated(net)
    for _, metrics, _, sharded in found:
        assert metrics["val_loss"] == pytest.approx(loss, rel=1e-5)
        assert metrics["accuracy"] == pytest.approx(accuracy)
        assert sharded != whole
