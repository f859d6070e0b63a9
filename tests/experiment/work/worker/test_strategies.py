"""Rungs of trials of two processes that shard the model or read a stream, against a loop of torch."""

from __future__ import annotations

import importlib.util

import pytest
import torch

pytest.importorskip("optuna")

from tests.experiment.test_rungs import ASHA, validated
from tests.experiment.work.project import FIT, Project

pytestmark = pytest.mark.processes
SEED, RUNG, END = 11, 5, 10  # batches; the rung is within an epoch
MODEL = '''
import os
from itertools import islice
from pathlib import Path

import lightlib as L
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info


class Net(L.Module):
    """A chain that a strategy can shard or cut; each rank leaves its steps."""

    def __init__(self, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.mse_loss(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        trial = int(Path.cwd().parent.name)
        (Path(os.environ["SEEN"]) / f"{trial}-{self.trainer.global_rank}-{self.global_step}").touch()


class Stream(IterableDataset):
    """Samples in another order in each epoch, shared by the workers of a loader."""

    def __init__(self, samples):
        self.samples, self.epoch = samples, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(len(self.samples), generator=torch.Generator().manual_seed(self.epoch))
        worker = get_worker_info()
        for i in order if worker is None else islice(order, worker.id, None, worker.num_workers):
            yield self.samples[int(i)]


class Points(L.DataModule):
    """Data of a curve: shuffled by the loader, or a stream with some workers."""

    def __init__(self, batch_size=8, workers=None):
        super().__init__()
        self.batch_size, self.workers = batch_size, workers
        x = torch.randn(40, 2, generator=torch.Generator().manual_seed(3))
        y = (3 * x[:, :1]).sin() - x[:, 1:]
        self.train, self.val = TensorDataset(x[:32], y[:32]), TensorDataset(x[32:], y[32:])

    def train_dataloader(self):
        if self.workers is None:
            return DataLoader(self.train, self.batch_size, shuffle=True)
        return DataLoader(Stream(self.train), self.batch_size, num_workers=self.workers)

    def val_dataloader(self):
        return DataLoader(self.val, 4)
'''


@pytest.mark.parametrize(
    ("strategy", "workers", "readers"),
    [("fsdp", None, 2), ("pipeline", None, 1), ("ddp", 0, 2), ("ddp", 2, 2)],
    ids=["fsdp", "pipeline", "stream", "stream with workers"],
)
def test_a_trial_stops_or_pauses_at_its_rung_and_continues_exactly(tmp_path, strategy, workers, readers):
    """Both trials have the same first weights; the second one has a tenth of the learning rate, and is worse."""
    found = {}
    for stop_once in ("true", "false"):
        project = Project(
            tmp_path / stop_once,
            f"""
            fit: {{seed_everything: {SEED}, trainer: {{strategy: {strategy}}}}}
            searcher: {{{ASHA}, max_trials: 2, max_rungs: 2, max_length: {{batches: {END}}}, stop_once: {stop_once}}}
            """,
            MODEL,
            slots=2,
        )
        fit = FIT.replace("model.Line", "model.Net")
        given = f"class_path: model.Points, init_args: {{workers: {'null' if workers is None else workers}}}"
        (project.folder / "config.yaml").write_text(fit.replace("class_path: model.Points", given))
        project.run()
        better, worse = project.trials()
        assert (better.state, worse.state) == ("completed", "stopped")
        assert (better.attempts, worse.attempts) == (1 if stop_once == "true" else 2, 1)
        assert (validated(project, 0)[-1], validated(project, 1)[-1]) == (END, RUNG)
        steps = {
            f"{trial}-{rank}-{i + 1}" for trial, end in ((0, END), (1, RUNG)) for rank in (0, 1) for i in range(end)
        }
        assert {one.name for one in project.seen.iterdir()} == steps
        for one, batches in ((better, END), (worse, RUNG)):
            expected = weights_of(project, one.hparams["lr"], workers, readers, batches)
            torch.testing.assert_close(project.weights(one.number), expected)
        found[stop_once] = project.weights(0)
    assert all(torch.equal(value, found["false"][name]) for name, value in found["true"].items())


def weights_of(project, lr, workers, readers, batches):
    """Return the weights of a plain loop on one process, of which a batch is that of all readers."""
    spec = importlib.util.spec_from_file_location("searched_model", project.folder / "model.py")
    model = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)
    torch.manual_seed(SEED)
    layers = model.Net().layers
    optimizer = torch.optim.SGD(layers.parameters(), lr=lr, momentum=0.9)
    points, done = model.Points(8 if workers is not None else 8 * readers, workers), 0
    for epoch in range(batches):
        loader = points.train_dataloader()
        if workers is not None:
            loader.dataset.set_epoch(epoch)
        read, together = list(loader), 1 if workers is None else readers
        for i in range(0, len(read), together):
            x, y = map(torch.cat, zip(*read[i : i + together], strict=True))
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(layers(x), y).backward()
            optimizer.step()
            done += 1
            if done in (RUNG, END) or i + together == len(read):
                iter(points.val_dataloader())  # draws a random number, as a validation does
            if done == batches:
                return {f"layers.{name}": value for name, value in layers.state_dict().items()}
    raise AssertionError("an epoch has batches")
