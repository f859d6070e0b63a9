"""A library's test-suite: Lightning's own demonstration models, trained, tested and predicted with."""

import json

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.demos.boring_classes import (
    BoringDataModule,
    BoringModel,
    DemoModel,
    ManualOptimBoringModel,
    RandomDataset,
    RandomIterableDataset,
)
from torch.utils.data import DataLoader


class Recorded(BoringModel):
    """Draws its data in each of the loaders' methods, as BoringModel does."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def training_step(self, batch, batch_idx):
        out = super().training_step(batch, batch_idx)
        self.steps.append(out["loss"].item())
        return out


class RecordedManual(ManualOptimBoringModel):
    def __init__(self):
        super().__init__()
        self.steps = []

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.steps.append(outputs["loss"].item() if outputs else None)


def trainer(**arguments):
    return Trainer(
        accelerator="cpu",
        max_epochs=2,
        limit_train_batches=5,
        limit_val_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **arguments,
    )


def weights(model):
    return {name: [value.sum().item(), value.abs().max().item()] for name, value in model.state_dict().items()}


if __name__ == "__main__":
    figures = {}
    seed_everything(31)
    model = Recorded()
    trainer().fit(model)
    figures["own loaders"] = {"steps": model.steps, "weights": weights(model)}

    seed_everything(32)
    model, data = Recorded(), BoringDataModule()
    one = trainer()
    one.fit(model, datamodule=data)
    figures["data module"] = {"steps": model.steps, "weights": weights(model)}
    figures["tested"] = one.test(model, datamodule=data, verbose=False)
    guesses = one.predict(model, datamodule=data)
    figures["predicted"] = [len(guesses), list(guesses[0].shape), torch.cat(guesses).sum().item()]

    seed_everything(33)
    model = RecordedManual()
    trainer().fit(model, DataLoader(RandomDataset(32, 16), 4))
    figures["manual"] = {"steps": model.steps, "weights": weights(model)}

    seed_everything(34)
    model = Recorded()
    trainer().fit(model, DataLoader(RandomIterableDataset(32, 15), 3))
    figures["iterable"] = {"steps": model.steps}

    seed_everything(35)
    demo = DemoModel(out_dim=4, learning_rate=0.05)
    figures["demo"] = [list(demo(torch.randn(2, 32)).shape), demo.l1.weight.sum().item()]
    print(json.dumps(figures))
