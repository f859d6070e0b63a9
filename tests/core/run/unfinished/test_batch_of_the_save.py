"""The batch that runs while a checkpoint is saved: the resumed run trains on that one, as it was read."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lightlib.callbacks import Callback
from lightlib.checkpoint import load
from lightlib.report import PossibleUserWarning
from tests.runs.plain import Net, Rows, batches, quiet_trainer, same_weights, samples, with_methods
from tests.runs.resumable import fresh, loaders, run, trainer_for

SAMPLES = 26  # seven batches of an epoch


class Saves(Callback):
    """Saves when `hook` is called for the `call`-th time."""

    not_in_checkpoint = ("calls", "rows")

    def __init__(self, path, call):
        self.path, self.call, self.calls, self.rows = path, call, 0, None

    def on_train_batch_start(self, trainer, *args):
        self.calls += 1
        if self.calls == self.call:
            trainer.save_checkpoint(self.path)
            self.rows = len(trainer.logger.rows)


class Own(Dataset):
    """Samples with noise from generators of its own, and a counter."""

    def __init__(self):
        self.x, self.y = samples(SAMPLES)
        self.torch, self.numpy = torch.Generator().manual_seed(4), numpy.random.default_rng(5)
        self.python, self.count = random.Random(6), 0

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        self.count += 1
        noise = torch.randn(6, generator=self.torch) + self.numpy.random() + self.python.random()
        return self.x[index] + 0.1 * noise + 0.01 * self.count, self.y[index]


class Stream(IterableDataset):
    def __iter__(self):
        for x, y in zip(*samples(SAMPLES), strict=True):
            yield x + torch.randn(6) + random.random(), y


class Position(IterableDataset):
    """Knows its own position."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        x, y = samples(SAMPLES)
        while self.position < SAMPLES:
            self.position += 1
            yield x[self.position - 1], y[self.position - 1]
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def with_state():
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    return torchdata.StatefulDataLoader(Position(), 4)


DATA = {
    "global generators": lambda: loaders(n=SAMPLES)[0],
    "own generators": lambda: DataLoader(Own(), 4, shuffle=True),
    "a stream": lambda: DataLoader(Stream(), 4),
    "a loader with a state": with_state,
}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # by torch, and called by torchdata
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("call", [1, 5, 7, 8])
@pytest.mark.parametrize("data", DATA)
def test_a_batch_is_not_read_again(tmp_path, data, call, accumulate):
    saves = Saves(tmp_path / "a.ckpt", call)
    arguments = {"accumulate_grad_batches": accumulate, "num_sanity_val_steps": 0}
    complete, trainer = run(fresh(), trainer_for(saves, **arguments), (DATA[data](), loaders()[1]))
    resumed, other = run(fresh(9), trainer_for(**arguments), (DATA[data](), loaders()[1]), tmp_path / "a.ckpt", seed=5)
    assert other.progress == trainer.progress
    assert other.logger.rows == trainer.logger.rows[saves.rows :]
    assert same_weights(resumed, complete)


def test_the_hooks_of_its_transfer_are_not_called_again(tmp_path):
    def fit(*callbacks, path=None, module=None):
        module = module or with_methods(
            on_after_batch_transfer=lambda self, batch, dataloader_idx: (batch[0] + torch.randn(6), batch[1])
        )
        data = DataLoader(Own(), 4)
        torch.manual_seed(3)
        quiet_trainer(callbacks=list(callbacks), logger=Rows()).fit(module, data, ckpt_path=path)
        return module

    complete = fit(Saves(tmp_path / "a.ckpt", 3))
    assert same_weights(fit(path=tmp_path / "a.ckpt"), complete)


def test_a_hook_within_the_batch_keeps_it_too(tmp_path):
    """The step draws nothing here, so repeating the batch is exact."""

    def fit(module, path=None):
        module.path = tmp_path / "a.ckpt"
        quiet_trainer().fit(module, DataLoader(Own(), 4), ckpt_path=path)
        return module

    def on_after_backward(self):
        if self.trainer.progress.batch == 2:
            self.trainer.save_checkpoint(self.path)

    with pytest.warns(PossibleUserWarning, match="a resumed run repeats it"):
        complete = fit(with_methods(Net, on_after_backward))
    assert same_weights(fit(Net(), tmp_path / "a.ckpt"), complete)


class Holds:
    """A batch that no checkpoint can hold."""

    def __init__(self, items):
        self.tensors = torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


def test_a_batch_that_cannot_be_stored_is_named(tmp_path):
    with pytest.warns(
        PossibleUserWarning, match=r"the batch that is running, which a resumed run reads again(.|\n)*Holds"
    ):
        quiet_trainer(callbacks=[Saves(tmp_path / "a.ckpt", 2)], logger=Rows()).fit(
            with_methods(
                training_step=lambda self, batch, batch_idx: Net.training_step(self, batch.tensors, batch_idx)
            ),
            DataLoader(Own(), 4, collate_fn=Holds),
        )


@pytest.mark.processes
@pytest.mark.parametrize("workers", [None, 1])
def test_a_batch_that_can_be_read_again_is_not_stored(tmp_path, workers):
    """A list of batches, and data that workers read: they draw from the number of the sample."""
    data = batches(7) if workers is None else loaders(workers, SAMPLES)[0]
    quiet_trainer(callbacks=[Saves(tmp_path / "a.ckpt", 2)], logger=Rows()).fit(Net(), data)
    ours = load(tmp_path / "a.ckpt")["lightlib"]
    assert "batch" not in ours["unfinished"]
    assert (ours["data"]["batches"], ours["data"]["kept"]) == (1, 0)
