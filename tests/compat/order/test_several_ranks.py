"""Lightning's conventions with two ranks: loaders are requested late, and the weights are the same."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lightlib
from lightlib.callbacks import ModelCheckpoint
from lightlib.conventions import LIGHTLIB, following
from lightlib.loggers.logger import DummyLogger
from lightlib_lightning.order import LIGHTNING
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
            lightlib.Trainer(
                **QUIET, max_epochs=2, devices=2, strategy=strategy, accumulate_grad_batches=2,
                use_distributed_sampler=False,
            ).fit(net)  # fmt: skip
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


class Rows(DummyLogger):
    """Keeps the rows, which are its output: no checkpoint has them."""

    not_in_checkpoint = ("rows",)

    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, sorted(metrics.items())))


class Drawing(lightlib.Module):
    """Draws in its steps, and logs each of them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(3, 1)
        self.read = []

    def training_step(self, batch, batch_idx):
        self.read.append(batch[0][:, 0].mul(48).int().tolist())
        loss = torch.nn.functional.dropout(self.layer(batch[0])).pow(2).mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val", self.layer(batch[0]).mean(), on_step=True, on_epoch=True, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def resumed(rank, folder):
    """Return samples, rows and weights of a run, and those of one that is resumed within its second epoch."""
    results = []
    with following(LIGHTNING):
        for path in (None, f"{folder}/epoch=1-step=5.ckpt"):
            lightlib.seed_everything(3, verbose=False)
            net, rows = Drawing(), Rows()
            data = TensorDataset(torch.arange(42.0).reshape(14, 3) / 48)
            saves = ModelCheckpoint(folder, filename="{epoch}-{step}", save_top_k=-1, every_n_train_steps=5)
            lightlib.Trainer(
                **{**QUIET, "logger": rows, "enable_checkpointing": True}, callbacks=[saves], max_epochs=3, devices=2,
                strategy="ddp", log_every_n_steps=1, val_check_interval=2,
            ).fit(net, DataLoader(data, 2, shuffle=True), DataLoader(data, 4), ckpt_path=path)  # fmt: skip
            results.append((net.read, rows.rows, net.layer.weight.tolist()))
    return results


@pytest.mark.filterwarnings("ignore")
def test_two_ranks_resume_exactly_with_lightnings_samplers(tmp_path):
    for (read, rows, weights), (read_again, rows_again, weights_again) in ranks(2, resumed, str(tmp_path)):
        assert len(read) == 12
        assert read_again == read  # the first five come from the checkpoint
        assert rows_again == rows[-len(rows_again) :]
        assert 0 < len(rows_again) < len(rows)
        assert weights_again == weights
