"""A run of a second that the campaigns of disks and stores repeat; the best files are kept."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import Callback, ModelCheckpoint
from lightlib.checkpoint import formats
from lightlib.checkpoint.storage import filesystem

STEPS_PER_EPOCH = 8
EPOCHS = 2
SAVES_EVERY = 4


class Net(L.Module):
    """Two layers with dropout between them; Adam, so that there is a state to lose, and a schedule."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Dropout(0.3), nn.Linear(width, 1))

    def loss(self, batch: Any) -> torch.Tensor:
        x, y = batch
        return (self.model(x) - y).square().mean()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9), "interval": "step"}]


def data(samples: int = STEPS_PER_EPOCH * 2, shuffle: bool = True) -> DataLoader:
    """Batches of two samples, always the same ones."""
    generator = torch.Generator().manual_seed(samples)
    x = torch.randn(samples, 8, generator=generator)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=2, shuffle=shuffle)


def checkpoints(folder: str, **more: Any) -> ModelCheckpoint:
    """Keep the two best of the saves after every fourth step, and the last one."""
    given: dict[str, Any] = {
        "filename": "{step}",
        "monitor": "val_loss",
        "save_top_k": 2,
        "save_last": True,
        "every_n_train_steps": SAVES_EVERY,
        **more,
    }
    return ModelCheckpoint(folder, **given)


def train(*callbacks: Callback, ckpt_path: str | None = None, width: int = 64, epochs: int = EPOCHS) -> L.Trainer:
    """Train from a fixed seed or resume from a checkpoint; return the trainer when it is done."""
    logging.getLogger("lightlib").setLevel(logging.ERROR)
    L.seed_everything(3, verbose=False)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        val_check_interval=SAVES_EVERY,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=list(callbacks),
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        trainer.fit(Net(width), data(), data(6, shuffle=False), ckpt_path=ckpt_path)
    return trainer


def state_of(trainer: L.Trainer) -> dict[str, torch.Tensor]:
    """Return copies of the weights and of the optimizer's state, by name."""
    found = {f"weight {name}": value.clone() for name, value in trainer.lightning_module.state_dict().items()}
    for number, state in trainer.optimizers[0].state_dict()["state"].items():
        found |= {f"optimizer {number} {name}": value.clone() for name, value in state.items()}
    return found


def differences(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of tensors that are not equal in both, bit for bit."""
    return sorted(
        name for name in {*one, *other} if name not in one or name not in other or not one[name].equal(other[name])
    )


def weights_in(folder: str) -> dict[str, dict[str, torch.Tensor]]:
    """Return the full weights in every checkpoint of a folder, by the checkpoint's name."""
    found = {}
    for name in filesystem.names_in(folder):
        if not name.startswith("."):
            state = formats.load(filesystem.join(folder, name))["state_dict"]
            found[name] = {
                key: value if isinstance(value, torch.Tensor) else value.read() for key, value in state.items()
            }
    return found


class At(Callback):
    """Calls a function with the trainer after a step, before ModelCheckpoint saves."""

    not_in_checkpoint = ("call",)

    def __init__(self, step: int, call: Any) -> None:
        self.step, self.call = step, call

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self.step:
            self.call(trainer)
