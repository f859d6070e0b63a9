"""Ctrl-C and SIGTERM: all ranks leave at one step, with a checkpoint for an exact resume."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from tests.distributed.programs import run

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    pytest.mark.processes,
]
slow = pytest.mark.slow
FIT = ("--epochs", 2)
TOGETHER = "--together"  # the other rank receives it in the same batch, otherwise at any place


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Return the result of an uninterrupted run, by its options."""
    found = {}

    def ask(*options):
        if options not in found:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(tmp_path_factory.mktemp("uninterrupted"))
                found[options] = went_on(*options)
        return found[options]

    return ask


def went_on(*options, torchrun=False):
    """Run the script to its end and return the result of rank 0."""
    ended = run("stopped.py", *FIT, *options, torchrun=torchrun)
    assert ended.code == 0, ended.text
    assert left() == ["2 20 20" if "--accumulate" not in options else "2 20 6"] * 2
    return torch.load("end-0.pt")


def left():
    """Return where the ranks left: epoch, batches and steps."""
    return [Path(f"left-{rank}").read_text() for rank in (0, 1)]


def stopped(code, *options, torchrun=False):
    """Run the script that is stopped, and check that both ranks left at one place and the file is there."""
    ended = run("stopped.py", *FIT, *options, torchrun=torchrun)
    assert ended.code == code, ended.text
    one, other = left()
    assert one == other
    epoch, batches, steps = map(int, one.split())
    assert "To resume from there" in ended.text
    assert f"current_epoch={epoch} after {batches - 10 * epoch} of its batches (global_step={steps})" in ended.text
    assert "Traceback" not in ended.text or torchrun
    return batches, ended


def assert_goes_on(expected, *options, torchrun=False):
    found = went_on(*options, "--ckpt-path", "checkpoints/interrupted.ckpt", torchrun=torchrun)
    assert found["metrics"] == expected["metrics"]
    assert found["weights"].keys() == expected["weights"].keys()
    for name, value in expected["weights"].items():
        assert torch.equal(value, found["weights"][name]), name


@pytest.mark.parametrize(
    ("what", "to", "where", "options"),
    [
        pytest.param("SIGTERM", "1", "train", (), marks=slow),
        ("SIGINT", "group", "train", ("--accumulate", 4)),  # batch 7 is in the middle of a window
        ("SIGTERM", "0", "validate", (TOGETHER,)),
        pytest.param("SIGTERM", "0", "train", (), marks=slow),
        pytest.param("SIGTERM", "group", "train", ("--accumulate", 4), marks=slow),
        pytest.param("SIGTERM", "1", "train", (TOGETHER,), marks=slow),
        pytest.param("SIGINT", "group", "validate", (TOGETHER,), marks=slow),
        pytest.param("SIGINT", "group", "train", ("--strategy", "fsdp", "--accumulate", 4), marks=slow),
        pytest.param("SIGTERM", "1", "validate", ("--strategy", "fsdp"), marks=slow),
    ],
)
def test_a_script_leaves_at_one_step_and_goes_on_from_there(uninterrupted, what, to, where, options):
    at = 7 if where == "train" else 3
    code = 143 if what == "SIGTERM" else 130
    batches, ended = stopped(code, "--what", what, "--to", to, "--where", where, "--at", at, *options)
    if where == "validate":
        assert batches == 10
    else:
        assert 7 <= batches <= 10  # a rank that has not got it may be a batch or two further
    assert "--accumulate" not in options or batches in (8, 10)
    assert ended.text.count("Stopping after this step") == (what == "SIGINT")  # once, not on every rank
    options = [option for option in options if option != TOGETHER]
    assert_goes_on(uninterrupted(*options), *options)


@pytest.mark.parametrize("together", [(TOGETHER,), pytest.param((), marks=slow)])
def test_a_script_that_is_stopped_in_the_sanity_check_begins_from_nothing_again(uninterrupted, together):
    """The other rank may be through it, and then both leave before the first batch, with a checkpoint."""
    sanity = ("--where", "sanity")
    ended = run("stopped.py", *FIT, *sanity, "--what", "SIGINT", "--at", 1, *together, "--ckpt-path", "auto")
    assert ended.code == 130, ended.text
    assert left() == ["0 0 0"] * 2
    before = "No checkpoint was written, so a new run starts from nothing." in ended.text
    assert before or (not together and "To resume from there" in ended.text), ended.text
    assert "Traceback" not in ended.text
    expected, found = uninterrupted(*sanity), went_on(*sanity, "--ckpt-path", "auto")
    assert found["metrics"] == expected["metrics"]
    assert all(torch.equal(value, found["weights"][name]) for name, value in expected["weights"].items())


@pytest.mark.parametrize(
    ("what", "to", "strategy"),
    [
        ("SIGTERM", "1", "ddp"),
        pytest.param("SIGTERM", "0", "ddp", marks=slow),
        pytest.param("SIGINT", "group", "ddp", marks=slow),
        pytest.param("SIGINT", "group", "ddp_fork", marks=slow),
    ],
)
def test_a_signal_to_one_as_the_run_ends_ends_all_after_it(what, to, strategy):
    ended = run("stopped.py", *FIT, "--what", what, "--to", to, "--where", "end", "--strategy", strategy)
    assert ended.code == (143 if what == "SIGTERM" else 130), ended.text
    assert left() == ["2 20 20"] * 2
    assert "To resume from the last checkpoint" in ended.text
    assert "Traceback" not in ended.text
    assert not Path("end-0.pt").exists()  # which the script writes next


@pytest.mark.parametrize(
    ("what", "to", "method"),
    [
        ("SIGTERM", "agent", "ddp_fork"),
        pytest.param("SIGTERM", "group", "ddp_fork", marks=slow),
        pytest.param("SIGINT", "group", "ddp_fork", marks=slow),
        pytest.param("SIGTERM", "agent", "ddp_spawn", marks=slow),
    ],
)
def test_the_process_that_has_started_all_of_them(what, to, method):
    """The parent trains nothing itself, and lets its children end their run."""
    ended = run("stopped.py", *FIT, "--what", what, "--to", to, "--at", 7, "--strategy", method)
    assert ended.code == (143 if what == "SIGTERM" else 130), ended.text
    assert "To resume from there" in ended.text
    assert "Traceback" not in ended.text
    assert Path("checkpoints/interrupted.ckpt").exists()


@slow
@pytest.mark.parametrize("to", ["0", "1", "group"])
def test_a_slurm_job_is_queued_again_once_whoever_is_asked(uninterrupted, monkeypatch, tmp_path, to):
    """`ckpt_path="auto"` then finds the file that was written."""
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f"#!/bin/sh\necho $* >> {tmp_path}/said\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scontrol.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "71")
    stopped(143, "--what", "SIGUSR1", "--to", to)
    assert (tmp_path / "said").read_text() == "requeue 71\n"
    expected, found = uninterrupted(), went_on("--ckpt-path", "auto")
    assert all(torch.equal(value, found["weights"][name]) for name, value in expected["weights"].items())


@pytest.mark.parametrize(
    ("what", "to"),
    [
        pytest.param("SIGTERM", "agent", marks=slow),
        pytest.param("SIGTERM", "0", marks=slow),
        pytest.param("SIGTERM", "1", marks=slow),
        pytest.param("SIGINT", "group", marks=slow),
    ],
)
def test_torchrun(uninterrupted, what, to):
    batches, _ = stopped(1, "--what", what, "--to", to, torchrun=True)
    assert 7 <= batches <= 10
    assert_goes_on(uninterrupted(), torchrun=True)


def test_a_further_sigterm_does_not_disturb_the_saving(uninterrupted):
    """Schedulers send one to all processes, and torchrun to those that it has started."""
    batches, _ = stopped(143, "--what", "SIGTERM", "--to", "1", "--again")
    assert 7 <= batches <= 10
    assert_goes_on(uninterrupted())


@pytest.mark.parametrize(
    ("to", "together"),
    [("group", ()), pytest.param("0", (TOGETHER,), marks=slow), pytest.param("1", (), marks=slow)],
)
def test_a_second_ctrl_c_ends_all_at_once(to, together):
    ended = run("stopped.py", *FIT, "--what", "twice", "--to", to, *together)
    assert ended.code == 130, ended.text
    assert "Traceback" not in ended.text
    assert not Path("checkpoints/interrupted.ckpt").exists()


@pytest.mark.parametrize(
    ("to", "options"), [("1", ()), pytest.param("0", (TOGETHER, "--strategy", "fsdp"), marks=slow)]
)
def test_should_stop_on_one_rank(to, options):
    ended = run("stopped.py", *FIT, "--what", "should_stop", "--to", to, *options)
    assert ended.code == 0, ended.text
    one, other = left()
    assert one == other
    assert 7 <= int(one.split()[1]) <= 10
