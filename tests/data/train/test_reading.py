"""Loaders of every kind: a run resumed anywhere reads the same data as one that never stopped."""

from __future__ import annotations

import pickle
from functools import partial

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Subset

from lightlib.data import sharding
from lightlib.data.combined import CombinedLoader
from lightlib.data.train import TrainData
from lightlib.report import PossibleUserWarning
from tests.data.reads import (
    CountsEpochs,
    Keeps,
    KeepsByIndex,
    Knows,
    LateOrder,
    Noise,
    OwnNoise,
    OwnOrder,
    SizedStream,
    Stream,
    Unsized,
    UnsizedOrder,
    check,
    plain,
    read_all,
    seeded,
    step,
    through_a_file,
)

FEW = {"epochs": 2, "only": (4, 6, 9), "between": (1,)}
ONE = {"epochs": 2, "only": (8,), "between": (1,)}


def own():
    return torch.Generator().manual_seed(4)


IN_THIS_PROCESS = {
    "shuffled": lambda: DataLoader(Noise(), 4, shuffle=True),
    "in order": lambda: DataLoader(Noise(), 4),
    "own generator": lambda: DataLoader(Noise(), 4, shuffle=True, generator=own()),
    "sampler and loader have generators": lambda: DataLoader(
        Noise(), 4, sampler=RandomSampler(range(22), generator=own()), generator=torch.Generator().manual_seed(5)
    ),
    "an order that is drawn as it is read": lambda: DataLoader(Noise(), 4, sampler=OwnOrder(22)),
    "a batch sampler": lambda: DataLoader(Noise(), batch_sampler=BatchSampler(OwnOrder(22), 5, True)),
    "an order without a length": lambda: DataLoader(Noise(), 4, sampler=UnsizedOrder(22, late=False)),
    "an order without a length, drawn as it is read": lambda: DataLoader(
        Noise(), 4, sampler=UnsizedOrder(22, late=True)
    ),
    "a data set with generators": lambda: DataLoader(OwnNoise(), 4, shuffle=True),
    "without batches": lambda: DataLoader(Noise(7), batch_size=None, shuffle=True),
    "a stream": lambda: DataLoader(Stream(noise=True), 4),
    "a stream with a length": lambda: DataLoader(SizedStream(noise=True), 4),
    "an iterable": Unsized,
    "a loader that keeps its place": Knows,
    "a loader that counts its epochs": CountsEpochs,
}
WITH_WORKERS = {
    "shuffled": lambda **more: DataLoader(Noise(), 4, shuffle=True, num_workers=2, **more),
    "own generator": lambda **more: DataLoader(Noise(), 4, shuffle=True, num_workers=2, generator=own(), **more),
    "a data set with generators": lambda **more: DataLoader(OwnNoise(), 4, shuffle=True, num_workers=2, **more),
    "an order without a length": lambda **more: DataLoader(
        Noise(36), 4, sampler=UnsizedOrder(36, late=True), num_workers=2, **more
    ),
    "a stream": lambda **more: DataLoader(Stream(noise=True), 4, num_workers=2, **more),
    "a stream with a length": lambda **more: DataLoader(SizedStream(24, noise=True), 4, num_workers=2, **more),
}


class TestOneLoader:
    @pytest.mark.parametrize("kind", IN_THIS_PROCESS)
    def test_in_this_process(self, kind):
        whole = check(IN_THIS_PROCESS[kind])
        assert len(whole) >= 12

    @pytest.mark.parametrize("kind", ["shuffled", "own generator", "an iterable", "a loader that keeps its place"])
    def test_with_a_limit(self, kind):
        check(IN_THIS_PROCESS[kind], limit=3)

    @pytest.mark.processes
    @pytest.mark.parametrize("persistent", [False, True])
    @pytest.mark.parametrize("kind", WITH_WORKERS)
    def test_with_workers(self, kind, persistent):
        whole = check(lambda: WITH_WORKERS[kind](persistent_workers=persistent), **FEW)
        rows = [row for batch, _ in whole for row in batch]
        assert len({row[1] for row in rows}) == len(rows), "no two samples draw the same"

    @pytest.mark.parametrize("kind", IN_THIS_PROCESS)
    def test_a_state_between_epochs_has_nothing_of_the_epoch_that_ended(self, kind):
        _, saved = read_all(IN_THIS_PROCESS[kind], epochs=2)
        for _, batch, _, state, _ in saved:
            (source,) = pickle.loads(state)["sources"]
            assert (source["began"] is None) == (not batch)
            assert batch or "pending" not in source

    @pytest.mark.parametrize("kind", ["shuffled", "own generator", "a data set with generators", "a batch sampler"])
    def test_a_plain_loop_reads_the_same(self, kind):
        """Without workers nothing is drawn that a plain loop does not draw."""
        ours, _ = read_all(IN_THIS_PROCESS[kind], saves=False)
        seeded(11)
        loader = IN_THIS_PROCESS[kind]()
        assert ours == [(plain(batch), step()) for _ in range(3) for batch in loader]


def stateful(*args, **arguments):
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    return torchdata.StatefulDataLoader(*args, **arguments)


STATEFUL = {
    "shuffled": lambda workers, **more: stateful(Noise(), 4, shuffle=True, num_workers=workers, **more),
    "own generator": lambda workers, **more: stateful(
        Noise(), 4, shuffle=True, num_workers=workers, generator=own(), **more
    ),
    "a sampler": lambda workers, **more: stateful(Noise(), 4, sampler=OwnOrder(22), num_workers=workers, **more),
    "a stream": lambda workers, **more: stateful(Stream(), 4, num_workers=workers, **more),
    "a stream with a state": lambda workers, **more: stateful(Keeps(), 4, num_workers=workers, **more),
    "a data set with a state": lambda workers, **more: stateful(
        KeepsByIndex(), 4, shuffle=True, num_workers=workers, **more
    ),
}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # by torch, and called by torchdata
class TestStatefulLoaders:
    @pytest.mark.parametrize("kind", STATEFUL)
    def test_in_this_process(self, kind):
        check(lambda: STATEFUL[kind](0))

    @pytest.mark.processes
    @pytest.mark.parametrize("kind", ["shuffled", "a stream", "a stream with a state", "a data set with a state"])
    def test_with_workers(self, kind):
        check(lambda: STATEFUL[kind](2), **ONE)

    @pytest.mark.processes
    @pytest.mark.parametrize("kind", ["a stream with a state", "a data set with a state"])
    def test_with_snapshots_now_and_then(self, kind):
        check(lambda: STATEFUL[kind](2, snapshot_every_n_steps=3), **ONE)

    @pytest.mark.processes
    def test_with_persistent_workers(self):
        check(lambda: STATEFUL["a data set with a state"](1, persistent_workers=True), epochs=2, only=(), between=(1,))

    @pytest.mark.parametrize("kind", ["shuffled", "a stream with a state", "a data set with a state"])
    def test_with_a_limit(self, kind):
        check(lambda: STATEFUL[kind](0), limit=3)

    @pytest.mark.processes
    def test_with_a_limit_and_workers(self):
        check(lambda: STATEFUL["a data set with a state"](1), limit=3, epochs=2, only=(2, 3), between=(1,))

    def test_one_that_the_user_has_positioned_goes_on_there(self):
        loader = STATEFUL["a stream with a state"](0)
        iterator = iter(loader)
        next(iterator)
        again = STATEFUL["a stream with a state"](0)
        again.load_state_dict(loader.state_dict())
        whole, _ = read_all(lambda: again, epochs=1)
        assert whole[0][0][0][0] == 4


PAIRS = {
    "shuffled": lambda: {"a": DataLoader(Noise(9), 4, shuffle=True), "b": DataLoader(Noise(22), 4, shuffle=True)},
    "own generators": lambda: {
        "a": DataLoader(Noise(9), 4, shuffle=True, generator=own()),
        "b": DataLoader(OwnNoise(22), 4, sampler=OwnOrder(22)),
    },
    "with an order without a length": lambda: {
        "a": DataLoader(Noise(9), 4, sampler=UnsizedOrder(9, late=True)),
        "b": DataLoader(Noise(22), 4, sampler=UnsizedOrder(22, late=False)),
    },
    "with a stream": lambda: {"a": DataLoader(Stream(9), 4), "b": DataLoader(Noise(22), 4, shuffle=True)},
    "with an iterable": lambda: {"a": DataLoader(Noise(9), 4, shuffle=True), "b": Unsized(5)},
    "with a list": lambda: {"a": [torch.tensor([i]) for i in range(2)], "b": DataLoader(Noise(22), 4, shuffle=True)},
    "with one that keeps its place": lambda: {"a": Knows(3), "b": DataLoader(Noise(22), 4, shuffle=True)},
    "with a stream that has a state": lambda: {"a": stateful(Keeps(9), 4), "b": DataLoader(Noise(22), 4, shuffle=True)},
    "three": lambda: {
        "a": DataLoader(Noise(4), 4, shuffle=True),
        "b": {"c": DataLoader(Noise(9), 4, shuffle=True), "d": DataLoader(Noise(22), 4, shuffle=True)},
    },
}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # by torch, and called by torchdata
class TestSeveralLoaders:
    @pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle", "sequential"])
    @pytest.mark.parametrize("kind", PAIRS)
    def test_every_mode(self, kind, mode):
        check(lambda: CombinedLoader(PAIRS[kind](), mode), epochs=2)

    @pytest.mark.parametrize("mode", ["max_size_cycle", "sequential"])
    @pytest.mark.parametrize("limit", [2, 4])
    def test_with_a_limit(self, mode, limit):
        check(lambda: CombinedLoader(PAIRS["shuffled"](), mode), limit=limit)

    @pytest.mark.processes
    @pytest.mark.parametrize("order", [lambda n: None, LateOrder, partial(UnsizedOrder, late=True)])
    @pytest.mark.parametrize("mode", ["max_size", "max_size_cycle", "sequential"])
    def test_with_workers(self, mode, order):
        """Each loader's workers have been given indices that a resumed run must not draw again."""

        def make():
            orders = [(n, order(n)) for n in (21, 36)]
            loaders = [DataLoader(Noise(n), 4, not own, sampler=own, num_workers=1) for n, own in orders]
            return CombinedLoader(loaders, mode)

        check(make, epochs=2, only=(2, 6, 9), between=(1,))

    def test_the_last_batch_of_several_is_kept_and_not_read_again(self):
        """A loader may have begun again for it."""
        loader = DataLoader(Noise(8), 4, num_workers=1)
        assert TrainData(lambda: loader, 1.0, None).rereads_exactly
        assert not TrainData(lambda: [loader, loader], 1.0, None).rereads_exactly

    @pytest.mark.processes
    def test_a_short_loader_draws_anew_when_it_begins_again(self):
        def make():
            short = DataLoader(Noise(4), 4, num_workers=1)
            return {"short": short, "long": DataLoader(Noise(16), 4, num_workers=1)}

        whole, _ = read_all(make, epochs=1, saves=False)
        assert len({str(batch["short"]) for batch, _ in whole}) == 4
        assert all(batch["short"] != batch["long"] for batch, _ in whole)


class TestWhatIsSaid:
    @pytest.fixture
    def said(self, monkeypatch):
        said = []
        sharding.report.once.clear()
        monkeypatch.setattr(sharding.report, "info", said.append)
        yield said
        sharding.report.once.clear()

    def test_an_iterator(self, said):
        TrainData(lambda: iter([[1], [2]]), 1.0, None)
        (line,) = said
        assert line == (
            "Training data: a list_iterator can be read once. It lasts for one epoch, and a resumed run reads a new "
            "one from its start up to the saved position."
        )

    def test_workers_out_of_order(self):
        with pytest.warns(PossibleUserWarning, match="in_order=False: its batches come in the order"):
            TrainData(lambda: DataLoader(Noise(), 4, num_workers=2, in_order=False), 1.0, None)

    def test_a_stream_that_draws_as_it_is_read(self, said):
        read_all(lambda: DataLoader(Stream(noise=True), 4), epochs=2, saves=False)
        assert len(said) == 1
        assert said[0].startswith("Training data: DataLoader over Stream draws random numbers as it is read")

    @pytest.mark.processes
    def test_nothing_where_a_resume_is_exact(self, said, recwarn):
        for kind in (
            "shuffled",
            "own generator",
            "an order that is drawn as it is read",
            "a loader that keeps its place",
        ):
            read_all(IN_THIS_PROCESS[kind], epochs=1, saves=False)
        for kind in ("shuffled", "a stream"):
            read_all(WITH_WORKERS[kind], epochs=1, saves=False)
        assert not said
        assert not recwarn.list


class TestDifferences:
    def described(self, *args, **arguments):
        return TrainData(lambda: DataLoader(*args, **arguments), 1.0, None)

    def test_none(self):
        data = self.described(Noise(), 4, shuffle=True)
        state = through_a_file(data.state_dict())
        assert data.differences(state) == []
        assert self.described(Noise(), 4, shuffle=True, num_workers=2).differences(state) == []
        assert data.differences({}) == []

    @pytest.mark.parametrize(
        ("then", "expected"),
        [
            ({"batch_size": 2}, ["batch_size of the training loader: 2 then, 4 now"]),
            ({"shuffle": False}, ["sampler of the training loader: SequentialSampler then, RandomSampler now"]),
            ({"dataset": Subset(Noise(), range(20))}, ["samples of the training loader: 20 then, 22 now"]),
            ({"drop_last": True}, ["training batches per epoch: 5 then, 6 now"]),
        ],
        ids=["batch_size", "sampler", "length", "drop_last"],
    )
    def test_each(self, then, expected):
        state = self.described(**{"dataset": Noise(), "batch_size": 4, "shuffle": True, **then}).state_dict()
        assert self.described(Noise(), 4, shuffle=True).differences(state) == expected

    def test_of_several(self):
        one = TrainData(lambda: {"a": DataLoader(Noise(), 4), "b": DataLoader(Noise(8), 4)}, 1.0, None)
        other = TrainData(lambda: {"a": DataLoader(Noise(), 4), "b": DataLoader(Noise(9), 4)}, 1.0, None)
        assert other.differences(one.state_dict()) == ["samples of training loader 1: 8 then, 9 now"]
        single = self.described(Noise(), 4)
        assert single.differences(one.state_dict()) == ["training loaders: 2 then, 1 now"]

    def test_workers_of_a_stream(self):
        state = self.described(Stream(), 4, num_workers=1).state_dict()
        assert self.described(Stream(), 4).differences(state) == [
            "workers of the training loader, which share out its stream: 1 then, 0 now"
        ]
