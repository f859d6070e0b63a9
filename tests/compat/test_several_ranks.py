"""Lightning's conventions with two ranks: loaders are requested late, and the weights are the same."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lightlib
from lightlib.conventions import LIGHTLIB, LIGHTNING, following
from tests.processes.ranks import ranks
from tests.runs.quiet import QUIET

pytestmark = pytest.mark.processes


class Net(lightlib.Module):
    """Requests its own loaders, two of them for validation."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(3, 1)
        self.requested = []

    def _loader(self, name):
        self.requested.append(name)
        return DataLoader(TensorDataset(torch.arange(48.0).reshape(16, 3) / 48), 2)

    def train_dataloader(self):
        return self._loader("train")

    def val_dataloader(self):
        return [self._loader("val"), self._loader("val")]

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).pow(2).mean()

    def validation_step(self, batch, batch_idx, dataloader_idx):
        self.log("val", self.layer(batch[0]).mean())

    def configure_optimizers(self):
        self.requested.append("optimizers")
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fitted(rank, strategy):
    """Return the weights and the order of requests under both conventions, on this rank."""
    results = []
    for conventions in (LIGHTNING, LIGHTLIB):
        with following(conventions):
            net = Net()
            lightlib.Trainer(**QUIET, max_epochs=2, devices=2, strategy=strategy, accumulate_grad_batches=2).fit(net)
            weights = {name: value.clone() for name, value in net.state_dict().items()}
            results.append(([value.tolist() for value in weights.values()], net.requested))
    return results


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_two_ranks_train_as_without_compat(strategy):
    for (late, requested), (early, before) in ranks(2, fitted, strategy):
        assert late == early
        assert requested == ["optimizers", "val", "val", "train"]
        assert before == ["train", "val", "val", "optimizers"]
