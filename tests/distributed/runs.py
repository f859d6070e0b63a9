"""A small decoder and one way to train it, with any strategy, so that the numbers can be compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.strategies.mesh import MeshStrategy
from tests.runs.quiet import QUIET

WORDS, WIDTH, LENGTH = 32, 16, 8


class Attention(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.attention, self.network = Attention(heads), Network()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.network(self.second(x))


class Decoder(L.Module):
    """A model as a user would write it: only its plan knows of strategies."""

    def __init__(self, plan: dict[str, Any] | None = None, heads: int = 4, tied: bool = False, lr: float = 0.3) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(heads) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight
        self.plan, self.lr = plan, lr
        self.losses: list[float] = []

    def parallel_plan(self):
        return self.plan

    def hidden(self, text):
        x = self.words(text) + self.places.weight[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, text):
        return self.head(self.hidden(text))

    def training_step(self, batch, batch_idx):
        text, following = batch
        loss = F.cross_entropy(self(text).flatten(0, 1), following.flatten())
        self.log("loss", loss, on_step=False, on_epoch=True)
        self.losses.append(float(loss.detach()))
        return loss

    def validation_step(self, batch, batch_idx):
        text, following = batch
        self.log("val_loss", F.cross_entropy(self(text).flatten(0, 1), following.flatten()))

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr, momentum=0.9)


def texts(count: int = 24, length: int = LENGTH) -> TensorDataset:
    windows = torch.randint(WORDS, (count, length + 1), generator=torch.Generator().manual_seed(1))
    return TensorDataset(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())


def trained(
    module: L.Module, strategy: MeshStrategy | str = "auto", devices: int = 1, **options: Any
) -> dict[str, Any]:
    """Return losses, metrics, norms and all weights of a short run with batches of 8 samples in all."""
    data = options.pop("data", None) or texts()
    trainer = L.Trainer(
        **QUIET, strategy=strategy, devices=devices, num_sanity_val_steps=0, **{"max_epochs": 2} | options
    )
    size = 8 // data_size(strategy, devices)
    trainer.fit(module, DataLoader(data, size), DataLoader(data, size))
    state = trainer.strategy.module_state()
    return {
        "losses": getattr(module, "losses", []),
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "norm": None if trainer.gradient_norm is None else float(trainer.gradient_norm),
        "weights": {name: value.clone() for name, value in state.items()},
        "kinds": {type(p).__name__ for p in module.parameters()},
        "predictions": trainer.predict(module, DataLoader(data, size)) if options.get("predicts") else None,
    }


def data_size(strategy: Any, devices: int) -> int:
    sizes = getattr(strategy, "sizes", {})
    return max(1, sizes.get("replicate", 1)) * max(1, sizes.get("shard", 1))


def seeded(make, *args: Any, **options: Any) -> Any:
    """Return the same module on every process."""
    torch.manual_seed(0)
    return make(*args, **options)


def assert_same(one: dict[str, Any], other: dict[str, Any], tolerance: float = 1e-5) -> None:
    """Fail unless the weights, and the metrics, are the same numbers."""
    assert one["weights"].keys() == other["weights"].keys()
    for name, value in one["weights"].items():
        torch.testing.assert_close(
            value, other["weights"][name], rtol=tolerance, atol=tolerance / 10, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert one["metrics"].keys() == other["metrics"].keys()
    for name, value in one["metrics"].items():
        assert abs(value - other["metrics"][name]) <= tolerance * abs(value), name
    if one["norm"] is not None:
        assert abs(one["norm"] - other["norm"]) <= tolerance * one["norm"]
