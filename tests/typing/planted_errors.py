"""A program with twelve mistakes; type checkers have to find each, on the lines that are marked."""

from __future__ import annotations

from torch import Tensor, nn

import lightlib as L
from lightlib.callbacks import ModelCheckpoint


class Net(L.Module):
    """Logs with a reduction that does not exist, and takes one optimizer for certain."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """Return the loss."""
        self.log("loss", batch.sum(), reduce_fx="medain")  # planted
        self.optimizers().step()  # planted
        self.trainer.curent_epoch  # planted
        return batch.sum()


class Other(L.Module):
    """Another module."""


L.seed_evrything(7)  # planted
trainer = L.Trainer(max_epoch=3)  # planted
trainer = L.Trainer(max_epochs="3")  # planted
trainer = L.Trainer(gradient_clip_algorithm="nrom")  # planted
checkpoint = ModelCheckpoint(monitor="loss", mode="mn")  # planted
trainer = L.Trainer(callbacks=[checkpoint])
trainer.fit(nn.Linear(1, 1))  # planted
other: Other = Net.load_from_checkpoint("last.ckpt")  # planted
print(trainer.checkpoint_callback.best_model_path)  # planted
print(trainer.callback_metrics["loss"].itme())  # planted
