"""The same under torchrun: its summary comes last, and gives the error of the first failing rank."""

from __future__ import annotations

import re
import sys

import pytest

from tests.distributed.programs import run

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    pytest.mark.processes,
]
slow = pytest.mark.slow


def root_cause(what, rank, *options):
    """Run the failing script and return the root cause that torchrun prints."""
    ended = run("failing.py", what, rank, *options, torchrun=True)
    assert ended.code == 1, ended.text
    _, found, cause = ended.text.partition("Root Cause (first observed failure):")
    assert found, ended.text
    assert ended.lines[-1] == "=" * len(ended.lines[-1])
    return cause


@pytest.mark.parametrize(
    ("what", "rank", "strategy"),
    [
        ("training_step", 1, "ddp"),
        pytest.param("training_step", 0, "ddp", marks=slow),
        pytest.param("setup", 0, "ddp", marks=slow),
        pytest.param("prepare_data", 0, "ddp", marks=slow),
        pytest.param("configure_optimizers", 1, "ddp", marks=slow),
        pytest.param("validation_step", 0, "ddp", marks=slow),
        pytest.param("callback", 1, "ddp", marks=slow),
        pytest.param("training_step", 0, "fsdp", marks=slow),
        pytest.param("layer", 1, "pipeline", marks=slow),
    ],
)
def test_an_exception_on_one_rank(what, rank, strategy):
    cause = root_cause(what, rank, "--strategy", strategy)
    assert f"rank      : {rank} (local_rank: {rank})" in cause
    assert f"traceback : Rank {rank} failed first:" in cause
    assert f"\n  ValueError: the sample of rank {rank} is broken\n" in cause


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=slow)])
def test_a_rank_that_is_killed(rank):
    cause = root_cause("kill", rank)
    assert f"rank      : {rank} (local_rank: {rank})" in cause
    assert "Signal 9 (SIGKILL)" in cause


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=slow)])
def test_a_rank_that_sleeps_for_ever(rank):
    cause = root_cause("sleep", rank, "--patience", 0.5)
    assert f"rank      : {rank} (local_rank: {rank})" in cause
    assert re.search(
        rf"traceback : No progress for 0.5 s. Rank {rank} has been at train, epoch 0, batch 5, step 5", cause
    )
    assert f"Rank {1 - rank} waits for it in the all-reduce of gradients (backward)" in cause


@slow
@pytest.mark.parametrize("rank", [0, 1])
def test_sys_exit_on_one_rank(rank):
    cause = root_cause("exit", rank)
    assert f"traceback : Rank {rank} failed first:" in cause
    assert "\n  SystemExit: 3\n" in cause


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("unequal", "different numbers of training batches: rank 0: 20, rank 1: 13."),
        pytest.param("models", "'net.0.weight' is float32[8, 4] on rank 0 and float32[9, 4] on rank 1.", marks=slow),
    ],
)
def test_what_all_ranks_refuse(what, message):
    assert message in root_cause(what, 0)
