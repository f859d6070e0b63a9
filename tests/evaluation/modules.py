"""Shared by tests of evaluation: modules that return predictions, metrics, and plain loops."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import CatMetric

from lightlib.evaluation import Metric
from tests.runs.plain import Net, samples


class Predicts(Net):
    """Returns predictions and targets from every step, and logs nothing."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        return {"loss": cross_entropy(logits, y), "preds": logits.detach(), "target": y}

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        return {"preds": self.net(batch[0]), "target": batch[1]}

    def test_step(self, batch, batch_idx):
        return self.net(batch[0])

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])


class Losses(Metric):
    """Mean and median of the losses of single samples, which depend on their order in the last bits."""

    default_prefix = "loss"
    higher_is_better = False

    def process(self, batch, outputs):
        preds = outputs["preds"] if isinstance(outputs, dict) else outputs
        self.results.extend(cross_entropy(preds, batch[1], reduction="none"))

    def compute_metrics(self, results):
        return {"mean": running_sum(results) / len(results), "last": results[-1], "count": len(results)}


class Listed(CatMetric):
    """A metric of torchmetrics that keeps a list: the sum of the first logits."""

    def update(self, preds, target):
        super().update(preds[:, 0])

    def compute(self):
        return super().compute().double().sum()


def running_sum(values):
    """The sum in this order, in float32."""
    total = torch.zeros(())
    for value in values:
        total = total + value
    return total


def data(n, seed=2):
    return TensorDataset(*samples(n, seed))


def loader(n, size=2, **arguments):
    return DataLoader(data(n), batch_size=size, **arguments)


def outputs_by_hand(net, n, size=2):
    """The logits and targets of all samples, computed in batches of `size`, in order."""
    x, y = samples(n)
    with torch.no_grad():
        return torch.cat([net(part) for part in x.split(size)]), y


def losses_by_hand(net, n, size=2):
    """The numbers of `Losses`, by a plain loop over the samples."""
    logits, y = outputs_by_hand(net, n, size)
    losses = cross_entropy(logits, y, reduction="none")
    return {"loss/mean": float(running_sum(losses) / n), "loss/last": float(losses[-1]), "loss/count": float(n)}
