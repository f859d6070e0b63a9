"""Tests of streams that shard themselves: resumed by as many, more and fewer ranks, and warnings."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import torch
from torch.utils.data import ChainDataset, DataLoader, IterableDataset

import lightlib as L
from lightlib import registry, report
from lightlib.data import MixtureDataset, pack, training_source
from lightlib.data.sharding import DataShard, is_sharded_by_user
from lightlib.data.streams.adapter import StreamAdapter
from lightlib.data.streams.hugging_face import HuggingFaceStreams
from lightlib.data.streams.loaders import with_dataset
from lightlib.data.train import TrainData
from lightlib.errors import MisconfigurationException
from tests.data.streams import libraries
from tests.data.streams.libraries import BATCH, LIBRARIES, SAMPLES, Place
from tests.data.streams.program import ids_in
from tests.runs.bad_input import refused
from tests.runs.modules import Seen

ROUNDS = {2: 18, 3: 12}  # batches of each rank
# Warnings of the libraries themselves.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings(r"ignore:WebDataset\(shardshuffle=\.\.\.\):UserWarning"),
]


class Sharded(IterableDataset):
    """Numbers, of which each rank reads its share."""

    def __init__(self, rank, size):
        self.share, self.epoch = (rank, size), 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        rank, size = self.share
        generator = torch.Generator().manual_seed(self.epoch)
        yield from torch.randperm(SAMPLES, generator=generator).tolist()[rank::size]


class Shards(StreamAdapter):
    def of_rank(self, loader, rank, size):
        data = Sharded(rank, size)
        data.set_epoch(loader.dataset.epoch)
        return with_dataset(loader, data)

    def start_epoch(self, loader, epoch):
        loader.dataset.set_epoch(epoch)


def sharded(place, workers):
    return DataLoader(Sharded(0, 1), BATCH, num_workers=workers)


@pytest.fixture
def registered():
    def register(adapter):
        registry.register("streams", "tests", adapter)

    yield register
    registry.unregister("streams", "tests")


@pytest.fixture(params=["sharded", "webdataset", "webdataset_torch", "litdata"])
def make(request, tmp_path, registered, monkeypatch):
    """Return a function that makes a loader of a library, as a process of that rank has it."""
    if request.param == "sharded":
        registered(Shards)
        return lambda rank, size: sharded(None, 0)
    library = LIBRARIES[request.param.partition("_")[0]]
    pytest.importorskip(library.module, reason="an optional library", exc_type=ImportError)
    (tmp_path / "data").mkdir()
    library.write(tmp_path / "data")

    def made(rank, size):
        for name, value in (("RANK", rank), ("GLOBAL_RANK", rank), ("WORLD_SIZE", size)):
            monkeypatch.setenv(name, str(value))
        return getattr(libraries, request.param)(Place(str(tmp_path / "data")), 0)

    return made


def read(make, rank, size, state=None, batches=None, epochs=1):
    """Read batches of epoch 1 as one rank; return them, by epoch, and the state."""
    share = DataShard(rank, size, broadcast=lambda value: value, gather=lambda value: [value] * size)
    loader = make(rank, size)
    data = TrainData(lambda: loader, 1.0, None, share=share)
    start, found = data.load_state_dict(state) if state else 0, []
    for epoch in range(1, 1 + epochs):
        data.start_epoch(epoch, start)
        found.append([])
        while not data.exhausted and (batches is None or len(found[-1]) < batches):
            found[-1].append(ids_in(next(data)))
        if data.exhausted and epochs > 1:
            data.end_epoch()
            start = 0
    return found, data.state_dict()


def read_by_all(make, size, states=None, **how):
    """Return the batches of each epoch in the order of steps and ranks, and the states."""
    states = states if states is None or len(states) == size else [states[0]] * size  # as the checkpoint has it
    each = [read(make, rank, size, states and states[rank], **how) for rank in range(size)]
    epochs = zip(*(found for found, _ in each), strict=True)
    batches = [[batch for step in zip(*epoch, strict=True) for batch in step] for epoch in epochs]
    return batches, [state for _, state in each]


def samples(batches):
    return sorted(number for batch in batches for number in batch)


def test_the_order_is_that_of_an_uninterrupted_run(make):
    (whole,), _ = read_by_all(make, 2)
    assert samples(whole) == list(range(SAMPLES))
    (before,), states = read_by_all(make, 2, batches=5)
    (after,), _ = read_by_all(make, 2, states)
    assert before + after == whole


def test_each_sample_is_read_once_when_the_number_of_ranks_changes(make):
    (first,), states = read_by_all(make, 2, batches=3)
    (second,), states = read_by_all(make, 3, states, batches=2)
    (third, following), _ = read_by_all(make, 2, states, epochs=2)
    assert samples(first + second + third) == list(range(SAMPLES))
    assert samples(following) == list(range(SAMPLES))


def test_one_rank_takes_over(make):
    (first,), states = read_by_all(make, 2, batches=3)
    loader = make(0, 1)
    data = TrainData(lambda: loader, 1.0, None)
    data.start_epoch(1, data.load_state_dict(states[0]))
    rest = []
    while not data.exhausted:
        rest.append(ids_in(next(data)))
    assert samples(first + rest) == list(range(SAMPLES))


def test_mixtures_and_packed_streams_are_sharded_as_their_sources_are(registered):
    registered(Shards)
    make = lambda rank, size: DataLoader(MixtureDataset([Sharded(rank, size), Sharded(rank, size)]), BATCH)  # noqa: E731
    (found,), _ = read_by_all(make, 2)
    assert samples(found) == sorted([*range(SAMPLES)] * 2)
    share = DataShard(0, 2, broadcast=lambda value: value, gather=lambda value: [value] * 2)
    assert is_sharded_by_user(DataLoader(pack(Sharded(0, 2), 4)), share, "training")
    mixed = DataLoader(pack(MixtureDataset([Sharded(0, 2), ChainDataset([])]), 4))
    with refused(MisconfigurationException, "***Sharded, which shards itself, and of a ChainDataset***", "***", "***"):
        is_sharded_by_user(mixed, share, "training")


def test_a_stream_of_another_shard_is_warned_about(registered):
    registered(StreamAdapter)
    make = lambda rank, size: DataLoader(Sharded(rank, size), BATCH)  # noqa: E731
    _, states = read_by_all(make, 2, batches=3)
    with pytest.warns(UserWarning, match=r"by 2 processes, and the DataLoader over Sharded shards itself for 3"):
        read(make, 0, 3, states[0])


def test_a_slow_return_is_warned_about_with_the_alternatives(monkeypatch):
    monkeypatch.setattr(training_source, "LONG", -1.0)
    make = lambda rank, size: DataLoader(Sharded(0, 1), BATCH)  # noqa: E731
    _, states = read_by_all(make, 2, batches=3)
    text = r"again up to batch 3 has taken 0 s for 1 of them, .*\n.*\n  Fix: torchdata's StatefulDataLoader"
    with pytest.warns(UserWarning, match=text):
        read(make, 0, 2, states[0])


class TestWebDataset:
    @pytest.fixture
    def url(self, tmp_path):
        pytest.importorskip("webdataset", reason="an optional library")
        LIBRARIES["webdataset"].write(tmp_path)
        return str(tmp_path / "{00..11}.tar")

    def test_a_web_loader_gives_batches(self, url):
        import webdataset

        data = webdataset.WebDataset(url, shardshuffle=False).decode().to_tuple("id.cls").batched(BATCH)
        module = Seen()
        trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False)
        trainer.fit(module, webdataset.WebLoader(data, batch_size=None))
        assert [len(batch[0]) for batch in module.seen] == [BATCH] * (SAMPLES // BATCH)

    @pytest.mark.processes
    @pytest.mark.parametrize("workers", [0, 1, 2])
    def test_each_epoch_has_an_order_of_its_own(self, url, workers):
        import webdataset

        def make(rank, size):
            data = webdataset.WebDataset(
                url, shardshuffle=100, detshuffle=True, seed=0, nodesplitter=webdataset.split_by_node
            )
            return DataLoader(data.decode().to_tuple("id.cls"), BATCH, num_workers=workers)

        epochs, _ = read(make, 0, 2, epochs=4)
        assert len({tuple(samples(epoch)) for epoch in epochs}) == 1
        assert len({str(epoch) for epoch in epochs}) > 1

    @pytest.mark.parametrize(
        ("options", "size", "text"),
        [
            ({"resampled": True}, None, r"WebDataset\(resampled=True\) draws shards at random"),
            ({"shardshuffle": False}, 20, r"shuffle\(…\) of a WebDataset has no seed"),
        ],
    )
    def test_no_exact_order_is_warned_about_before_training(self, url, options, size, text):
        import webdataset

        data = webdataset.WebDataset(url, **options)
        data = data if size is None else data.shuffle(size)
        with pytest.warns(UserWarning, match=text):
            TrainData(lambda: DataLoader(data, BATCH), 3, None)

    def test_data_that_no_stage_splits_are_sharded_by_lightlib(self, url):
        import webdataset

        def make(rank, size):
            data = webdataset.WebDataset(url, shardshuffle=False, nodesplitter=None)
            return DataLoader(data.decode().to_tuple("id.cls"), BATCH)

        (found,), _ = read_by_all(make, 2)
        assert samples(found) == list(range(SAMPLES))


@pytest.mark.parametrize("package", ["streaming", "datasets", "webdataset"])
def test_a_package_of_the_program_with_the_name_of_a_library(package):
    kind = type(
        "Own", (IterableDataset,), {"__module__": f"{package}.own", "__iter__": lambda self: iter(range(SAMPLES))}
    )
    loader = DataLoader(kind(), BATCH)
    (batches,), _ = read_by_all(lambda rank, size: loader, 2)
    assert samples(batches) == list(range(SAMPLES))


class TestHuggingFace:
    @pytest.fixture
    def data(self):
        datasets = pytest.importorskip("datasets", reason="an optional library")
        return datasets.Dataset.from_dict({"id": list(range(SAMPLES))}).to_iterable_dataset(num_shards=6)

    def test_another_rank_reads_a_copy(self, data):
        split = importlib.import_module("datasets.distributed").split_dataset_by_node(data, 0, 2)
        loader = DataLoader(split, BATCH)
        other = HuggingFaceStreams().of_rank(loader, 2, 3)
        place = other.dataset._distributed
        assert (place.rank, place.world_size, split._distributed.world_size) == (2, 3, 2)

    def test_a_shuffle_buffer_is_read_again_and_reported(self, data, monkeypatch):
        said = []
        monkeypatch.setattr(report, "info", said.append)
        report.once.clear()
        stateful = pytest.importorskip("torchdata.stateful_dataloader")
        loader = stateful.StatefulDataLoader(data.shuffle(seed=3, buffer_size=30), BATCH)
        (source,) = TrainData(lambda: loader, 1.0, None).sources
        assert not source.has_state
        assert "lacks the samples in its shuffle buffer" in "".join(said)


def test_every_library_has_an_adapter_or_needs_none():
    assert {library.module for library in LIBRARIES.values()} - {"torchdata"} == set(registry.names("streams"))
    for name in registry.names("streams"):
        assert importlib.import_module(type(registry.get("streams", name)()).__module__)


def calls_per_batch(data, batches):
    """Return how often functions are called in each batch, and how many of these are of the package."""
    calls = {"all": 0, "ours": 0}

    def count(frame, event, argument):
        if event == "call":
            calls["all"] += 1
            calls["ours"] += "/lightlib/" in frame.f_code.co_filename

    next(data)
    next(data)
    sys.setprofile(count)
    try:
        for _ in range(batches):
            next(data)
    finally:
        sys.setprofile(None)
    return calls["ours"] / batches, calls["all"] / batches


@pytest.mark.parametrize("batch", [1, 4])
def test_a_batch_of_a_stream_costs_a_few_calls_however_many_samples_it_has(batch):
    loader = DataLoader(Sharded(0, 1), batch)
    data = TrainData(lambda: loader, 1.0, None)
    data.start_epoch(0, 0)
    ours, of_all = calls_per_batch(data, 10)
    alone = iter(DataLoader(Sharded(0, 1), batch))
    next(alone)
    ours_alone, of_loader = calls_per_batch(alone, 10)
    assert ours_alone == 0
    assert ours <= 20
    assert of_all - of_loader <= 30, of_all - of_loader


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_campaign(name):
    pytest.importorskip(LIBRARIES[name].module, reason="an optional library", exc_type=ImportError)
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.campaign_streams", "--only", name],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
