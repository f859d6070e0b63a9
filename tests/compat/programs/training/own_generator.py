"""Shuffling loaders with a generator of their own: full and short last batches, limits, and workers."""

import json

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.read = []

    def training_step(self, batch, batch_idx):
        self.read.append(batch.tolist())
        return self.layer(batch[:, None].float()).mean()

    def validation_step(self, batch, batch_idx):
        self.read.append(["validation", *batch.tolist()])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader(count, seed, **options):
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(torch.arange(count), batch_size=2, shuffle=True, generator=generator, **options)


def run(train, limit=1.0, val=None):
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=3,
        limit_train_batches=limit,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model()
    trainer.fit(model, train, val)
    return model.read


if __name__ == "__main__":
    torch.manual_seed(0)
    print(
        json.dumps(
            {
                "full": run(loader(6, 1)),
                "short": run(loader(7, 1)),
                "dropped": run(loader(7, 1, drop_last=True)),
                "limited": run(loader(6, 1), limit=2),
                "workers": run(loader(6, 1, num_workers=1)),
                "validated": run(loader(6, 1), val=loader(4, 2)),
            }
        )
    )
