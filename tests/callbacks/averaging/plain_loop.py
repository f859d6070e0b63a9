"""A module with batch norm, its data, and a plain loop that averages with torch's AveragedModel."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from tests.runs.modules import Regression

QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


class Net(Regression):
    """Two layers with batch norm between them; the validation sees the weights and the running mean."""

    def __init__(self):
        torch.manual_seed(5)
        layers = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))
        super().__init__(layers, lambda parameters: torch.optim.AdamW(parameters, 0.02))
        self.validated = []

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def on_validation_end(self):
        self.validated.append(float(self.trainer.callback_metrics["val_loss"]))


def data(batches=6, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(batches * 4, 4, generator=generator), torch.randn(batches * 4, 2, generator=generator)
    return DataLoader(TensorDataset(x, y), 4)


def plain(updates, epochs=2, **options):
    """Train in a plain loop.

    Args:
        updates: Called with the step, or with None and the epoch: whether to update the average.
        options: For `AveragedModel`.

    Returns:
        The trained module, the averaged one, and the validation losses at the end of each epoch: of the average if
        there is one.
    """
    module = Net()
    optimizer, averaged, losses, step = module.configure_optimizers(), AveragedModel(module.net, **options), [], 0
    for epoch in range(epochs):
        for x, y in data():
            optimizer.zero_grad()
            F.mse_loss(module.net(x), y).backward()
            optimizer.step()
            if updates(step, None):
                averaged.update_parameters(module.net)
            step += 1
        validated = averaged.module if averaged.n_averaged else module.net
        validated.eval()
        with torch.no_grad():
            losses.append(sum(float(F.mse_loss(validated(x), y)) for x, y in data(3, 2)) / 3)
        validated.train()
        if updates(None, epoch):
            averaged.update_parameters(module.net)
    return module.net, averaged.module, losses
