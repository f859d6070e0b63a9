"""A full disk: a save loses nothing earlier at any byte, and the run continues if configured to."""

from __future__ import annotations

import os

import pytest

from lightlib.checkpoint.storage import filesystem
from lightlib.errors import CheckpointWriteError
from tests.campaigns.campaign_disk import FULL_AT, contents, places, run, saves
from tests.campaigns.full_disk import Disk, Limit
from tests.campaigns.short_run import checkpoints, state_of, train, weights_in

FORMATS = ("file", "directory")


@pytest.mark.parametrize("kind", FORMATS)
def test_at_each_of_many_bytes(kind):
    """In one run, failed saves change no training state and no earlier file, and the run ends normally."""
    tried, problems = saves(Disk(), os.path.abspath("run"), kind, 60)
    assert tried == 120
    assert problems == []


@pytest.mark.parametrize("kind", FORMATS)
def test_a_limit_of_the_system(kind):
    tried, problems = saves(Limit(), os.path.abspath("run"), kind, 12)
    assert tried >= 12
    assert problems == []


@pytest.mark.parametrize(
    ("kind", "save_errors", "async_save"),
    [("file", "raise", False), ("file", "warn", True), ("directory", "warn", False), ("directory", "raise", True)],
)
def test_a_run_ends_or_goes_on_as_it_is_told(kind, save_errors, async_save):
    how = {"format": kind, "save_errors": save_errors, "async_save": async_save}
    state = state_of(train(checkpoints("expected", save_top_k=-1, format=kind)))
    expected = {"state": state, "weights": weights_in("expected")}
    rooms = places(Disk(), f"expected/step={FULL_AT}.ckpt", 7)
    assert {room: run(Disk(), f"run{room:05}", room, expected, **how) for room in rooms[::3]} == {
        0: [],
        rooms[3]: [],
        rooms[6]: [],
    }


@pytest.mark.parametrize("broken", ["fsync", "replace", "mkdir"])
def test_a_disk_that_breaks(broken):
    filesystem.write("run/a.ckpt", lambda file: file.write(b"older") and None)
    disk = Disk()
    path = "run/new/b.ckpt" if broken == "mkdir" else "run/a.ckpt"
    with disk.mounted():
        disk.set(10**9, broken)
        with pytest.raises(
            CheckpointWriteError, match=rf"'{path}' could not be written: \[Errno 5\] Input/output error"
        ):
            filesystem.write(path, lambda file: file.write(b"new") and None)
    assert contents("run") == {"a.ckpt": b"older"}


def test_a_copy_of_a_folder_that_finds_no_room():
    disk = Disk()
    with disk.mounted():
        for name in ("a", "b"):
            filesystem.write(f"run/x/{name}", lambda file: file.write(b"1234") and None)
        disk.set(6)
        with pytest.raises(CheckpointWriteError, match=r"could not be written: \[Errno 28\] No space left"):
            filesystem.copy("run/x", "run/y")
    assert sorted(contents("run")) == ["x/a", "x/b"]
    assert os.listdir("run") == ["x"]
