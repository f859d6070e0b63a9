"""Streams: iterable data sets without a length, validated every few batches."""

import json

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __init__(self, samples, seed):
        self.samples, self.seed, self.epoch = samples, seed, 0

    def __iter__(self):
        info = get_worker_info()
        first, every = (0, 1) if info is None else (info.id, info.num_workers)
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        self.epoch += 1
        for index in range(self.samples):
            x = torch.randn(4, generator=generator)
            if index % every == first:
                yield x, x.sum().unsqueeze(0)


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.steps, self.validated = [], []

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.l1_loss(self.layer(batch[0]), batch[1])
        self.steps.append([self.current_epoch, batch_idx, len(batch[0]), loss.item()])
        return loss

    def validation_step(self, batch, batch_idx):
        loss = torch.nn.functional.l1_loss(self.layer(batch[0]), batch[1])
        self.log("val_loss", loss, batch_size=len(batch[0]))
        return loss

    def on_validation_end(self):
        metric = self.trainer.callback_metrics["val_loss"].item()
        self.validated.append([self.global_step, self.trainer.sanity_checking, metric])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


if __name__ == "__main__":
    seed_everything(2, workers=True)
    model = Model()
    trainer = Trainer(
        max_steps=17,
        val_check_interval=3,
        check_val_every_n_epoch=None,
        limit_val_batches=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(Stream(45, 100), 8), DataLoader(Stream(40, 900), 8, num_workers=0))
    print(
        json.dumps(
            {
                "steps": model.steps,
                "validated": model.validated,
                "end": [trainer.current_epoch, trainer.global_step],
                "lr": trainer.optimizers[0].param_groups[0]["lr"],
                "batches": str(trainer.num_training_batches),
            }
        )
    )
