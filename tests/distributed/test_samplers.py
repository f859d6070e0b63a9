"""Samplers on two processes: they read the batches of one process, and a resume continues there."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from lightlib.samplers import (
    BucketBatchSampler,
    ClassBalancedSampler,
    InfiniteSampler,
    LengthGroupedSampler,
    RepeatedAugmentationSampler,
    RepeatSampler,
    ShuffleSampler,
    SkipSampler,
)
from tests.distributed.test_data import SavesOnce, batch_of_all, built, samples, trainer_of
from tests.processes.ranks import ranks

pytestmark = pytest.mark.processes
N = 24
LENGTHS = torch.arange(N).remainder(5).add(1).tolist()
MAKE = {
    "shuffled": lambda: ShuffleSampler(range(N)),
    "stream": lambda: InfiniteSampler(range(N), 16),
    "repeated": lambda: RepeatSampler(ShuffleSampler(range(N), seed=None), 2),
    "skipped": lambda: SkipSampler(ShuffleSampler(range(N), seed=None), 8),
    "augmented": lambda: RepeatedAugmentationSampler(range(N)),
    "grouped": lambda: LengthGroupedSampler(LENGTHS, 4, 2),
    "balanced": lambda: ClassBalancedSampler([0] * 20 + [1] * 4),
}


def fit(rank, strategy, devices, size, folder, resume=False):
    """Train with each sampler; save, or resume, within the second epoch."""
    found = {}
    for name, make in MAKE.items():
        path = f"{folder}/{name}-{devices}.ckpt"
        module = built()
        torch.manual_seed(9 + 10 * rank if resume else 4)
        arguments = {} if resume else {"callbacks": [SavesOnce(8, path)]}
        trainer = trainer_of(strategy, devices, limit_val_batches=0, max_epochs=3, **arguments)
        loader = DataLoader(samples(N), size, sampler=make())
        trainer.fit(module, loader, ckpt_path=path if resume else None)
        found[name] = module.epochs, trainer.num_training_batches, trainer.strategy.module_state()
    return found


def test_two_processes_read_what_one_reads_and_resume(tmp_path):
    one = fit(0, "auto", 1, 4, tmp_path)
    two = ranks(2, fit, "ddp", 2, 2, tmp_path)
    rest = ranks(2, fit, "ddp", 2, 2, tmp_path, True)
    for name in MAKE:
        epochs, batches, weights = one[name]
        assert epochs[0] != epochs[1], name
        for epoch in range(3):
            together = [batch_of_all([each[name][0] for each in two], epoch, step) for step in range(batches)]
            assert together == [sorted(batch) for batch in epochs[epoch]], name
        for complete, again in zip(two, rest, strict=True):
            whole = [batch for epoch in complete[name][0] for batch in epoch]
            assert [batch for epoch in again[name][0] for batch in epoch] == whole[8:], name
            for key, value in again[name][2].items():
                assert value.equal(complete[name][2][key]), name
                torch.testing.assert_close(value, weights[key], rtol=1e-4, atol=1e-5)


def bucket_fit(rank):
    module = built()
    trainer = trainer_of("ddp", 2, limit_val_batches=0)
    trainer.fit(module, DataLoader(samples(N), batch_sampler=BucketBatchSampler(LENGTHS, 2)))
    return module.epochs


def test_each_process_takes_whole_batches_of_a_bucket():
    first, second = ranks(2, bucket_fit)
    for epoch in range(2):
        drawn = [i for batch in first[epoch] + second[epoch] for i in batch]
        assert set(drawn) == set(range(N))
        assert all(len({LENGTHS[i] for i in batch}) == 1 for batch in first[epoch] + second[epoch])
    assert first[0] != first[1]
