"""Debugging a project: fast_dev_run, overfit_batches, limits, validation within an epoch."""

import json

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset

VARIANTS = {
    "fast_dev_run": {"fast_dev_run": 2},
    "overfit": {"overfit_batches": 2, "max_epochs": 3},
    "fractions": {"limit_train_batches": 0.5, "limit_val_batches": 0.5, "max_epochs": 2, "num_sanity_val_steps": -1},
    "validate within": {"val_check_interval": 0.25, "max_epochs": 2, "num_sanity_val_steps": 0},
    "validate seldom": {"check_val_every_n_epoch": 2, "max_epochs": 4, "min_epochs": 1},
    "by steps": {"max_steps": 11, "min_steps": 3, "limit_val_batches": 0},
    "stop": {"max_epochs": 9},
}


class Model(LightningModule):
    def __init__(self, stop_at=None):
        super().__init__()
        self.layer, self.stop_at = torch.nn.Linear(3, 2), stop_at
        self.events = []

    def note(self, what, value):
        self.events.append([what, self.current_epoch, self.global_step, round(value.item(), 6)])

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.note("train", loss)
        if self.stop_at is not None and self.global_step >= self.stop_at:
            self.trainer.should_stop = True
        return loss

    def validation_step(self, batch, batch_idx):
        loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.note("sanity" if self.trainer.sanity_checking else "val", loss)

    def on_train_epoch_end(self):
        self.events.append(["end", self.current_epoch, self.trainer.is_last_batch, self.trainer.num_training_batches])

    def configure_optimizers(self):
        return torch.optim.Adagrad(self.parameters(), lr=0.1)


def run(arguments, stop_at):
    seed_everything(23)
    x = torch.randn(48, 3)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    model = Model(stop_at)
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **arguments,
    )
    trainer.fit(model, DataLoader(data, 6, shuffle=True), DataLoader(data, 12))
    return {"events": model.events, "end": [trainer.current_epoch, trainer.global_step, trainer.should_stop]}


if __name__ == "__main__":
    print(json.dumps({name: run(given, 5 if name == "stop" else None) for name, given in VARIANTS.items()}))
