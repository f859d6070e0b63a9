"""Random draws of workers follow from seed, epoch and place, and from nothing else."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Subset, get_worker_info

from lightlib.data.evaluation import EvalData
from lightlib.data.seed import rng_state
from lightlib.data.sharding import DataShard
from lightlib.data.train import TrainData
from lightlib.data.workers import Placed, Seeded, Seeding
from tests.data.reads import Noise, OwnNoise, Stream, seeded
from tests.data.test_sharding import interleaved

pytestmark = pytest.mark.processes


def rows(loader, epoch=0, seed=11, share=None, **arguments):
    """The samples of an epoch in their order, each as a tuple."""
    seeded(seed)
    data = TrainData(lambda: loader, 1.0, None, share=share, **arguments)
    data.start_epoch(epoch, 0)
    found = []
    while not data.exhausted:
        found.append([tuple(row.tolist()) for row in next(data)])
    data.end_epoch()
    data.close()
    return found


def two_shares():
    """The shards of two processes that are in the same state."""
    return [DataShard(rank, 2, lambda told: told, lambda told: [told, told]) for rank in range(2)]


def flat(batches):
    return [row for batch in batches for row in batch]


def of(dataset=None, batch_size=4, workers=1, **arguments):
    return DataLoader(dataset if dataset is not None else Noise(), batch_size, num_workers=workers, **arguments)


class TestWhatTheyFollowFrom:
    def test_not_from_workers_or_batches(self):
        expected = flat(rows(of()))
        assert len({number for row in expected for number in row[1:]}) == 3 * 22
        assert flat(rows(of(workers=2))) == expected
        assert flat(rows(of(batch_size=5))) == expected
        assert flat(rows(of(persistent_workers=True))) == expected
        assert flat(rows(of(worker_init_fn=seeded))) == expected
        assert flat(rows(of(Subset(Noise(), range(22))))) == expected

    def test_from_seed_epoch_place_and_loader(self):
        assert flat(rows(of(), seed=12)) != flat(rows(of()))
        assert flat(rows(of(), epoch=1)) != flat(rows(of()))
        backwards = flat(rows(of(sampler=list(reversed(range(22))))))
        assert [row[1:] for row in backwards] == [row[1:] for row in flat(rows(of()))], "the place, not the sample"

    def test_nothing_is_drawn_here(self):
        seeded(3)
        before = rng_state()
        TrainData(of, 1.0, None)
        EvalData(of(), 1.0, None, "limit_val_batches", "validation")
        assert torch.equal(before["torch"], rng_state()["torch"])
        assert before["python"] == rng_state()["python"]

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_not_from_the_number_of_processes(self, shuffle):
        whole = rows(of(Noise(12), batch_size=4, shuffle=shuffle))
        parts = [rows(of(Noise(12), batch_size=2, shuffle=shuffle), share=share) for share in two_shares()]
        for number, batch in enumerate(whole):
            assert interleaved([part[number] for part in parts]) == batch

    def test_batches_of_a_sampler_of_ones_own(self):
        def make():
            return DataLoader(Noise(12), batch_sampler=[[0, 1, 2], [3], [4, 5], [6, 7]], num_workers=1)

        whole = rows(make())
        first, second = (rows(make(), share=share) for share in two_shares())
        assert [first[0], second[0], first[1], second[1]] == whole

    def test_without_batches(self):
        data = TrainData(lambda: of(batch_size=None), 1.0, None)
        data.start_epoch(0, 0)
        expected = flat(rows(of()))
        seeded(11)
        data = TrainData(lambda: of(batch_size=None), 1.0, None)
        data.start_epoch(0, 0)
        assert [tuple(next(data).tolist()) for _ in range(22)] == expected
        data.close()

    def test_generators_of_the_data_set(self):
        expected = flat(rows(of(OwnNoise())))
        assert len({number for row in expected for number in row[1:]}) == 4 * 22
        assert flat(rows(of(OwnNoise(), batch_size=3, workers=2))) == expected
        other = OwnNoise()
        other.numbers = numpy.random.default_rng(50)
        assert [row[3] for row in flat(rows(of(other)))] != [row[3] for row in expected], "its seed counts"

    def test_collate_functions(self):
        def collate(samples):
            return torch.stack([torch.cat([one, torch.rand(1, dtype=torch.float64)]) for one in samples])

        one = rows(of(collate_fn=collate))
        assert rows(of(collate_fn=collate, workers=2)) == one

    def test_a_stream_by_epoch_and_worker(self):
        one, persistent = of(Stream(noise=True), workers=2), of(Stream(noise=True), workers=2, persistent_workers=True)
        assert rows(one, epoch=3) == rows(persistent, epoch=3)
        assert sorted(row[0] for row in flat(rows(one))) == list(range(22))
        assert rows(one, epoch=3) != rows(one, epoch=4)

    def test_another_start_method(self):
        expected = flat(rows(of(Noise(4))))
        assert flat(rows(of(Noise(4), multiprocessing_context="spawn"))) == expected


class SaysInfo(Dataset):
    """Samples that hold the worker's info."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        info = get_worker_info()
        return torch.tensor([index, info.dataset is self, info.num_workers, info.seed % 1000])


class Configured(Noise):
    """A data set that the user's `worker_init_fn` changes."""

    factor = 0

    def __getitem__(self, index):
        return torch.tensor([index * self.factor])


def configure(worker):
    get_worker_info().dataset.factor = 10


class InBatches(Noise):
    """Samples that are read together."""

    def __getitems__(self, indices):
        return [torch.cat([self[i], torch.tensor([float(len(indices))])]) for i in indices]


class TestTheUsersView:
    def test_the_data_set_is_ones_own(self):
        found = flat(rows(of(SaysInfo(), batch_size=2, workers=2)))
        assert [row[1:3] for row in found] == [(1, 2)] * 4
        assert found == flat(rows(of(SaysInfo(), batch_size=2, workers=2))), "and so is the worker's seed"

    def test_worker_init_fn(self):
        assert flat(rows(of(Configured(4), worker_init_fn=configure))) == [(0,), (10,), (20,), (30,)]

    def test_samples_that_are_read_together(self):
        found = rows(of(InBatches(6)))
        assert [row[-1] for row in flat(found)] == [4.0] * 4 + [2.0] * 2
        assert rows(of(InBatches(6), workers=2)) == found
        assert rows(of(Subset(InBatches(6), range(6)))) == found

    def test_the_loader_is_as_it_was(self):
        loader = of(persistent_workers=True)
        dataset, init = loader.dataset, loader.worker_init_fn
        rows(loader)
        assert loader.dataset is dataset
        assert loader.worker_init_fn is init
        assert loader._iterator is None

    def test_attributes_are_read_through(self):
        inner = Noise(5)
        inner.classes = ["a"]
        outer = Seeded(inner, Seeding("training", 0, False))
        assert (len(outer), outer.classes) == (5, ["a"])
        with pytest.raises(AttributeError, match="nothing"):
            outer.nothing  # noqa: B018
        assert outer.__getitems__([2])[0][0] == 2
        assert outer[Placed(3, 1, 2, 1)][0] == 3


class TestEvaluation:
    def batches(self, loaders, epoch=0, name="validation", **arguments):
        seeded(11)
        data = EvalData(loaders, 1.0, None, "limit_val_batches", name, epoch=lambda: epoch, **arguments)
        found = [batch.tolist() for batch, *_ in data.batches()]
        data.close()
        return found

    def test_follows_from_epoch_and_place(self):
        first = self.batches(of())
        assert first == self.batches(of(workers=2)) == self.batches(of(persistent_workers=True))
        assert first != self.batches(of(), epoch=1)
        assert first != self.batches(of(), name="test")
        assert first[0] != [list(row) for row in rows(of())[0]]

    def test_several_draw_different_numbers(self):
        numbers = [row[1] for batch in self.batches([of(), of()]) for row in batch]
        assert len(set(numbers)) == 44

    def test_persistent_workers_in_the_next_evaluation(self):
        epoch = 0
        seeded(11)
        data = EvalData(of(persistent_workers=True), 1.0, None, "limit_val_batches", "validation", epoch=lambda: epoch)
        assert [batch.tolist() for batch, *_ in data.batches()] == self.batches(of())
        epoch = 1
        assert [batch.tolist() for batch, *_ in data.batches()] == self.batches(of(), epoch=1)
        data.close()

    @pytest.mark.parametrize("workers", [0, 1])
    def test_generators_go_on_from_one_evaluation_to_the_next(self, workers):
        def data():
            generator = torch.Generator().manual_seed(4)
            return EvalData(
                [of(OwnNoise(), shuffle=True, generator=generator, workers=workers)], 1.0, None, "x", "validation"
            )

        def orders(one, times):
            return [[int(row[0]) for batch, *_ in one.batches() for row in batch] for _ in range(times)]

        seeded(1)
        whole = orders(data(), 4)
        first, again = data(), data()
        assert orders(first, 2) == whole[:2]
        again.load_state_dict(first.state_dict())
        assert orders(again, 2) == whole[2:]
        first.note()
        orders(first, 1)
        again.load_state_dict(first.state_dict(at_start=True))
        assert orders(again, 1) == whole[2:3]


def test_a_sampler_draws_what_it_draws_without_workers():
    """Lightlib seeds only the draws of workers: the order is that of a plain loop."""
    seeded(5)
    plain = [row[0].item() for batch in of(shuffle=True) for row in batch]
    assert [row[0] for row in flat(rows(of(shuffle=True), seed=5))] == plain
    sampler = BatchSampler(RandomSampler(range(22)), 5, drop_last=True)
    seeded(5)
    plain = [row[0].item() for batch in DataLoader(Noise(), batch_sampler=sampler, num_workers=1) for row in batch]
    assert [row[0] for row in flat(rows(DataLoader(Noise(), batch_sampler=sampler, num_workers=1), seed=5))] == plain
