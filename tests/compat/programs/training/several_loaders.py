"""Several loaders for validation, training and testing, and names with their indices."""

import json

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader, TensorDataset


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.steps, self.order = [], []

    def loss(self, batch):
        return (self.layer(batch[0]) - batch[1]).abs().mean()

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch["labelled"]) + 0.1 * self.layer(batch["unlabelled"][0]).square().mean()
        self.log("train_loss", loss, on_step=True, on_epoch=True, batch_size=len(batch["labelled"][0]))
        self.steps.append([loss.item(), len(batch["unlabelled"][0])])
        return loss

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.order.append([batch_idx, dataloader_idx])
        self.log("val_loss", self.loss(batch), batch_size=len(batch[0]))
        self.log("val_mean", self.loss(batch), add_dataloader_idx=dataloader_idx != 0, batch_size=len(batch[0]))

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        self.log(f"test_loss_{dataloader_idx}", self.loss(batch), add_dataloader_idx=False)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader(samples, batch_size, **arguments):
    x = torch.randn(samples, 3)
    return DataLoader(TensorDataset(x, x.mean(1, keepdim=True)), batch_size, **arguments)


if __name__ == "__main__":
    seed_everything(4)
    model = Model()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = Trainer(max_epochs=2, limit_val_batches=2, enable_checkpointing=False, **quiet)
    labelled, unlabelled = loader(24, 6, shuffle=True), loader(50, 7, shuffle=True)
    validation = [loader(12, 4), loader(10, 5)]
    modes = {}
    for mode in ("max_size_cycle", "min_size"):
        combined = CombinedLoader({"labelled": labelled, "unlabelled": unlabelled}, mode)
        iter(combined)
        modes[mode] = [len(combined), [len(batch["unlabelled"][0]) for batch, _, _ in combined]]
        trainer = Trainer(max_epochs=2, limit_val_batches=2, enable_checkpointing=False, **quiet)
        trainer.fit(model, combined, validation)
        modes[mode] += [{name: value.item() for name, value in trainer.callback_metrics.items()}]
        modes[mode] += [trainer.num_training_batches, trainer.num_val_batches]
    results = trainer.test(model, [loader(8, 4), loader(4, 4), loader(2, 1)], verbose=False)
    sequential = CombinedLoader([loader(6, 3), loader(4, 2)], "sequential")
    order = [[batch_idx, dataloader_idx] for _, batch_idx, dataloader_idx in sequential]
    print(
        json.dumps({"steps": model.steps, "order": model.order, "modes": modes, "tested": results, "sequential": order})
    )
