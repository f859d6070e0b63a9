"""Distributed data in real processes: sharding, exact evaluation, unequal shards, resume."""

from __future__ import annotations

import multiprocessing
import random
from contextlib import nullcontext

import pytest
import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

import lightlib as L
from tests.processes.ranks import ranks
from tests.runs.plain import Net, Unsized, with_methods
from tests.runs.quiet import QUIET

pytestmark = pytest.mark.processes


class Reads(Net):
    """A classifier that keeps the numbers of the samples it was trained and evaluated with."""

    not_in_checkpoint = ("epochs", "validated", "ended")

    def __init__(self):
        super().__init__(net=nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)))
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(3, average="micro")
        self.epochs, self.validated, self.ended = [], [], 0

    def on_train_epoch_start(self):
        self.epochs.append([])

    def training_step(self, batch, batch_idx):
        number, x, y = batch
        if not self.epochs:  # resumed within an epoch
            self.epochs.append([])
        self.epochs[-1].append(number.tolist())
        return F.cross_entropy(self.net(x), y)

    def validation_step(self, batch, batch_idx):
        _, x, y = batch
        output = self.net(x)
        self.accuracy(output, y)
        self.log("accuracy", self.accuracy)
        self.log("loss", F.cross_entropy(output, y))

    def on_validation_batch_end(self, outputs, batch, batch_idx):
        if not self.trainer.sanity_checking:
            self.validated += batch[0].tolist()

    def predict_step(self, batch, batch_idx):
        self.net(batch[1])
        return batch[0]


def samples(n):
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(n, 4, generator=generator), torch.randint(0, 3, (n,), generator=generator)
    return TensorDataset(torch.arange(n), x, y)


def built():
    torch.manual_seed(4)
    return Reads()


def trainer_of(strategy, devices, **arguments):
    return L.Trainer(**{**QUIET, "strategy": strategy, "devices": devices, "max_epochs": 2, **arguments})


def shuffled_fit(rank, strategy, devices, n, val, size):
    """Train on shuffled samples, validate and predict uneven numbers; return samples and metrics."""
    module = built()
    trainer = trainer_of(strategy, devices, num_sanity_val_steps=1)
    trainer.fit(module, DataLoader(samples(n), size, shuffle=True), DataLoader(samples(val), size))
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    weights = trainer.strategy.module_state()
    predicted = [i for batch in trainer.predict(module, DataLoader(samples(val), 1)) for i in batch.tolist()]
    return module.epochs, module.validated, metrics, predicted, weights


def batch_of_all(parts, epoch, step):
    return sorted(i for part in parts for i in part[epoch][step])


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("val", [7, 1])
def test_the_same_batches_and_metrics_as_one_process(strategy, val):
    epochs, _, metrics, predicted, weights = shuffled_fit(0, "auto", 1, 12, val, 4)
    several = ranks(2, shuffled_fit, strategy, 2, 12, val, 2)
    for epoch in range(2):
        for step, batch in enumerate(epochs[epoch]):
            assert batch_of_all([one[0] for one in several], epoch, step) == sorted(batch)
    assert epochs[0] != epochs[1]
    assert sorted(i for one in several for i in one[3]) == sorted(predicted) == list(range(val))
    assert sorted(i for one in several for i in one[1]) == sorted([*range(val), *range(val)])
    for one in several:
        assert one[2] == pytest.approx(metrics, rel=1e-5)
    for name, value in several[0][4].items():
        torch.testing.assert_close(value, weights[name], rtol=1e-5, atol=1e-6)


def tensor_fit(rank):
    module = built()
    trainer = trainer_of(L.strategies.MeshStrategy(tensor=2), 2, limit_val_batches=0)
    module.parallel_plan = lambda: {"tensor": {"net.0": "colwise", "net.2": "rowwise"}}
    trainer.fit(module, DataLoader(samples(9), 2, shuffle=True))
    return module.epochs


def test_processes_with_one_part_of_the_data_read_the_same():
    first, second = ranks(2, tensor_fit)
    assert first == second
    assert first[0] != first[1]


class Stream(IterableDataset):
    """Draws its order."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        data, order = samples(self.n), list(range(self.n))
        random.shuffle(order)
        return iter([data[i] for i in order])


def read(rank, make, **arguments):
    """Train, and return the epochs."""
    module = built()
    trainer_of("ddp", 2, limit_val_batches=0, **arguments).fit(module, make(rank))
    return module.epochs


def refused(rank, make):
    """Return the text of the error, which one process raises first and the rest repeat."""
    try:
        read(rank, make, use_distributed_sampler=False)
    except Exception as error:  # noqa: BLE001
        return str(error)


def stream(rank):
    return DataLoader(Stream(10), batch_size=2)


def uneven(rank):
    return DataLoader(samples(10 - rank), batch_size=1, shuffle=True)


def uneven_streams(rank):
    return DataLoader(Stream(10 - 3 * rank), batch_size=1)


def more_loaders(rank):
    return {str(i): DataLoader(samples(4)) for i in range(1 + rank)}


def several_reads(rank):
    own = {"use_distributed_sampler": False}
    return [
        read(rank, stream),
        read(rank, uneven, limit_train_batches=9, **own),
        read(rank, uneven_streams, **own),
        read(rank, lambda rank: DataLoader(samples(12), 2), global_batch_size=12),
    ]


def test_streams_and_unequal_data():
    (dealt, limited, agreed, small), (dealt_too, limited_too, agreed_too, small_too) = ranks(2, several_reads)
    for epoch in range(2):
        numbers = [i for part in (dealt, dealt_too) for batch in part[epoch] for i in batch]
        assert len(set(numbers)) == len(numbers) == 8
    assert [len(epoch) for epoch in limited + limited_too] == [9] * 4
    assert [len(epoch) for epoch in agreed + agreed_too] == [7] * 4
    assert [len(epoch) for epoch in small + small_too] == [3] * 4


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (uneven, "The processes have different numbers of training batches: rank 0: 10, rank 1: 9."),
        (more_loaders, "The processes have different numbers of training loaders: rank 0: 1, rank 1: 2."),
    ],
)
def test_unequal_data_are_refused_before_the_epoch(make, text):
    for error in ranks(2, refused, make):
        assert text in error


class SavesOnce(L.Callback):
    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def saved_fit(rank, strategy, devices, size, path, step, own=False):
    """Train on 24 samples; save within the second epoch."""
    module = built()
    arguments = {"callbacks": [SavesOnce(step, path)]} if step else {}
    trainer = trainer_of(
        strategy, devices, limit_val_batches=0, max_epochs=3, use_distributed_sampler=not own, **arguments
    )
    data = Subset(samples(24), range(rank, 24, 2)) if own else samples(24)
    trainer.fit(module, DataLoader(data, size, shuffle=True), ckpt_path=None if step else path)
    return module.epochs, trainer.strategy.module_state()


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 2)])
def test_resumed_by_more_or_fewer_processes(tmp_path, before, after):
    path = str(tmp_path / "one.ckpt")

    def run(count, step):
        if count == 1:
            return [saved_fit(0, "auto", 1, 4, path, step)]
        return ranks(2, saved_fit, "ddp", 2, 2, path, step)

    whole = run(before, 8)
    with pytest.warns(UserWarning, match="written by 2 processes") if before > after else nullcontext():
        rest = run(after, 0)
    left = [batch_of_all([one[0] for one in whole], 1, step) for step in range(2, 6)]
    assert [batch_of_all([one[0] for one in rest], 0, step) for step in range(4)] == left
    for name, value in rest[0][1].items():
        if before == after:
            assert value.equal(whole[0][1][name])


def test_a_shuffle_of_ones_own_part_is_resumed_on_every_process(tmp_path):
    path = str(tmp_path / "one.ckpt")
    whole = ranks(2, saved_fit, "ddp", 2, 2, path, 8, True)
    rest = ranks(2, saved_fit, "ddp", 2, 2, path, 0, True)
    for (epochs, _), (again, _) in zip(whole, rest, strict=True):
        assert again == [epochs[1][2:], epochs[2]]


class NoisyInWorkers(torch.utils.data.Dataset):
    """Samples with noise from the worker's generator, in place of the inputs."""

    def __init__(self, n):
        self.samples = samples(n)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        number, _, y = self.samples[index]
        return number, torch.rand(4), y


def noisy_fit(rank, strategy, devices, size, path, step):
    torch.manual_seed(4 if step else 40 + rank)
    multiprocessing.current_process()._config["daemon"] = False  # else a process of a test may not have workers

    def training_step(self, batch, batch_idx):
        loss = Reads.training_step(self, batch, batch_idx)
        self.epochs[-1][-1] = sorted(zip(batch[0].tolist(), batch[1].tolist(), strict=True))
        return loss

    module = with_methods(Reads, training_step)
    callbacks = [SavesOnce(step, path)] if step else []
    trainer = trainer_of(strategy, devices, limit_val_batches=0, callbacks=callbacks)
    loader = DataLoader(NoisyInWorkers(24), size, shuffle=True, num_workers=1)
    trainer.fit(module, loader, ckpt_path=None if step else path)
    return module.epochs


def test_workers_draw_the_same_on_any_number_of_processes_and_after_a_resume(tmp_path):
    path = str(tmp_path / "one.ckpt")
    one = noisy_fit(0, "auto", 1, 4, path, 20)
    two = ranks(2, noisy_fit, "ddp", 2, 2, path, 8)
    rest = ranks(2, noisy_fit, "ddp", 2, 2, path, 0)
    for epoch in range(2):
        assert [sorted(a + b) for a, b in zip(two[0][epoch], two[1][epoch], strict=True)] == one[epoch]
    assert one[0] != one[1]
    assert [again == [whole[1][2:]] for whole, again in zip(two, rest, strict=True)] == [True, True]


def array_fit(rank):
    """Train and evaluate batches of NumPy arrays, seven of them for evaluation."""
    batches = [tuple(one.numpy() for one in batch) for batch in DataLoader(samples(14), 2)]
    module = built()
    trainer_of("ddp", 2, max_epochs=1).fit(module, batches, Unsized(batches))
    return module.epochs, module.validated


def test_numpy_arrays_on_two_processes():
    (first, first_validated), (second, second_validated) = ranks(2, array_fit)
    assert (first, second) == ([[[0, 1], [4, 5], [8, 9]]], [[[2, 3], [6, 7], [10, 11]]])
    assert sorted(first_validated + second_validated) == list(range(14))
