"""Several processes in one: together they read the same as one process with larger batches."""

from __future__ import annotations

import math
import random
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lightlib.core.metrics.dummy_steps import run_dummy_step
from lightlib.core.metrics.results import Results
from lightlib.data import resumable_loader, sharding
from lightlib.data.combined import CombinedLoader
from lightlib.data.evaluation import EvalData
from lightlib.data.prefetch import END
from lightlib.data.seed import rng_state, set_rng_state
from lightlib.data.sharding import DataShard
from lightlib.data.train import TrainData
from lightlib.errors import MisconfigurationException
from lightlib.report import LightlibWarning, PossibleUserWarning
from tests.runs.plain import Unsized


class Processes:
    """Processes that run one after the other, each with its own generators; rank 0 broadcasts."""

    def __init__(self, size, seed=3, deals=True):
        self.said, self.heard = [], [0] * size
        self.states = []
        for rank in range(size):
            random.seed(seed + rank)
            torch.manual_seed(seed + rank)
            self.states.append(rng_state())
        self.shares = [
            DataShard(
                rank,
                size,
                lambda obj, rank=rank: self.broadcast(rank, obj),
                lambda obj, rank=rank: self.gather(rank, obj),
                deals,
            )
            for rank in range(size)
        ]
        self.shown, self.gathered = [[] for _ in range(size)], None

    def broadcast(self, rank, obj):
        if rank == 0:
            self.said.append(obj)
        self.heard[rank] += 1
        return self.said[self.heard[rank] - 1]

    def gather(self, rank, obj):
        self.shown[rank].append(obj)
        if self.gathered is None:
            return [obj] * len(self.shares)
        return [one[len(self.shown[rank]) - 1] for one in self.gathered]

    def each_of_all(self, run):
        """Like `each`, where processes gather different objects: a rehearsal collects them first."""
        rehearsal = Processes(len(self.shares))
        for share in rehearsal.shares:
            run(share)
        self.gathered = rehearsal.shown
        return self.each(run)

    def each(self, run):
        """Call `run(share)` for every process, and check that all took part in as many collectives."""
        found = []
        for rank, share in enumerate(self.shares):
            set_rng_state(self.states[rank])
            found.append(run(share))
            self.states[rank] = rng_state()
        assert len(set(self.heard)) == 1, "collectives differ over processes"
        return found


def together(size, run, **arguments):
    """Call `run(share)` in as many threads, which really wait for each other; return results or errors."""
    barrier, box, found = threading.Barrier(size), [None] * size, [None] * size

    def gather(rank, obj):
        box[rank] = obj
        barrier.wait(5)
        everything = list(box)
        barrier.wait(5)
        return everything

    def work(rank):
        broadcast = lambda obj: gather(rank, obj)[0]  # noqa: E731
        try:
            found[rank] = run(DataShard(rank, size, broadcast, lambda obj: gather(rank, obj), **arguments))
        except Exception as error:  # noqa: BLE001
            found[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


class Lazily(Sampler):
    """Draws from the global generator whenever it is asked; `sized` or endless."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        for _ in range(self.n):
            yield int(torch.randint(self.n, ())) + random.randrange(2) * 100

    def __len__(self):
        return self.n


class Buckets(Sampler):
    """A batch sampler of one's own: batches of 1, 2, 3, 1, … samples, in a random order."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        order = torch.randperm(self.n).tolist()
        while order:
            size = 1 + (self.n - len(order)) % 3
            yield order[:size]
            order = order[size:]

    def __len__(self):
        return sum(1 for _ in self.sizes())

    def sizes(self):
        left = self.n
        while left > 0:
            size = 1 + (self.n - left) % 3
            yield size
            left -= size


class Numbers(torch.utils.data.Dataset):
    """Sample i is i."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return index


class Shuffled(IterableDataset):
    """A stream that draws from the global generator, with every sample."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        left = list(range(self.n))
        while left:
            yield left.pop(int(torch.randint(len(left), ())))


def numbers(batch):
    return batch.tolist()


SAMPLERS = {
    "in order": lambda n: SequentialSampler(range(n)),
    "shuffled": lambda n: RandomSampler(range(n)),
    "own generator": lambda n: RandomSampler(range(n), generator=torch.Generator().manual_seed(n)),
    "replacement": lambda n: RandomSampler(range(n), replacement=True, num_samples=n),
    "subset": lambda n: SubsetRandomSampler(range(n)),
    "weighted": lambda n: WeightedRandomSampler([1.0 + i for i in range(n)], n),
    "lazy": Lazily,
    "a list": lambda n: list(reversed(range(n))),
}
kinds = st.sampled_from(sorted(SAMPLERS))


class Loads:
    """Makes the same loader for each process, as each process would."""

    def __init__(self, kind, n, batch_size, drop_last):
        self.kind, self.n, self.batch_size, self.drop_last = kind, n, batch_size, drop_last

    def __call__(self, factor=1):
        sampler = SAMPLERS[self.kind](self.n)
        size = self.batch_size * factor
        return DataLoader(
            Numbers(self.n), batch_size=size, sampler=sampler, drop_last=self.drop_last, collate_fn=torch.tensor
        )


def train(loader, share, epochs=1, **arguments):
    """Read epochs of training batches as a list of lists."""
    data = TrainData(lambda: loader, arguments.pop("limit", 1.0), None, share=share, **arguments)
    return [read(data, epoch) for epoch in range(epochs)]


def read(data, epoch=0, batch=0, stop=math.inf):
    data.start_epoch(epoch, batch)
    found = []
    while not data.exhausted and data.position < stop:
        found.append(next(data))
    if data.exhausted:
        data.end_epoch()
    return [one.tolist() if isinstance(one, torch.Tensor) else one for one in found]


def interleaved(parts):
    """The samples of one batch of every process, in the order in which they were distributed."""
    longest = max(map(len, parts))
    return [part[i] for i in range(longest) for part in parts if i < len(part)]


class TestTraining:
    @settings(max_examples=150, derandomize=True, deadline=None)
    @given(kinds, st.integers(1, 40), st.integers(1, 5), st.integers(1, 4), st.booleans())
    def test_all_processes_read_the_batches_of_one(self, kind, n, batch_size, size, drop_last):
        loads = Loads(kind, n, batch_size, drop_last)
        processes = Processes(size)
        if drop_last and n < batch_size * size:
            return
        set_rng_state(processes.states[0])
        expected = train(loads(factor=size), None, epochs=3)
        after = torch.get_rng_state()
        parts = processes.each(lambda share: train(loads(), share, epochs=3))
        for epoch, whole in enumerate(expected):
            assert {len(part[epoch]) for part in parts} == {len(whole)}
            for k, batch in enumerate(whole):
                dealt = interleaved([part[epoch][k] for part in parts])
                filled = dealt[len(batch) :]
                assert dealt[: len(batch)] == batch
                assert len(filled) < size
                assert not filled or k == len(whole) - 1
                first = [sample for one in whole for sample in one][:size]
                assert filled == [first[i % len(first)] for i in range(len(filled))]
        if kind != "lazy":  # then the first process continues as if it were alone
            assert processes.states[0]["torch"].equal(after)

    @settings(max_examples=100, derandomize=True, deadline=None)
    @given(kinds, st.integers(2, 40), st.integers(1, 4), st.integers(1, 3), st.integers(1, 12), st.integers(0, 1))
    def test_resumed_within_an_epoch(self, kind, n, batch_size, size, stop, epoch):
        loads = Loads(kind, n, batch_size, drop_last=False)
        processes, again = Processes(size), Processes(size, seed=50)
        whole = processes.each(lambda share: train(loads(), share, epochs=epoch + 1)[epoch])
        if stop >= len(whole[0]):
            return

        def until(share):
            data = TrainData(loads, 1.0, None, share=share)
            for number in range(epoch):
                read(data, number)
            read(data, epoch, stop=stop)
            return data.state_dict()

        def go_on(share):
            data = TrainData(loads, 1.0, None, share=share)
            assert data.load_state_dict(state) == stop
            return read(data, epoch, stop)

        state = Processes(size).each(until)[0]  # the first process writes the checkpoint
        assert state["samples"] == min(stop * batch_size * size, n)
        assert again.each(go_on) == [part[stop:] for part in whole]

    @settings(max_examples=80, derandomize=True, deadline=None)
    @given(kinds, st.integers(8, 60), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 6))
    def test_resumed_with_another_number_of_processes(self, kind, n, batch_size, before, after, stop):
        loads = Loads(kind, n, batch_size, drop_last=True)
        if stop * before * batch_size > n or before == after or n < batch_size * after:
            return

        def until(share):
            data = TrainData(loads, 1.0, None, share=share)
            read(data, stop=stop)
            return data.state_dict(), data.num_batches

        (state, batches), *_ = Processes(before).each(until)
        set_rng_state(Processes(before).states[0])
        order = [i for batch in train(Loads(kind, n, 1, False)(), None)[0] for i in batch]
        places = []

        def go_on(share):
            data = TrainData(loads, 1.0, None, share=share)
            places.append(data.load_state_dict(state))
            return read(data, 0, places[-1]) if places[-1] < data.num_batches else []

        exact = stop * before % after == 0 or stop == batches
        if exact:
            parts = Processes(after, seed=9).each(go_on)
        else:
            with pytest.warns(PossibleUserWarning, match=r"samples of this epoch are seen a second time"):
                parts = Processes(after, seed=9).each(go_on)
        place = places[0]
        assert set(places) == {place}
        done = place * batch_size * after
        if stop < batches:
            assert done == stop * batch_size * before - stop * before % after * batch_size
            left = order[done : n - n % (batch_size * after)]
            assert [i for batch in zip(*parts, strict=True) for i in interleaved(batch)] == left

    @pytest.mark.parametrize(("stop", "place", "left"), [(2, 4, range(16, 40)), (4, 7, range(28, 40))])
    def test_a_sequence_of_loaders_resumed_with_fewer_processes(self, stop, place, left):
        def loads():  # the last batch of each is smaller on four processes: 5 samples for each in batches of 2
            parts = [DataLoader(range(start, start + 20), 2, collate_fn=list) for start in (0, 20)]
            return CombinedLoader(parts, "sequential")

        def until(share):
            data = TrainData(loads, 1.0, None, share=share)
            read(data, stop=stop)
            return data.state_dict()

        state = Processes(4).each(until)[0]

        def go_on(share):
            data = TrainData(loads, 1.0, None, share=share)
            assert data.load_state_dict(state) == place
            return read(data, 0, place)

        parts = Processes(2).each(go_on)
        assert [i for batch in zip(*parts, strict=True) for i in interleaved(batch)] == list(left)

    @pytest.mark.parametrize("n", [1, 5, 12])
    def test_a_batch_sampler_of_ones_own_is_dealt_in_batches(self, n):
        processes = Processes(2)
        loads = lambda: DataLoader(Numbers(n), batch_sampler=Buckets(n), collate_fn=list)  # noqa: E731
        set_rng_state(processes.states[0])
        (whole,) = train(loads(), None)
        first, second = processes.each(lambda share: train(loads(), share)[0])
        filled = whole + whole[:1] * (len(whole) % 2)
        assert first == filled[::2]
        assert second == filled[1::2]

    def test_without_batches_samples_are_dealt(self):
        loads = lambda: DataLoader(Numbers(5), batch_size=None, shuffle=True)  # noqa: E731
        first, second = Processes(2).each(lambda share: train(loads(), share)[0])
        assert len(first) == len(second) == 3
        assert set(first + second) == set(range(5))

    @pytest.mark.parametrize(
        "make",
        [
            lambda n: [[i] for i in range(n)],
            lambda n: Unsized([[i] for i in range(n)]),
            lambda n: DataLoader(Shuffled(n), batch_size=1, collate_fn=list),
        ],
        ids=["list", "iterable", "stream"],
    )
    @pytest.mark.parametrize("n", [4, 7])
    def test_batches_of_a_stream_are_dealt(self, make, n):
        processes = Processes(3)
        with pytest.warns(LightlibWarning) as caught:
            parts = processes.each(lambda share: train(make(n), share, epochs=2))
        warned = [str(one.message) for one in caught if "dropped" in str(one.message)]
        assert "The last 1 training batches of the epoch are dropped: 3 processes take 3 at a time." in warned
        for epoch in range(2):
            assert {len(part[epoch]) for part in parts} == {n // 3}
            taken = [batch[0] for part in parts for batch in part[epoch]]
            assert len(set(taken)) == len(taken) == n - n % 3
        if isinstance(make(n), DataLoader) and n == 7:
            assert parts[0][0] != parts[0][1]  # the next epoch is another

    def test_a_stream_is_resumed(self):
        make = lambda: DataLoader(Shuffled(12), batch_size=2)  # noqa: E731
        whole = Processes(2).each(lambda share: train(make(), share)[0])

        def until(share):
            data = TrainData(make, 1.0, None, share=share)
            read(data, stop=2)
            return data.state_dict()

        def go_on(share):
            data = TrainData(make, 1.0, None, share=share)
            return read(data, 0, data.load_state_dict(state))

        state = Processes(2).each(until)[0]
        assert Processes(2, seed=70).each(go_on) == [part[2:] for part in whole]

    @pytest.mark.parametrize("after", [2, 3])
    def test_a_loader_that_knows_its_place_is_asked_for_it(self, after):
        class Knows:
            def __init__(self):
                self.place = 0

            def __iter__(self):
                while self.place < 18:
                    self.place += 1
                    yield [self.place - 1]
                self.place = 0

            def state_dict(self):
                return {"place": self.place}

            def load_state_dict(self, state):
                self.place = state["place"]

        def until(share):
            data = TrainData(Knows, 1.0, None, share=share)
            read(data, stop=3)
            return data.state_dict()

        def go_on(share):
            data = TrainData(Knows, 1.0, None, share=share)
            return read(data, 0, data.load_state_dict(state))

        state = Processes(2).each(until)[0]
        assert [one["loader"] for one in state["sources"]] == [{"place": 6}]
        parts = Processes(after).each(go_on)
        assert [part[0] for part in parts] == [[6 + rank] for rank in range(after)]
        assert sorted(i for part in parts for batch in part for i in batch) == list(range(6, 18))

    def test_several_loaders_go_together(self):
        def loaders():
            return {"a": DataLoader(Numbers(12), batch_size=2), "b": [torch.tensor([i]) for i in range(4)]}

        first, second = Processes(2).each(lambda share: train(loaders(), share)[0])
        assert len(first) == len(second) == 3
        assert [batch["a"].tolist() for batch in first] == [[0, 2], [4, 6], [8, 10]]
        assert [batch["b"].item() for batch in second] == [1, 3, 1]

    def test_those_who_read_the_same_draw_the_same(self):
        def share_of(processes, rank):
            return DataShard(0, 1, processes.shares[rank].broadcast, processes.shares[rank].gather)

        processes = Processes(3)
        parts = processes.each(lambda share: train(Loads("shuffled", 9, 2, False)(), share_of(processes, share.rank)))
        assert parts[0] == parts[1] == parts[2]

    def test_left_alone(self):
        distributed = DistributedSampler(Numbers(8), num_replicas=2, rank=1, shuffle=False)
        loader = DataLoader(Numbers(8), batch_size=2, sampler=distributed)
        assert train(loader, Processes(2).shares[1]) == [[[1, 3], [5, 7]]]
        assert train([[1], [2]], Processes(2, deals=False).shares[1]) == [[[1], [2]]]
        data = TrainData(lambda: loader, 1.0, None, share=Processes(2).shares[1])
        read(data, stop=1)
        assert data.loaded.samples(data.position) == 4

    def test_sharded_otherwise(self):
        sampler = DistributedSampler(Numbers(8), num_replicas=4, rank=3)
        with pytest.raises(MisconfigurationException, match=r"DistributedSampler for rank 3 of 4, but .* shard 1 of 2"):
            train(DataLoader(Numbers(8), sampler=sampler), Processes(2).shares[1])

    def test_a_data_set_that_shards_itself(self):
        data = Shuffled(4)
        data._distributed = ("rank", 1)
        assert len(train(DataLoader(data, batch_size=1), Processes(2).shares[1])[0]) == 4

    def test_fewer_batches_than_processes(self):
        with pytest.raises(MisconfigurationException, match="1 batches for 2 processes, which leaves none for each"):
            train([[1]], Processes(2).shares[0])

    def test_said_once(self, monkeypatch):
        said = []
        sharding.report.once.clear()
        monkeypatch.setattr(sharding.report, "info", said.append)
        for _ in range(2):
            train(Unsized([[1], [2]]), Processes(2).shares[0])
            train([[1], [2]], Processes(2).shares[0])
        assert len(said) == 1
        assert "Training data: every process reads the entire Unsized and keeps one batch in 2." in said[0]


class TestUnequal:
    """Processes that shard by themselves, and differently."""

    def run(self, loaders, **arguments):
        return together(len(loaders), lambda share: train(loaders[share.rank], share, **dict(arguments)), deals=False)

    def test_known_lengths(self):
        first, second = self.run([[[i] for i in range(10)], [[i] for i in range(9)]])
        assert str(first) == str(second)
        assert "different numbers of training batches: rank 0: 10, rank 1: 9." in str(first)
        assert "Trainer(limit_train_batches=9)" in str(first)

    def test_a_limit_helps(self):
        first, second = self.run([[[i] for i in range(10)], [[i] for i in range(9)]], limit=9)
        assert first == second == [[[i] for i in range(9)]]

    def test_a_fraction_that_leaves_nothing_on_one_is_refused_on_all(self):
        for error in self.run([[[i] for i in range(4)], [[0]]], limit=0.5):
            assert "limit_train_batches=0.5 of 1 training batches leaves none" in str(error)

    def test_unknown_lengths(self):
        first, second = self.run([Unsized([[i] for i in range(5)]), Unsized([[i] for i in range(3)])], epochs=2)
        assert first == second == [[[0], [1], [2]]] * 2

    def test_different_numbers_of_loaders(self):
        loaders = {"a": [[1]], "b": [[1]]}
        for error in self.run([loaders, {"a": [[1]]}]):
            assert "different numbers of training loaders: rank 0: 2, rank 1: 1." in str(error)
        for error in together(2, lambda share: evaluate([[[1]], [[1]]] if share.rank else [[[1]]], share, deals=False)):
            assert isinstance(error, Exception)


class Told:
    """A stand-in for the watch: it records this process's end of data, and knows the other's."""

    def __init__(self, other):
        self.other, self.asked, self.given = other, [], None

    def follow_data(self, given):
        self.given = given

    def end_of_data(self, batches):
        self.asked.append((batches, self.given and self.given()))
        return {0: batches, 1: self.other or batches}


class Ahead:
    """Reads one batch ahead, as the Prefetch of a CUDA device does."""

    def __init__(self):
        self.taken = 0

    @property
    def ended(self):
        return self.batch is END

    def start(self, iterator):
        self.iterator = iterator
        self.batch = next(iterator, END)

    def take(self):
        batch, self.batch = self.batch, next(self.iterator, END)
        self.taken += 1
        return batch

    def stop(self):
        self.iterator, self.batch = iter(()), END


class TestEndsOfStreams:
    """Sharded streams without a length: each process reads all of its shard; lengths may differ."""

    def share(self, other=None, **arguments):
        return replace(Processes(2, **arguments).shares[0], ends=Told(other))

    def test_each_end_is_compared_once(self):
        share = self.share()
        assert train(Unsized([[i] for i in range(6)]), share, epochs=2) == [[[0], [2], [4]]] * 2
        assert share.ends.asked == [(3, 2), (3, 2)]  # with the last batch in hand, so that no process is ahead

    @pytest.mark.parametrize(("other", "told"), [(4, "rank 0: 3, rank 1: 4"), (-1, "rank 0: 3, rank 1: more")])
    def test_other_ends_are_refused(self, other, told):
        with pytest.raises(MisconfigurationException) as caught:
            train(Unsized([[i] for i in range(6)]), self.share(other))
        assert f"The processes have different numbers of training batches: {told}." in str(caught.value)
        assert "Trainer(use_distributed_sampler=False)" in str(caught.value)

    @pytest.mark.parametrize(("limit", "asked"), [(1.0, [(3, 2)] * 2), (2, [])])
    def test_so_are_those_of_a_stream_that_is_copied_ahead_to_a_device(self, limit, asked):
        share, ahead = self.share(), Ahead()
        loader = Unsized([[i] for i in range(6)])
        loader.num_workers = 1
        found = train(loader, share, epochs=2, prefetch=ahead, limit=limit)
        assert found == [[[0], [2], [4]][: None if limit == 1.0 else limit]] * 2
        assert share.ends.asked == asked
        assert ahead.taken == sum(map(len, found))

    @pytest.mark.parametrize("prefetch", [None, Ahead()])
    def test_a_rank_that_resumes_at_the_end_has_received_no_more_than_another(self, prefetch):
        """With the watch in another thread, which compares as soon as it is given a position."""
        share, loader = self.share(), Unsized([[i] for i in range(6)])
        loader.num_workers = 1
        data = TrainData(lambda: loader, 1.0, None, share=share, prefetch=prefetch)
        data.start_epoch(0, 3)
        assert data.exhausted
        assert share.ends.asked == [(3, None)]
        data.close()

    def test_a_limit_is_no_end(self):
        share = self.share()
        assert train(Unsized([[i] for i in range(6)]), share, limit=3) == [[[0], [2], [4]]]
        assert share.ends.asked == []

    @pytest.mark.parametrize(
        ("loader", "deals"), [([[0], [1]], True), (Unsized([[0], [1]]), False)], ids=["a list", "not sharded"]
    )
    def test_what_is_known_or_agreed_on_otherwise_is_not_compared(self, loader, deals):
        share = self.share(deals=deals)
        train(loader, share)
        assert share.ends.asked == []


def evaluate(loaders, share, limit=1.0, limits=None, **arguments):
    data = EvalData(loaders, limit, None, "limit_val_batches", "validation", share, **arguments)
    arguments.pop("deals", None)
    return [(i, loader, batch) for batch, i, loader in data.batches(limits)]


class TestEvaluation:
    @settings(max_examples=120, derandomize=True, deadline=None)
    @given(kinds, st.integers(1, 30), st.integers(1, 4), st.integers(1, 4), st.booleans())
    def test_every_sample_once(self, kind, n, batch_size, size, drop_last):
        loads = Loads(kind, n, batch_size, drop_last)
        processes = Processes(size)
        if drop_last and n < batch_size:
            return
        set_rng_state(processes.states[0])
        expected = evaluate([loads(), loads()], None)
        parts = processes.each_of_all(lambda share: evaluate([loads(), loads()], share))
        for index in range(2):
            whole = [i for _, loader, batch in expected if loader == index for i in batch.tolist()]
            found = [i for part in parts for _, loader, batch in part if loader == index for i in batch.tolist()]
            if index == 0 or kind != "lazy":
                assert sorted(found) == sorted(whole)
            assert len(found) == len(whole)
        for part in parts:
            for index in range(2):
                of_one = [i for i, loader, _ in part if loader == index]
                assert of_one == list(range(len(of_one)))

    @pytest.mark.parametrize("mode", ["min_size", "max_size_cycle", "max_size", "sequential"])
    def test_combinations(self, mode):
        def loaders():
            return CombinedLoader({"a": [10, 11, 12, 13, 14], "b": DataLoader(Numbers(3), 1, collate_fn=sum)}, mode)

        expected = [batch for _, _, batch in evaluate(loaders(), None)]
        for size in (2, 3, 7):
            parts = Processes(size).each_of_all(lambda share: evaluate(loaders(), share))
            found = [batch for part in parts for _, _, batch in part]
            assert sorted(map(str, found)) == sorted(map(str, expected))
            if mode != "sequential":
                assert [batch for part in parts for i, _, batch in part if i == 0] == expected[:size]

    def test_limits_are_those_of_each_process(self):
        given = [[i] for i in range(7)]
        parts = Processes(2).each(lambda share: evaluate(given, share, limit=2))
        assert [[batch for *_, batch in part] for part in parts] == [[[0], [2]], [[1], [3]]]
        parts = together(2, lambda share: evaluate(given, share, limit=0.5))
        assert [len(part) for part in parts] == [2, 2]
        parts = together(3, lambda share: evaluate(given[:4], share, limit=0.5))
        assert [len(part) for part in parts] == [1, 1, 1]

    def test_a_process_with_nothing_is_no_error_but_nobody_with_anything_is(self):
        assert [len(part) for part in together(3, lambda share: evaluate(Unsized([[1], [2]]), share))] == [1, 1, 0]
        for error in together(2, lambda share: evaluate(Unsized([]), share)):
            assert "gave no batch" in str(error)


class TestLockstep:
    def steps(self, size, loaders, limit=1.0, limits=None, **arguments):
        def run(share):
            data = EvalData(
                loaders(), limit, lambda batch, loader: ("moved", batch), "limit_val_batches", "validation", share, True
            )
            happened = []
            data.dummy_step = lambda batch, i, loader: happened.append(("mute", i, loader, batch[1]))
            for batch, i, loader in data.batches(limits):
                happened.append(("run", i, loader, batch[1]))
            return happened

        return together(size, run, **arguments)

    def test_as_many_steps_on_all(self):
        first, second, third = self.steps(3, lambda: {"a": [[10], [11], [12], [13]], "b": [[20]]})
        assert first == [("run", 0, 0, [10]), ("run", 1, 0, [13]), ("run", 0, 1, [20])]
        assert second == [("run", 0, 0, [11]), ("mute", 1, 0, [11]), ("mute", 0, 1, [20])]
        assert third == [("run", 0, 0, [12]), ("mute", 1, 0, [12]), ("mute", 0, 1, [20])]

    def test_without_a_length(self):
        first, second = self.steps(2, lambda: Unsized([[10], [11], [12]]))
        assert first == [("run", 0, 0, [10]), ("run", 1, 0, [12])]
        assert second == [("run", 0, 0, [11]), ("mute", 1, 0, [11])]
        first, second = self.steps(2, lambda: Unsized([[10]]))
        assert (first, second) == ([("run", 0, 0, [10])], [("mute", 0, 0, [10])])

    def test_samples(self):
        first, second = self.steps(2, lambda: DataLoader(Numbers(1), batch_size=4, collate_fn=list))
        assert (first, second) == ([("run", 0, 0, [0])], [("mute", 0, 0, [0])])

    def test_limits(self):
        first, second = self.steps(2, lambda: [[1], [2], [3]], limits=[1])
        assert (first, second) == ([("run", 0, 0, [1])], [("run", 0, 0, [2])])

    def test_together(self):
        first, second = self.steps(2, lambda: CombinedLoader({"a": [1, 2, 3], "b": [4, 5, 6]}, "min_size"))
        assert first == [("run", 0, 0, {"a": 1, "b": 4}), ("run", 1, 0, {"a": 3, "b": 6})]
        assert second == [("run", 0, 0, {"a": 2, "b": 5}), ("mute", 1, 0, {"a": 2, "b": 5})]

    def test_own_parts(self):
        def run(share):
            data = EvalData([[1], [2]][: 1 + share.rank], 1.0, None, "limit_val_batches", "validation", share, True)
            muted = []
            data.dummy_step = lambda batch, i, loader: muted.append((batch, i))
            return [batch for batch, *_ in data.batches()], muted

        assert together(2, run, deals=False) == [([[1]], [([1], 1)]), ([[1], [2]], [])]


class Measures(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torchmetrics = pytest.importorskip("torchmetrics")
        self.mean = torchmetrics.MeanMetric()
        self.cat = torchmetrics.CatMetric()
        self.least = torchmetrics.MinMaxMetric(torchmetrics.MeanMetric())
        self.both = torchmetrics.MetricCollection(
            [torchmetrics.classification.BinaryPrecision(), torchmetrics.classification.BinaryRecall()]
        )
        self.seen = []

    def step(self, batch, i):
        for metric in (self.mean, self.cat, self.least):
            metric(batch)
        self.both(batch, (batch > 0.4).int())
        self.results.table.slots["x", "y", i] = SimpleNamespace(metric=None)


@pytest.mark.parametrize("updates", [0, 1, 3])
def test_a_mute_step_leaves_no_trace(updates):
    one, other = Measures(), Measures()
    for module in (one, other):
        module.results = Results()
        for i in range(updates):
            module.step(torch.tensor([0.1 * i, 0.5]), i)
    slots = dict(one.results.table.slots)
    run_dummy_step(one.results, one, one.step, torch.tensor([0.9, 0.2, 0.6]), 7, 0, several=False)
    assert one.results.table.slots == slots
    for i in range(updates, updates + 2):
        for module in (one, other):
            module.step(torch.tensor([0.3, 0.7 + i]), i)
    for name in ("mean", "cat", "least", "both"):
        torch.testing.assert_close(getattr(one, name).compute(), getattr(other, name).compute())
        assert getattr(one, name).state_dict() == getattr(other, name).state_dict()


def test_batches_of_a_batch_sampler_know_their_size():
    plain = DataLoader(Numbers(4), batch_sampler=BatchSampler(range(4), 2, False))
    assert resumable_loader.batch_size_of_loader(plain) == 2
    assert resumable_loader.batch_size_of_loader(DataLoader(Numbers(4), batch_sampler=Buckets(4))) is None
    assert resumable_loader.batch_size_of_loader([1]) is None
