"""A run that is killed and started by the same command leaves the logs of a run that was never killed."""

from __future__ import annotations

import signal

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.processes import programs

pytestmark = pytest.mark.processes


def start(folder, *arguments):
    """Run the program to its end and return its code."""
    folder.mkdir(exist_ok=True)
    ended = programs.run("-m", "tests.loggers.same_command", *arguments, cwd=folder)
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return ended.returncode


def scalars(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def left(folder):
    """Everything that a run leaves, but for the names of event files."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if "tfevents" not in path.name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that is never killed."""
    folder = tmp_path_factory.mktemp("whole")
    assert start(folder) == 0
    return folder


def check(folder, whole):
    csv, board = "lightning_logs/version_0", "board/version_0"
    assert left(folder) == left(whole)
    for file in (f"{csv}/metrics.csv", f"{csv}/hparams.yaml", "lines/version_0/metrics.jsonl"):
        assert (folder / file).read_bytes() == (whole / file).read_bytes()
    expected = scalars(whole / board)
    assert {"loss_step", "loss_epoch", "val_loss", "late", "epoch", "hp_metric"} == set(expected)
    assert scalars(folder / board) == expected
    ours, theirs = (torch.load(path / csv / "checkpoints" / "last.ckpt") for path in (folder, whole))
    torch.testing.assert_close(ours["state_dict"], theirs["state_dict"], rtol=0, atol=0)


def test_without_any_folder_given(tmp_path, whole):
    assert start(tmp_path, "--kill", 5) == -signal.SIGKILL
    assert start(tmp_path, "--kill", 5) == -signal.SIGKILL
    assert start(tmp_path) == 0
    check(tmp_path, whole)


@pytest.mark.slow
def test_killed_before_the_first_checkpoint_of_a_version_that_was_given(tmp_path, whole):
    assert start(tmp_path, "--version", "version_0", "--kill", 2) == -signal.SIGKILL
    assert start(tmp_path, "--version", "version_0") == 0
    (aside,) = (tmp_path / "lightning_logs" / "version_0").glob("metrics-v1.csv")
    aside.unlink()
    (aside,) = (tmp_path / "lines" / "version_0").glob("metrics-v1.jsonl")
    aside.unlink()
    (aside,) = (tmp_path / "board" / "version_0").glob("*earlier*")
    aside.unlink()
    check(tmp_path, whole)
