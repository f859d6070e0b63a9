"""One module as a user writes it, and plain loops that compute the expected results."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L

WIDTH, CLASSES, SAMPLES, BATCH = 16, 8, 56, 8


class Block(nn.Module):
    """A residual network of two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(L.Module):
    """Classifies vectors; logs a loss and a torchmetric."""

    def __init__(self, depth: int = 4, optimizer: str = "AdamW", lr: float = 1e-2, weighted: bool = False) -> None:
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(4, WIDTH), *(Block(WIDTH) for _ in range(depth)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
        )
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=CLASSES)
        self.kind, self.lr, self.weighted = optimizer, lr, weighted
        self.losses: list[float] = []

    def parallel_plan(self) -> L.ParallelPlan:
        return L.ParallelPlan(tensor={"model.*.up": "colwise", "model.*.down": "rowwise"})

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        scores = self.model(x)
        if self.weighted:
            loss = F.cross_entropy(scores, y, reduction="sum")
            self.log("loss", loss / len(y), on_epoch=True)
            return {"loss": loss, "weight": len(y)}
        loss = F.cross_entropy(scores, y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        scores = self.model(x)
        self.accuracy(scores, y)
        self.log("val_loss", F.cross_entropy(scores, y))
        self.log("accuracy", self.accuracy)

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.model(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return getattr(torch.optim, self.kind)(self.parameters(), lr=self.lr)


def data(samples: int = SAMPLES, seed: int = 1) -> TensorDataset:
    """Return vectors and their classes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 4, generator=generator)
    y = torch.randint(CLASSES, (samples,), generator=generator)
    return TensorDataset(x, y)


def plain_loop(
    net: Net, steps: int, accumulate: int, batch_size: int, clip: float | None = None, dtype: Any = None
) -> list[float]:
    """Train on one device for `steps` optimizer steps; return the loss of every batch.

    The loss of a window is the mean over its batches, of which the last window of an epoch may have fewer.
    """
    optimizer = net.configure_optimizers()
    batches = list(DataLoader(data(), batch_size))
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0) if dtype is torch.float16 else None
    losses: list[float] = []
    done = 0
    while done < steps:
        for first in range(0, len(batches), accumulate):
            window = batches[first : first + accumulate]
            optimizer.zero_grad()
            for x, y in window:
                with torch.autocast("cpu", dtype) if dtype is not None else contextlib.nullcontext():
                    loss = F.cross_entropy(net.model(x), y)
                part = loss / len(window)
                (part if scaler is None else scaler.scale(part)).backward()
                losses.append(loss.item())
            if scaler is not None:
                scaler.unscale_(optimizer)
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            done += 1
            if done == steps:
                break
    return losses


def evaluated(net: Net, dtype: Any = None) -> tuple[float, float]:
    """Return validation loss and accuracy on one device."""
    x, y = data(37, seed=2).tensors
    with torch.no_grad(), torch.autocast("cpu", dtype) if dtype is not None else contextlib.nullcontext():
        scores = net.model(x)
        return F.cross_entropy(scores, y).item(), (scores.argmax(-1) == y).float().mean().item()


def built(**arguments: Any) -> Net:
    """Return the module with the same first values in every process."""
    torch.manual_seed(3)
    return Net(**arguments)
