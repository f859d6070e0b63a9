"""BoringModule: a small module that any strategy can train, and its data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightlib.core.module.module import Module
from lightlib.strategies.axes.parallel_plan import ParallelPlan

_WIDTH, _LENGTH = 16, 4
BATCH, SAMPLES, EVALUATED = 24, 96, 37
QUIET: dict[str, Any] = {
    **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False),
    "num_sanity_val_steps": 0,
}


class BoringModule(Module):
    """A small network that any strategy can train, complete with optimizer, schedule and data.

    It maps sequences of vectors to sequences of numbers. Its steps log ``train_loss`` (per step and epoch),
    ``val_loss`` and ``test_loss``; `predict_step` returns the numbers.

    Args:
        depth: Blocks of attention and two layers. Default 3.
        lr: Learning rate of AdamW; a schedule lowers it every other step. Default 0.01.

    Example:
        >>> from lightlib.core.trainer import Trainer
        >>> options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        >>> trainer = Trainer(accelerator="cpu", devices=1, max_epochs=1, enable_model_summary=False, **options)
        >>> trainer.fit(BoringModule())
        >>> trainer.global_step
        4
    """

    def __init__(self, depth: int = 3, lr: float = 1e-2) -> None:
        super().__init__()
        self.save_hyperparameters()
        blocks = (_Block() for _ in range(depth))
        self.model = nn.Sequential(nn.Linear(4, _WIDTH), *blocks, nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 1))
        self.lr = lr

    def parallel_plan(self) -> ParallelPlan:
        """Return how tensor parallelism splits the blocks."""
        return ParallelPlan(tensor={"model.*.up": "colwise", "model.*.down": "rowwise"})

    def forward(self, x: Tensor) -> Tensor:
        """Return one number for each vector."""
        return self.model(x).squeeze(-1)  # type: ignore[no-any-return]

    def loss(self, batch: Any) -> Tensor:
        """Return the mean squared error of one batch."""
        x, y = batch
        return nn.functional.mse_loss(self(x), y)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self.loss(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self(batch[0])  # type: ignore[no-any-return]

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, eps=1e-4)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.8)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def train_dataloader(self) -> Any:
        return DataLoader(samples(SAMPLES), BATCH)

    def val_dataloader(self) -> Any:
        return DataLoader(samples(EVALUATED), BATCH)

    test_dataloader = predict_dataloader = val_dataloader


class _Block(nn.Module):
    """Attention with two heads, and a network of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.attention = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.attention(self.first(x)).unflatten(-1, (2, -1)).transpose(1, 2)
        x = x + nn.functional.scaled_dot_product_attention(*heads.chunk(3, -1)).transpose(1, 2).flatten(2)
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))  # type: ignore[no-any-return]


def samples(count: int) -> TensorDataset:
    """Return `count` samples, the same ones at each call."""
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, _LENGTH, 4, generator=generator)
    return TensorDataset(x, x.sin().sum(-1))
