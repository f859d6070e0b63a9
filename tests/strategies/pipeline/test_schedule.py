"""Schedules by name, the number of micro-batches, and how a batch is cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.strategies.pipeline.pipeline_axis import Pipeline
from lightlib.strategies.pipeline.schedule import SCHEDULES, kind_of, micro_batches, placed
from lightlib.tree import split


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("gpipe", "gpipe"), ("GPipe", "gpipe"), ("1F1B", "1f1b"), ("Interleaved1F1B", "interleaved"),
        ("LoopedBFS", "looped_bfs"), ("InterleavedZeroBubble", "interleaved_zero_bubble"),
        ("ZBVZeroBubble", "zbv"), ("ScheduleDualPipeV", "dualpipev"), ("looped-bfs", "looped_bfs"),
    ],
)  # fmt: skip
def test_names_are_ours_or_torchs(given, name) -> None:
    assert kind_of(given).name == name


def test_an_unknown_schedule() -> None:
    with pytest.raises(UnknownNameError, match=r"Unknown schedule '1f2b'\. Did you mean '1f1b'"):
        Pipeline(2, schedule="1f2b")


def test_a_torch_that_is_too_old_for_a_schedule() -> None:
    for name in ("1f1b", "interleaved_zero_bubble"):
        kind_of(name).check_torch("2.10.0+cpu")
    for name in ("zbv", "dualpipev"):
        kind_of(name).check_torch("2.12.0+cpu")
        match = rf"'{name}', with torch 2\.11\.1(.|\n)*torch 2\.12 or newer"
        with pytest.raises(MisconfigurationException, match=match):
            kind_of(name).check_torch("2.11.1")


def test_zero_bubble_and_stages_per_rank() -> None:
    assert {name for name in SCHEDULES if Pipeline(2, schedule=name).zero_bubble} == {
        "interleaved_zero_bubble", "zbv", "dualpipev",
    }  # fmt: skip
    assert [Pipeline(2, schedule=name).stages_per_rank for name in ("gpipe", "1f1b", "interleaved", "zbv")] == [
        1,
        1,
        2,
        2,
    ]
    assert Pipeline(2, schedule="interleaved", stages_per_rank=3).stages_per_rank == 3
    with pytest.raises(MisconfigurationException, match="stages_per_rank=2 with schedule='1f1b'"):
        Pipeline(2, stages_per_rank=2)
    with pytest.raises(MisconfigurationException, match="stages_per_rank=3 with schedule='zbv'"):
        Pipeline(2, schedule="zbv", stages_per_rank=3)


@pytest.mark.parametrize("given", [{"microbatches": 2.0}, {"stages_per_rank": True}, {"stages": "a"}])
def test_options_of_other_types(given) -> None:
    with pytest.raises(ArgumentTypeError, match=next(iter(given))):
        Pipeline(2, **given)


@pytest.mark.parametrize("name", ["microbatches", "stages_per_rank"])
def test_options_out_of_bounds(name) -> None:
    with pytest.raises(MisconfigurationException, match=rf"Pipeline\({name}=0\)(.|\n)*an int >= 1, or None"):
        Pipeline(2, **{name: 0})


def test_placement() -> None:
    assert placed(kind_of("1f1b"), 3, 1) == [0, 1, 2]
    assert placed(kind_of("interleaved"), 2, 3) == [0, 1, 0, 1, 0, 1]
    assert placed(kind_of("dualpipev"), 3, 2) == [0, 1, 2, 2, 1, 0]


@pytest.mark.parametrize(
    ("schedule", "size", "asked", "stages", "processes", "expected"),
    [
        ("gpipe", 8, None, 2, 2, 4),
        ("1f1b", 32, None, 2, 2, 4),
        ("1f1b", 6, None, 4, 4, 6),
        ("gpipe", 7, None, 2, 2, 7),
        ("gpipe", 9, None, 2, 2, 3),
        ("interleaved", 12, None, 4, 2, 6),
        ("zbv", 16, None, 4, 2, 8),
        ("1f1b", 8, 8, 2, 2, 8),
        ("gpipe", 8, 1, 2, 2, 1),
    ],
)
def test_numbers_of_micro_batches(schedule, size, asked, stages, processes, expected) -> None:
    assert micro_batches(kind_of(schedule), size, asked, stages, processes, full=True) == expected


def test_a_rest_takes_the_largest_number_that_divides_it_or_goes_in_one_piece() -> None:
    assert micro_batches(kind_of("1f1b"), 6, 4, 2, 2, full=False) == 3
    assert micro_batches(kind_of("1f1b"), 1, 4, 2, 2, full=False) == 0
    assert micro_batches(kind_of("gpipe"), 1, 4, 2, 2, full=False) == 1
    assert micro_batches(kind_of("dualpipev"), 2, None, 4, 2, full=False) == 0


def test_a_full_batch_that_cannot_be_cut_is_told_what_would_do() -> None:
    with pytest.raises(
        MisconfigurationException, match=r"12 samples cannot be cut into 5 (.|\n)*2, 3, 4, 6, 12"
    ) as error:
        micro_batches(kind_of("1f1b"), 12, 5, 2, 2, full=True)
    assert "microbatches=4" in str(error.value)
    with pytest.raises(MisconfigurationException, match=r"no number does(.|\n)*batch_size=4"):
        micro_batches(kind_of("dualpipev"), 2, None, 4, 2, full=True)


def test_batches_of_all_kinds_are_cut_and_keep_their_types() -> None:
    class Pair(NamedTuple):
        x: Any
        y: Any

    @dataclass
    class Batch:
        x: torch.Tensor
        names: list[str]
        scale: float

    x = torch.arange(4)
    one = split(Pair(x, {"y": [x, x * 2]}), 2, 4)
    assert [type(part) for part in one] == [Pair, Pair]
    assert one[1].y["y"][1].tolist() == [4, 6]
    two = split(Batch(x, list("abcd"), 0.5), 2, 4)
    assert (two[1].x.tolist(), two[1].names, two[1].scale) == ([2, 3], ["c", "d"], 0.5)
    assert split([x, torch.tensor(3.0)], 4, 4)[2][0].tolist() == [2]
