"""Two spawned processes: samples, random numbers, rows of the logger, and the state afterwards."""

import csv
import json
from pathlib import Path

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.tensor([float(index), 1.0])


class Data(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Numbers(26), batch_size=4, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return [DataLoader(Numbers(9), batch_size=2), DataLoader(Numbers(5), batch_size=2)]


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1))
        self.register_buffer("seen", torch.zeros(2, 2, 26))

    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            self.seen[self.global_rank, self.current_epoch, batch[:, 0].long()] += 1
        noise = torch.rand(())
        loss = (self.layers(batch / 26) + noise).square().mean()
        self.log("loss", loss, sync_dist=True)
        self.log("noise", noise, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx, dataloader_idx):
        self.log("val", self.layers(batch / 26).mean(), sync_dist=True)

    def on_train_epoch_end(self):
        if self.current_epoch == 1:
            self.seen = self.all_gather(self.seen).sum(0)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


if __name__ == "__main__":
    seed_everything(11)
    checkpoint = ModelCheckpoint("files", filename="{epoch}-{step}", save_top_k=-1)
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp_spawn", max_epochs=2, log_every_n_steps=2, callbacks=[checkpoint],
        logger=CSVLogger("logs", name="", version=""), enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model = Model()
    trainer.fit(model, datamodule=Data())
    with Path("logs/metrics.csv").open() as file:
        rows = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]
    print(
        json.dumps(
            {
                "weights": model.layers[0].weight.tolist(),
                "rows": rows,
                "files": sorted(path.name for path in Path("files").iterdir()),
                "saved": torch.load(checkpoint.best_model_path, weights_only=True)["state_dict"]["seen"].tolist(),
            }
        )
    )
