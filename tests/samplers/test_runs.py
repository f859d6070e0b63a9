"""Samplers in runs: another order in each epoch, and a resume that continues with the same samples."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler

from lightlib.callbacks import Callback
from lightlib.data.gather import batches_of
from lightlib.data.index_stream import draws_at_once
from lightlib.data.resumable_loader import resumable_loader
from lightlib.samplers import (
    BucketBatchSampler,
    ClassBalancedDataset,
    ClassBalancedSampler,
    InfiniteSampler,
    LengthGroupedSampler,
    RepeatDataset,
    RepeatedAugmentationSampler,
    RepeatSampler,
    ShuffleSampler,
    SkipSampler,
)
from tests.runs.plain import Net, quiet_trainer, same_weights, samples

N = 14
LENGTHS = torch.arange(N).remainder(5).add(1).tolist()
CLASSES = [0] * 10 + [1] * 4


class Numbered(Dataset):
    """Samples with their numbers, and noise from torch's generator."""

    targets = CLASSES

    def __init__(self):
        self.x, self.y = samples(N)

    def __len__(self):
        return N

    def __getitem__(self, index):
        return index, self.x[index] + torch.rand(6), self.y[index]


def by(sampler, data=None, **arguments):
    data = data or Numbered()
    return DataLoader(data, batch_size=4, sampler=sampler(data), **arguments)


MAKE = {
    "shuffled": lambda **more: by(ShuffleSampler, **more),
    "drawn": lambda **more: by(lambda data: ShuffleSampler(data, seed=None), **more),
    "stream": lambda **more: by(lambda data: InfiniteSampler(data, 18), **more),
    "repeated": lambda **more: by(lambda data: RepeatSampler(ShuffleSampler(data, seed=None), 2), **more),
    "skipped": lambda **more: by(lambda data: SkipSampler(ShuffleSampler(data, seed=None), 3), **more),
    "augmented": lambda **more: by(RepeatedAugmentationSampler, **more),
    "grouped": lambda **more: by(lambda data: LengthGroupedSampler(LENGTHS, 4, 2), **more),
    "balanced": lambda **more: by(lambda data: ClassBalancedSampler(CLASSES), **more),
    "weighted": lambda **more: by(lambda data: WeightedRandomSampler([1.0 + c for c in CLASSES], N), **more),
    "buckets": lambda **more: DataLoader(Numbered(), batch_sampler=BucketBatchSampler(LENGTHS, 4), **more),
    "rare": lambda **more: DataLoader(ClassBalancedDataset(Numbered(), 1.0), 4, shuffle=True, **more),
    "twice": lambda **more: DataLoader(RepeatDataset(Numbered(), 2), 4, shuffle=True, **more),
}


class Reads(Net):
    """Keeps the numbers of the samples of each batch."""

    not_in_checkpoint = ("read",)

    def __init__(self):
        super().__init__()
        self.read = []

    def training_step(self, batch, batch_idx):
        self.read.append((self.trainer.current_epoch, batch[0].tolist()))
        return super().training_step(batch[1:], batch_idx)


class SavesAt(Callback):
    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt")


def fit(loader, seed, ckpt_path=None, **arguments):
    torch.manual_seed(1)
    module = Reads()
    torch.manual_seed(seed)
    trainer = quiet_trainer(**{"max_epochs": 2, "limit_val_batches": 0, **arguments})
    trainer.fit(module, loader, ckpt_path=ckpt_path)
    return module, trainer


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.processes)])
def test_resumed_anywhere(tmp_path, name, workers):
    make = MAKE[name]
    complete, trainer = fit(make(num_workers=workers), 7, callbacks=[SavesAt(tmp_path)])
    epochs = [[batch for epoch, batch in complete.read if epoch == number] for number in (0, 1)]
    assert epochs[0] != epochs[1], "each epoch has another order"
    assert len(epochs[0]) == len(epochs[1]) == trainer.num_training_batches
    steps = range(1, trainer.global_step) if not workers else (2, len(epochs[0]), len(epochs[0]) + 1)
    for step in steps:
        module, _ = fit(make(num_workers=workers), 99, tmp_path / f"{step}.ckpt")
        assert module.read == complete.read[step:], f"resumed after step {step}"
        assert same_weights(module, complete), f"resumed after step {step}"


@pytest.mark.parametrize("limits", [{"max_steps": 9, "max_epochs": -1}, {"limit_train_batches": 5}], ids=str)
def test_a_stream_without_an_end(tmp_path, limits):
    def make():
        return by(InfiniteSampler)

    complete, trainer = fit(make(), 7, callbacks=[SavesAt(tmp_path)], **limits)
    assert trainer.global_step == (9 if "max_steps" in limits else 10)
    first = [i for _, batch in complete.read for i in batch][:N]
    assert sorted(first) == list(range(N))
    for step in (1, 4, 6):
        module, _ = fit(make(), 99, tmp_path / f"{step}.ckpt", **limits)
        assert module.read == complete.read[step:], f"resumed after step {step}"
        assert same_weights(module, complete)


def test_a_run_reads_what_the_sampler_gives():
    module, _ = fit(by(lambda data: ShuffleSampler(data, seed=5)), 1)
    sampler, expected = ShuffleSampler(range(N), seed=5), []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        order = list(sampler)
        expected += [(epoch, order[at : at + 4]) for at in range(0, N, 4)]
    assert module.read == expected


def test_tensors_in_memory_are_gathered_as_with_torchs_samplers():
    data = TensorDataset(torch.arange(N), *samples(N))
    torchs, ours = DataLoader(data, 4, shuffle=True), DataLoader(data, 4, sampler=ShuffleSampler(data))
    kinds = [type(batches_of(resumable_loader(loader))) for loader in (torchs, ours)]
    assert kinds[0] is kinds[1]
    assert draws_at_once(ours.sampler)
    assert not draws_at_once(SkipSampler(ours.sampler, 1))
