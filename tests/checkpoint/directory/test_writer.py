"""Directories of 8 to 64 ranks: the calls of each rank do not grow with their number."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter

import pytest
import torch
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

from lightlib.checkpoint import formats
from lightlib.checkpoint.directory import reader
from lightlib.checkpoint.storage.label import Label
from lightlib.errors import CheckpointError
from tests.campaigns import campaign_shards
from tests.checkpoint.directory.writers import Calls, in_threads

SIZES = (8, 16, 32, 64)
LISTINGS = ("listdir", "scandir")


def state(size: int, rank: int) -> dict[str, DTensor]:
    mesh = init_device_mesh("cpu", (size,))
    local = torch.arange(6.0).view(2, 3) + 10 * rank
    return {f"weight{number}": DTensor.from_local(local + number, mesh, [Shard(0)]) for number in range(3)}


def save(path: str, size: int) -> Calls:
    calls = Calls()
    with calls.counted():
        in_threads(size, lambda rank: reader.save({"state_dict": state(size, rank)}, path, Label(run="a")), calls)
    return calls


def load(path: str, size: int) -> Calls:
    def work(rank: int) -> None:
        content = formats.load(path)["state_dict"]
        for name, wanted in state(size, rank).items():
            assert torch.equal(content[name].read_part(wanted).to_local(), wanted.to_local())

    calls = Calls()
    with calls.counted():
        in_threads(size, work, calls)
    return calls


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    """Count the calls of all ranks while they write and read, by size."""
    folder = tmp_path_factory.mktemp("ranks")
    save(str(folder / "first.ckpt"), 2)  # what is imported then is not counted
    return {
        size: (save(str(folder / f"{size}.ckpt"), size), load(str(folder / f"{size}.ckpt"), size)) for size in SIZES
    }


@pytest.mark.parametrize("size", SIZES)
def test_one_manifest_and_one_file_of_each_rank(size, tmp_path):
    path = tmp_path / "all.ckpt"
    save(str(path), size)
    names = sorted(os.listdir(path))
    assert names[0] == "index.json"
    assert [name[-9:] for name in names[1:]] == [f"{rank:05}.bin" for rank in range(size)]
    assert os.listdir(tmp_path) == ["all.ckpt"]


def test_a_rank_that_writes_makes_as_many_calls_among_64_as_among_8(counts):
    least = counts[SIZES[0]][0].of_rank
    for size in SIZES:
        calls = counts[size][0].of_rank
        assert [calls[rank] for rank in range(1, size)] == [least[1]] * (size - 1)
        assert calls[0].total() - least[0].total() == size - SIZES[0]  # it looks once for the file of each rank
        assert not any(calls[rank][name] for rank in range(size) for name in LISTINGS)


def test_a_rank_that_reads_makes_as_many_calls_among_64_as_among_8(counts):
    least = counts[SIZES[0]][1].of_rank
    for size in SIZES:
        calls = counts[size][1].of_rank
        assert [calls[rank] for rank in range(size)] == [least[0]] * size
        assert not any(calls[0][name] for name in LISTINGS)


def test_the_manifest_grows_with_the_ranks(tmp_path):
    sizes = {}
    for size in SIZES:
        save(str(tmp_path / f"{size}.ckpt"), size)
        sizes[size] = os.path.getsize(tmp_path / f"{size}.ckpt" / "index.json") / size
    assert sizes[64] < sizes[8]
    index = json.loads((tmp_path / "64.ckpt" / "index.json").read_text())
    assert Counter(len(entry["chunks"]) for entry in index["tensors"].values()) == {64: 3}


@pytest.mark.parametrize("missing", [0, 5, 7])
def test_one_of_the_ranks_finds_a_file_that_is_missing(missing, tmp_path):
    path = str(tmp_path / "all.ckpt")
    save(path, 8)
    shard = next(name for name in os.listdir(path) if name.endswith(f"{missing:05}.bin"))
    os.remove(os.path.join(path, shard))

    def work(rank: int) -> bool:
        try:
            formats.load(path)
        except CheckpointError as error:
            return "is missing, one of 8 files" in str(error)
        return False

    assert in_threads(8, work) == [rank == missing for rank in range(8)]
    assert reader.label_of(path) is None


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_a_small_decoder_comes_back_by_other_ranks(capsys):
    arguments = ["--model", "small", "--write", "8", "--read", "8", "6", "--plan", "8", "16"]
    assert campaign_shards.command(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" in ")[0] for line in lines[1:4]] == [
        "written by 8 ranks",
        "read by 8 ranks",
        "read by 6 ranks",
    ]
    assert all("TOO MUCH" not in line for line in lines)
