"""The samples that two processes read, by kind of loader, and the weights that they train."""

import json

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler


class Ordered(BatchSampler):
    """A batch sampler of the user's."""


class Model(LightningModule):
    def __init__(self, train, val):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 1))
        self.train_loader, self.val_loader = train, val
        self.read = {"train": [], "val": [], "predict": []}
        self.samplers = []

    def loss(self, name, batch):
        self.read[name][-1].append(batch.flatten().int().tolist())
        return self.layers(batch / 20).square().mean()

    def training_step(self, batch, batch_idx):
        return self.loss("train", batch)

    def validation_step(self, batch, batch_idx):
        self.log("val", self.loss("val", batch), sync_dist=True)

    def predict_step(self, batch, batch_idx):
        return self.loss("predict", batch)

    def on_train_epoch_start(self):
        self.read["train"].append([])
        self.samplers.append(type(self.trainer.train_dataloader.sampler).__name__)

    def on_validation_epoch_start(self):
        self.read["val"].append([])

    def on_predict_epoch_start(self):
        self.read["predict"].append([])

    def train_dataloader(self):
        return self.train_loader(torch.arange(17.0)[:, None])

    def val_dataloader(self):
        return self.val_loader(torch.arange(7.0)[:, None])

    def predict_dataloader(self):
        return DataLoader(torch.arange(7.0)[:, None], batch_size=2, drop_last=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def plain(data):
    return DataLoader(data, batch_size=2)


LOADERS = {
    "shuffled": (lambda data: DataLoader(data, batch_size=2, shuffle=True), plain),
    "in order": (plain, lambda data: DataLoader(data, batch_size=2, shuffle=True)),
    "drop last": (
        lambda data: DataLoader(data, batch_size=4, drop_last=True, shuffle=True),
        lambda data: DataLoader(data, batch_size=2, drop_last=True),
    ),
    "subset": (lambda data: DataLoader(data, batch_size=2, sampler=SubsetRandomSampler([3, 5, 7, 9, 11, 13])), plain),
    "weighted": (
        lambda data: DataLoader(data, batch_size=2, sampler=WeightedRandomSampler([1.0] * 17, 12)),
        lambda data: DataLoader(data, batch_size=2, sampler=[4, 2, 0, 1, 3]),
    ),
    "batches": (lambda data: DataLoader(data, batch_sampler=Ordered(SequentialSampler(data), 3, False)), plain),
    "workers": (lambda data: DataLoader(data, batch_size=2, shuffle=True, num_workers=1), plain),
    "overfit": (
        lambda data: DataLoader(data, batch_size=2, shuffle=True),
        lambda data: DataLoader(data, batch_size=2, shuffle=True),
    ),
    "off": (lambda data: DataLoader(data, batch_size=4, shuffle=True), plain),
}


def run(kind):
    seed_everything(3)
    model = Model(*LOADERS[kind])
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        overfit_batches=2 if kind == "overfit" else 0.0,
        use_distributed_sampler=kind != "off",
    )
    trainer.fit(model)
    val = float(trainer.callback_metrics["val"])
    gathered = [None, None]
    seen = {"read": model.read, "samplers": model.samplers}
    trainer.predict(model, return_predictions=False)
    torch.distributed.all_gather_object(gathered, seen)
    return {
        "ranks": gathered,
        "val": val,
        "weights": [round(value, 6) for value in model.layers[0].weight.flatten().tolist()],
    }


if __name__ == "__main__":
    results = {kind: run(kind) for kind in LOADERS}
    if torch.distributed.get_rank() == 0:
        print(json.dumps(results))
