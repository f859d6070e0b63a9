"""The units that FSDP gathers: collectives, numbers and checkpoints against fully_shard of the blocks."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.strategies.mesh_presets import FSDPStrategy
from tests.processes.ranks import ranks
from tests.runs import quiet
from tests.runs.saves_at import SavesAt

pytestmark = pytest.mark.processes

QUIET = quiet.QUIET | {"num_sanity_val_steps": 0}
WIDTH, CHARACTERS, LENGTH, BATCH = 16, 24, 8, 4
BLOCKS = ["model.1", "model.2", "model.3", "model.4"]
# 4 blocks in forward and in backward, and once the parameters of the root
OF_THE_BLOCKS = {"_allgather_base_": 9, "_reduce_scatter_base_": 5}


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(CHARACTERS, WIDTH), nn.Parameter(torch.zeros(LENGTH, WIDTH))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.characters(text) + self.positions


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.attention(self.first(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(query, key, value, is_causal=True))
        return x + self.down(F.gelu(self.up(self.second(x))))


def gpt() -> nn.Sequential:
    """Return a GPT of four blocks, as one list of layers."""
    torch.manual_seed(1)
    layers = [Embedding(), *(Block() for _ in range(4)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CHARACTERS)]
    return nn.Sequential(*layers)


def texts(steps: int) -> TensorDataset:
    """Return the rows for two ranks, of which each reads every second one."""
    text = torch.randint(CHARACTERS, (2 * BATCH * steps, LENGTH + 1), generator=torch.Generator().manual_seed(2))
    return TensorDataset(text)


def loss_of(model: nn.Module, text: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), 1e-2, eps=1e-4)


class Net(L.Module):
    def __init__(self, automatic: bool = True) -> None:
        super().__init__()
        self.model, self.automatic_optimization = gpt(), automatic

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = loss_of(self.model, batch[0])
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return adam(self)


class Collectives(TorchDispatchMode):
    """Counts the collectives of FSDP by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, name = func._schema.name.split("::")
        if space == "c10d" and name in OF_THE_BLOCKS:
            self.counted[name] += 1
        return func(*args, **(kwargs or {}))


def fit(strategy: Any, steps: int, automatic: bool = True, callbacks: Any = (), **options: Any) -> Any:
    net = Net(automatic)
    trainer = L.Trainer(**QUIET, strategy=strategy, max_epochs=1, callbacks=list(callbacks))
    with Collectives() as collectives:
        trainer.fit(net, DataLoader(texts(steps), BATCH), **options)
    units = [name for name, part in net.named_modules() if isinstance(part, FSDPModule)]
    return units, full(net), collectives.counted


def full(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.full_tensor().detach().clone() for name, p in module.named_parameters()}


def per_step(strategy: Any, automatic: bool = True) -> dict[str, int]:
    """Return the collectives of one more step."""
    few, more = (fit(copy.deepcopy(strategy), steps, automatic)[2] for steps in (2, 4))
    return {name: (more[name] - few[name]) // 2 for name in more}


def by_hand(rank: int, steps: int) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """Train as a script does that shards the blocks, and then the rest."""
    mesh, model = init_device_mesh("cpu", (2,)), gpt()
    for block in model[1:5]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = adam(model)
    with Collectives() as collectives:
        for text in texts(steps).tensors[0][rank::2].split(BATCH):
            optimizer.zero_grad()
            loss_of(model, text).backward()
            optimizer.step()
    weights = {f"model.{name}": value for name, value in full(model).items()}
    return weights, {name: count // steps for name, count in collectives.counted.items()}


def compared(rank: int) -> Any:
    units, weights, _ = fit("fsdp", 4)
    same, counted = by_hand(rank, 4)
    wrapped = FSDPStrategy(auto_wrap_policy={Block, nn.LayerNorm})
    return {
        "units": units,
        "weights": weights,
        "by hand": same,
        "collectives": per_step("fsdp"),
        "collectives by hand": counted,
        "manual": (fit("fsdp", 2, False)[0], per_step("fsdp", False)),
        "hybrid": fit(FSDPStrategy(sharding_strategy="HYBRID_SHARD", device_mesh=(1, 2)), 4)[:2],
        "chosen": fit(wrapped, 2)[0],
    }


def test_a_step_gathers_as_often_as_one_by_hand():
    alone = gpt()
    optimizer = adam(alone)
    (text,) = texts(4).tensors
    for step in text.split(2 * BATCH):
        optimizer.zero_grad()
        loss_of(alone, step).backward()
        optimizer.step()
    for found in ranks(2, compared):
        assert found["units"] == ["", *BLOCKS]
        assert found["collectives"] == found["collectives by hand"] == OF_THE_BLOCKS
        assert list(found["weights"]) == list(found["by hand"])
        assert all(torch.equal(found["weights"][name], value) for name, value in found["by hand"].items())
        for name, value in alone.named_parameters():
            torch.testing.assert_close(found["weights"][f"model.{name}"], value.detach(), rtol=1e-4, atol=1e-5)
        # `model` is called by the step, and gathered again for each backward pass
        assert found["manual"] == (["", "model", *BLOCKS], OF_THE_BLOCKS | {"_allgather_base_": 10})
        assert found["hybrid"][0] == ["", *BLOCKS]
        assert all(torch.equal(found["hybrid"][1][name], value) for name, value in found["weights"].items())
        inside = [f"{block}.{norm}" for block in BLOCKS for norm in ("", "first", "second")]
        assert found["chosen"] == ["", *(name.removesuffix(".") for name in inside), "model.5"]


def resumed_in_other_units(rank: int, folder: Path) -> Any:
    """Save in the layout that had a unit for each layer, and resume in the default one."""
    each = FSDPStrategy(auto_wrap_policy=["model.*"])
    formats = ("file", "directory")
    saves = [SavesAt(folder / kind, 2, format=kind) for kind in formats]
    units, complete, _ = fit(each, 4, callbacks=saves)
    return units, complete, [fit("fsdp", 4, ckpt_path=folder / kind)[:2] for kind in formats]


def test_a_checkpoint_of_other_units_resumes_exactly(tmp_path):
    for units, complete, resumed in ranks(2, resumed_in_other_units, tmp_path):
        assert units == ["", *(f"model.{number}" for number in range(7))]
        for now, weights in resumed:
            assert now == ["", *BLOCKS]
            assert list(weights) == list(complete)
            assert all(torch.equal(weights[name], value) for name, value in complete.items())
