"""When a rank fails, all end soon, with the right exit code and the first failure printed last."""

from __future__ import annotations

import pickle
import re
import sys

import pytest

from lightlib.launch.watch.failure import Failure, OtherRankError
from tests.distributed.programs import run

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    pytest.mark.processes,
]
slow = pytest.mark.slow


def fails(*arguments, code=1):
    """Run the failing script; its collectives would wait for an hour."""
    ended = run("failing.py", *arguments)
    assert ended.code == code, ended.text
    assert "came to the end" not in ended.text
    return ended


@pytest.mark.parametrize(
    ("what", "rank"),
    [
        ("training_step", 1),
        ("training_step", 0),
        ("prepare_data", 0),
        pytest.param("setup", 0, marks=slow),
        pytest.param("setup", 1, marks=slow),
        pytest.param("configure_optimizers", 0, marks=slow),
        pytest.param("configure_optimizers", 1, marks=slow),
        pytest.param("validation_step", 0, marks=slow),
        pytest.param("validation_step", 1, marks=slow),
        pytest.param("callback", 0, marks=slow),
        pytest.param("callback", 1, marks=slow),
    ],
)
def test_an_exception_on_one_rank(what, rank):
    assert_traceback_comes_last(fails(what, rank), what, rank)


@pytest.mark.parametrize(
    ("strategy", "what", "rank"),
    [
        ("pipeline", "layer", 1),
        pytest.param("pipeline", "layer", 0, marks=slow),
        pytest.param("pipeline", "training_step", 1, marks=slow),
        pytest.param("fsdp", "training_step", 1, marks=slow),
        pytest.param("fsdp", "training_step", 0, marks=slow),
        pytest.param("fsdp", "validation_step", 1, marks=slow),
    ],
)
def test_an_exception_on_one_rank_of_other_strategies(strategy, what, rank):
    assert_traceback_comes_last(fails(what, rank, "--strategy", strategy), what, rank)


def assert_traceback_comes_last(ended, what, rank):
    last = ended.text.rpartition(f"Rank {rank} failed first:\n")[2]
    assert last.startswith("Traceback (most recent call last):"), ended.text
    name = {"callback": "on_train_batch_end", "layer": "forward"}.get(what, what)
    assert re.search(rf"failing.py\", line \d+, in {name}\n", last), ended.text
    assert ended.lines[-1] == f"ValueError: the sample of rank {rank} is broken", ended.text


@pytest.mark.parametrize("strategy", ["ddp", *(pytest.param(name, marks=slow) for name in ("fsdp", "pipeline"))])
def test_a_rank_that_is_killed(strategy):
    ended = fails("kill", 1, "--strategy", strategy)
    assert ended.lines[-1] == "Rank 1 was killed by SIGKILL (often: out of memory)."


@pytest.mark.parametrize("what", ["leave", "leave in setup"])
def test_a_rank_that_leaves_with_exit_code_0(what):
    ended = fails(what, 1)
    assert ended.lines[-1] == "Rank 1 ended with exit code 0 while the run still needed it."


def test_the_first_rank_is_killed():
    fails("kill", 0, code=-9)  # rank 0 can print nothing, but its parent sees the signal


@pytest.mark.parametrize(
    ("strategy", "rank", "waits"),
    [
        ("ddp", 1, "the all-reduce of gradients (backward)"),
        pytest.param("ddp", 0, "the all-reduce of gradients (backward)", marks=slow),
        pytest.param("fsdp", 1, "foreach_all_gather", marks=slow),
        pytest.param("pipeline", 1, "lightlib.strategies.pipeline.training", marks=slow),
    ],
)
def test_a_rank_that_sleeps_for_ever(strategy, rank, waits):
    ended = fails("sleep", rank, "--timeout", 3000, "--patience", 0.5, "--strategy", strategy)
    assert "timeout of the watch: 3000 s" in ended.text
    last = ended.lines[-1]
    assert last.startswith(f"No progress for 0.5 s. Rank {rank} has been at train, epoch 0, batch 5, step 5 in "), last
    assert "failing.py:" in last
    assert "`time.sleep(1e5)`" in last
    assert f"Rank {1 - rank} waits for it in " in last
    assert waits in last
    assert last.endswith(" of train, epoch 0, batch 5, step 5.")


@pytest.mark.parametrize(("rank", "code"), [(0, 3), pytest.param(1, 1, marks=slow)])
def test_sys_exit_on_one_rank(rank, code):
    ended = fails("exit", rank, code=code)
    assert f"Rank {rank} failed first:\n" in ended.text
    assert ended.lines[-1] == "SystemExit: 3"


def test_unequal_data_is_found_before_the_first_batch():
    ended = fails("unequal", 0)
    message = "MisconfigurationException: The processes have different numbers of training batches: rank 0: 20, rank"
    assert message in ended.lines[-3]
    assert ended.lines[-1].startswith("  Fix: Trainer(limit_train_batches=13)")


@pytest.mark.parametrize(("longer", "told"), [(0, "rank 0: more, rank 1: 4."), (1, "rank 0: 4, rank 1: more.")])
def test_dealt_streams_of_unequal_length_are_found_where_the_shorter_one_ends(longer, told):
    ended = fails("streams", longer)
    message = f"MisconfigurationException: The processes have different numbers of training batches: {told}"
    assert message in ended.lines[-3]
    assert f"Rank {1 - longer} failed first:" in ended.text
    assert ended.lines[-1].endswith(
        "Trainer(use_distributed_sampler=False) reads it unchanged and ends the epoch with the shortest."
    )


@slow
def test_ranks_with_different_models():
    ended = fails("models", 0)
    assert "'net.0.weight' is float32[8, 4] on rank 0 and float32[9, 4] on rank 1." in ended.lines[-3]


@pytest.mark.parametrize(
    ("what", "rank", "code", "last"),
    [
        ("training_step", 1, 1, "ValueError: the sample of rank 1 is broken"),
        pytest.param("kill", 0, 1, "Rank 0 was killed by SIGKILL (often: out of memory).", marks=slow),
        ("sleep", 1, 1, "No progress for 0.5 s. Rank 1 has been at train, epoch 0, batch 5, step 5 in "),
        pytest.param("exit", 1, 3, "SystemExit: 3", marks=slow),
        pytest.param("leave", 1, 1, "Rank 1 ended with exit code 0 before the function had returned.", marks=slow),
    ],
)
def test_copies_of_the_process(what, rank, code, last):
    ended = fails(what, rank, "--start-method", "fork", "--patience", 0.5, code=code)
    assert last in ended.lines[-1]
    assert f"Rank {rank} " in ended.text


@slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_new_interpreters(method):
    ended = fails("training_step", 0, "--start-method", method)
    assert ended.lines[-1] == "ValueError: the sample of rank 0 is broken"


def test_the_error_of_another_rank_comes_through_a_pipe_whole():
    failure = Failure.of_death(1, -9, "")
    assert pickle.loads(pickle.dumps(OtherRankError(failure))).failure == failure
