"""The two lists of needs from LiBai's discussion of its trainer, met by one script."""

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import EarlyStopping, MetricPrinter, ModelCheckpoint
from lightlib.loggers import JSONLLogger


class Classifier(L.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch, batch_idx):  # list 1: train and update parameters
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):  # both lists: validate, the metric
        scores = self.net(batch[0])
        self.log("valid_loss", F.cross_entropy(scores, batch[1]))
        self.log("accuracy", (scores.argmax(1) == batch[1]).float().mean())

    def predict_step(self, batch, batch_idx):  # list 1: predict
        return self.net(batch[0]).argmax(1)

    def configure_optimizers(self):  # list 2: optimizer, lr_scheduler
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


class Digits(L.DataModule):
    def setup(self, stage):
        digits = load_digits()
        self.images = torch.tensor(digits.images, dtype=torch.float32) / 16
        self.labels = torch.tensor(digits.target)

    def train_dataloader(self):  # list 2: build_train_loader
        return DataLoader(TensorDataset(self.images[:1400], self.labels[:1400]), batch_size=50, shuffle=True)

    def val_dataloader(self):
        return DataLoader(TensorDataset(self.images[1400:], self.labels[1400:]), batch_size=100)

    predict_dataloader = val_dataloader


def trainer(max_epochs, args):
    return L.Trainer(
        accelerator=args.accelerator, devices=args.devices, strategy=args.strategy, precision=args.precision,  # list 1
        max_epochs=max_epochs,
        logger=JSONLLogger("logs", name="", version=""),  # both lists: records
        callbacks=[
            MetricPrinter(every_n_batches=10),  # list 2: print the state of training
            EarlyStopping("accuracy", mode="max", patience=5),  # list 1: the metric may stop early
            ModelCheckpoint("saved", monitor="accuracy", mode="max", save_last=True),  # both lists: save models
        ],
        enable_progress_bar=False,
        log_every_n_steps=5,
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--precision", default="bf16-mixed")
    args = parser.parse_args()

    L.seed_everything(0)
    trainer(4, args).fit(Classifier(), datamodule=Digits())
    again = trainer(8, args)
    again.fit(Classifier(), datamodule=Digits(), ckpt_path="saved/last.ckpt")  # both lists: resume
    loaded = Classifier.load_from_checkpoint(again.checkpoint_callback.best_model_path)  # both lists: load models
    predicted = torch.cat(again.predict(loaded, datamodule=Digits()))
    if again.is_global_zero:
        rows = [json.loads(line) for line in Path("logs/metrics.jsonl").read_text().splitlines()]
        print(f"epochs: {again.current_epoch}, steps: {again.global_step}")
        print(f"rows with a loss: {sum('loss' in row for row in rows)}")
        print(f"rows with a valid_loss: {sum('valid_loss' in row for row in rows)}")
        print(f"best accuracy: {again.checkpoint_callback.best_model_score:.3f}")
        print(f"predictions: {len(predicted)}")


if __name__ == "__main__":
    main()
