"""`Trainer(global_batch_size=…)`: the sizes it resolves to, its messages, and its errors."""

# ruff: noqa: RUF001  a multiplication sign is meant

from __future__ import annotations

import contextlib
import itertools

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from lightlib.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
from lightlib.core.resume.step_sizes import keeps
from lightlib.core.setup.batch_sizes import accumulation_of, largest_batch
from lightlib.data import sharding
from lightlib.errors import MisconfigurationException
from tests.runs.plain import Net, Unsized, batches, loader, quiet_trainer, same_weights, samples, subclass, with_methods


class Sizes(Net):
    """Keeps the number of samples of each batch, and of batches per step."""

    def __init__(self):
        super().__init__()
        self.sizes, self.steps = [], []

    def training_step(self, batch, batch_idx):
        self.sizes.append(len(batch[0]))
        return super().training_step(batch, batch_idx)

    def on_before_optimizer_step(self, optimizer):
        self.steps.append(sum(self.sizes) - sum(self.steps))


def fit(data, module=None, **arguments):
    module = module or Sizes()
    trainer = quiet_trainer(limit_val_batches=0, **arguments)
    trainer.fit(module, data)
    return trainer, module


@pytest.mark.parametrize(
    ("wanted", "size", "processes", "accumulate", "said"),
    [
        (256, 16, 2, 8, "Global batch 256 = 2 processes × 16 × 8 accumulated."),
        (250, 16, 2, 8, "Global batch 256 = 2 processes × 16 × 8 accumulated; 250 was requested."),
        (32, 32, 1, 1, "Global batch 32 = 1 process × 32 × 1 accumulated."),
        (40, 32, 1, 1, "Global batch 32 = 1 process × 32 × 1 accumulated; 40 was requested."),
        (7, 3, 2, 1, "Global batch 6 = 2 processes × 3 × 1 accumulated; 7 was requested."),
    ],
)
def test_what_comes_nearest(wanted, size, processes, accumulate, said):
    assert accumulation_of(wanted, [size], processes, []) == (accumulate, said)


def test_the_largest_batch_of_a_process():
    assert largest_batch(None, 4) is None
    assert largest_batch(10, 4) == 2
    with pytest.raises(MisconfigurationException, match="global_batch_size=3 is less than the 4 processes"):
        largest_batch(3, 4)


def test_batches_are_accumulated(monkeypatch):
    said = []
    sharding.report.once.clear()
    monkeypatch.setattr(sharding.report, "info", said.append)
    trainer, module = fit(loader(24, 4), global_batch_size=12)
    fit(loader(24, 4), global_batch_size=12)
    assert trainer.accumulate_grad_batches == 3
    assert module.steps == [12, 12]
    assert said.count("Global batch 12 = 1 process × 4 × 3 accumulated.") == 1
    _, other = fit(loader(24, 4), accumulate_grad_batches=3)
    assert same_weights(module, other)


def test_larger_batches_are_made_smaller_and_that_is_said(monkeypatch):
    said = []
    sharding.report.once.clear()
    monkeypatch.setattr(sharding.report, "info", said.append)
    given = loader(24, 16)
    trainer, module = fit(given, global_batch_size=8)
    assert module.sizes == [8, 8, 8]
    assert trainer.num_training_batches == 3
    assert trainer.train_dataloader is given
    assert given.batch_size == 16
    text = "Global batch 8 = 1 process × 8 × 1 accumulated; the loader's batches of 16 are made smaller."
    assert text in said


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(6), 0)] * 10)


def test_of_streams_and_of_batch_samplers_as_well():
    _, module = fit(DataLoader(Stream(), batch_size=8), global_batch_size=4)
    assert module.sizes == [4, 4, 2]
    data = loader(10).dataset
    _, module = fit(DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 8, True)), global_batch_size=4)
    assert module.sizes == [4, 4]


def test_each_fit_resolves_anew():
    trainer, _ = fit(loader(24, 4), global_batch_size=8)
    assert trainer.accumulate_grad_batches == 2
    trainer.max_epochs = 2
    trainer.fit(Sizes(), loader(24, 2))
    assert trainer.accumulate_grad_batches == 4


def test_several_loaders_of_one_batch_size():
    both = subclass(
        Sizes, training_step=lambda self, batch, batch_idx: Sizes.training_step(self, batch["a"], batch_idx)
    )
    trainer, _ = fit({"a": loader(8, 4), "b": loader(16, 4)}, both(), global_batch_size=8)
    assert trainer.accumulate_grad_batches == 2
    with pytest.raises(MisconfigurationException, match=r"has loaders with the batch sizes \[4, 2\]"):
        fit({"a": loader(8, 4), "b": loader(16, 2)}, both(), global_batch_size=8)


@pytest.mark.parametrize("data", [batches(2), Unsized(batches(2)), DataLoader(batches(2), batch_size=None)])
def test_loaders_without_a_batch_size(data):
    with pytest.raises(
        MisconfigurationException, match="global_batch_size=8, but the training data has no known batch size"
    ):
        fit(data, global_batch_size=8)


@pytest.mark.parametrize(("wanted", "processes", "size"), [(64, 2, 32), (65, 2, 32), (64, 1, 64), (7, 3, 2)])
def test_the_batch_of_a_process(wanted, processes, size):
    assert largest_batch(wanted, processes) == size


@pytest.mark.parametrize(("wanted", "size"), [(64, 32), (65, 32)])
def test_per_device_batch_size_in_train_dataloader(monkeypatch, wanted, size):
    def train_dataloader(self):
        self.read = self.trainer.per_device_batch_size
        return loader(2 * self.read, self.read)

    module = with_methods(Sizes, train_dataloader)
    trainer = quiet_trainer(limit_val_batches=0, global_batch_size=wanted, max_epochs=1)
    monkeypatch.setattr(trainer.strategy, "data_size", 2)  # the second process is not needed for the numbers
    assert trainer.per_device_batch_size == size
    if wanted == 64:
        trainer.fit(module)
    else:
        with pytest.warns(UserWarning, match="Global batch 64 = 2 processes × 32 × 1 accumulated; 65 was requested"):
            trainer.fit(module)
    assert module.read == trainer.per_device_batch_size == size


def test_fewer_samples_than_processes(monkeypatch):
    trainer = quiet_trainer(global_batch_size=1)
    monkeypatch.setattr(trainer.strategy, "data_size", 2)
    with pytest.raises(MisconfigurationException, match="global_batch_size=1 is less than the 2 processes"):
        trainer.fit(Sizes(), loader(8))


def test_the_batch_size_follows_from_the_other_two():
    x, y = samples(24)
    trainer, module = fit((x, y), global_batch_size=12, accumulate_grad_batches=3)
    assert (trainer.per_device_batch_size, trainer.accumulate_grad_batches) == (4, 3)
    assert module.sizes == [4] * 6
    assert module.steps == [12, 12]
    trainer, module = fit(loader(24, 8), global_batch_size=12, accumulate_grad_batches=3)
    assert module.sizes == [4] * 6, "larger batches are made smaller"
    assert trainer.per_device_batch_size == 4
    with pytest.warns(UserWarning, match="Global batch 12 = 1 process × 4 × 3 accumulated; 14 was requested"):
        _, module = fit(loader(24, 8), global_batch_size=14, accumulate_grad_batches=3)
    assert module.steps == [12, 12]


def test_a_second_fit_resolves_the_batch_size_again():
    trainer, _ = fit(loader(24, 8), global_batch_size=12, accumulate_grad_batches=3)
    trainer.max_epochs, module = 2, Sizes()
    trainer.fit(module, loader(24, 6))
    assert module.sizes == [4] * 12


def test_without_a_global_batch_size():
    trainer = quiet_trainer(limit_val_batches=0)
    assert trainer.per_device_batch_size is None
    trainer.fit(Sizes(), loader(8, 4))
    assert trainer.per_device_batch_size == 4
    trainer.fit(Sizes(), batches(2))
    assert trainer.per_device_batch_size is None


def test_contradictions():
    text = r"global_batch_size=8 and accumulate_grad_batches=2 make batches of 4 on 1 process, but .* batches of 2"
    with pytest.raises(MisconfigurationException, match=text):
        fit(loader(8, 2), global_batch_size=8, accumulate_grad_batches=2)
    with pytest.raises(MisconfigurationException, match="global_batch_size=3 is less than the 4 batches of a step"):
        fit(loader(8, 2), global_batch_size=3, accumulate_grad_batches=4)
    with pytest.raises(MisconfigurationException, match="together with a GradientAccumulationScheduler"):
        fit(loader(8), global_batch_size=8, callbacks=[GradientAccumulationScheduler({0: 1})])


def test_manual_optimization():
    module = Sizes()
    module.automatic_optimization = False
    with pytest.raises(MisconfigurationException, match=r"Trainer\(global_batch_size=8\) with manual optimization"):
        fit(loader(8), module, global_batch_size=8)


def test_the_sizes_that_an_error_lists_are_those_that_a_run_resolves_to():
    for size, processes, batch, given in itertools.product(range(1, 40), range(1, 6), range(1, 10), (None, 1, 3)):
        reached = 0
        if size >= processes * (given or 1):
            read = min(batch, largest_batch(size, processes, given or 1))
            with contextlib.suppress(MisconfigurationException):
                reached = accumulation_of(size, [read], processes, [], [batch], given)[0] * read * processes
        assert keeps(size, processes, batch, given) == (reached == size), (size, processes, batch, given)
