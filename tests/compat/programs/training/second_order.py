"""LBFGS by closures, steps that are skipped by None, and a training_step that returns no dict."""

import json

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset


class Base(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Softplus(), torch.nn.Linear(4, 1))
        self.calls, self.ends = [], []

    def loss(self, batch):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.calls.append(loss.item())
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.ends.append([batch_idx, outputs["loss"].item() if outputs else None, self.global_step])


class ByClosure(Base):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.05, max_iter=4)


class Skipping(Base):
    def training_step(self, batch, batch_idx):
        return None if batch_idx % 3 == 1 else super().training_step(batch, batch_idx)

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if self.current_epoch == 1 and batch_idx == 3 else None

    def backward(self, loss, *args, **kwargs):
        loss.backward(*args, **kwargs)

    def on_after_backward(self):
        self.norm = sum(p.grad.square().sum().item() for p in self.parameters())

    def configure_optimizers(self):
        return torch.optim.RMSprop(self.parameters(), lr=0.01)


def fit(model_class):
    seed_everything(37)
    x = torch.randn(30, 3)
    model = model_class()
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(TensorDataset(x, x.norm(dim=1, keepdim=True)), batch_size=6, shuffle=True))
    return {
        "calls": model.calls,
        "ends": model.ends,
        "norm": getattr(model, "norm", None),
        "end": [trainer.current_epoch, trainer.global_step],
    }


if __name__ == "__main__":
    print(json.dumps({model.__name__: fit(model) for model in (ByClosure, Skipping)}))
