"""Six modules of different kinds, each with a batch, for which memory is simulated and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import lightlib


class Trained(lightlib.Module):
    """Trains `net` with AdamW on the mean square of its outputs."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.net(batch).float().square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad])


class Block(nn.Module):
    """A block of a decoder: causal attention and a feed-forward network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        q, k, v = (one(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        h = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(h)
        return x + self.down(functional.gelu(self.up(self.second(x))))


def mlp(width: int = 512, depth: int = 8, samples: int = 64) -> tuple[Trained, Any]:
    layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)]
    return Trained(nn.Sequential(*layers)), torch.randn(samples, width)


def convolutions() -> tuple[Trained, Any]:
    def layer(given: int, taken: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(given, taken, 3, padding=1), nn.BatchNorm2d(taken), nn.ReLU())

    net = nn.Sequential(layer(3, 32), layer(32, 64), nn.MaxPool2d(2), layer(64, 64), nn.Flatten(), nn.Linear(4096, 100))
    return Trained(net), torch.randn(16, 3, 16, 16)


def decoder(width: int = 128, depth: int = 4, length: int = 64, samples: int = 8) -> tuple[Trained, Any]:
    blocks = [Block(width, 4) for _ in range(depth)]
    net = nn.Sequential(nn.Embedding(1000, width), *blocks, nn.LayerNorm(width), nn.Linear(width, 1000, bias=False))
    return Trained(net), torch.randint(1000, (samples, length))


def encoder() -> tuple[Trained, Any]:
    layer = nn.TransformerEncoderLayer(96, 4, 384, dropout=0.0, batch_first=True)
    return Trained(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)), torch.randn(8, 48, 96)


class Recurrent(nn.Module):
    """An LSTM over embedded tokens, and scores from its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(500, 64)
        self.lstm = nn.LSTM(64, 128, num_layers=2, batch_first=True)
        self.scores = nn.Linear(128, 500)

    def forward(self, tokens: Tensor) -> Tensor:
        output, _ = self.lstm(self.embedding(tokens))
        return self.scores(output[:, -1])


def recurrent() -> tuple[Trained, Any]:
    return Trained(Recurrent()), torch.randint(500, (8, 20))


class Tuned(nn.Module):
    """A frozen body with a trained head, and a weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(4)])
        self.body.requires_grad_(False)
        self.inner, self.outer = nn.Linear(256, 256, bias=False), nn.Linear(256, 256, bias=False)
        self.outer.weight = self.inner.weight
        self.register_buffer("scale", torch.ones(256))

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(self.body(x) * self.scale)))


def tuned() -> tuple[Trained, Any]:
    return Trained(Tuned()), torch.randn(32, 256)


MODELS: dict[str, Callable[[], tuple[Trained, Any]]] = {
    "mlp": mlp,
    "convolutions": convolutions,
    "decoder": decoder,
    "encoder": encoder,
    "recurrent": recurrent,
    "tuned": tuned,
}
