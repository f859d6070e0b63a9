"""The journal file: torn lines, writers that die with the lock, full disks, and network file systems."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from optuna.storages.journal import JournalFileOpenLock

from lightlib.experiment.ledger.journal import JournalFile, KernelLock, is_on_network

MOUNTS = """\
overlay / overlay rw,relatime 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
/dev/sda1 /home/me/local ext4 rw 0 0
server:/with\\040space /mnt/with\\040space lustre rw 0 0
"""
HOLDS_THE_LOCK = """
import sys, time
from pathlib import Path
from lightlib.experiment.ledger.journal import KernelLock
KernelLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(600)
"""


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.log"


class TestTornLine:
    def test_it_is_moved_away_before_the_next_line(self, path):
        journal = JournalFile(path)
        journal.append_logs([{"a": 1}, {"a": 2}])
        with path.open("a") as file:
            file.write('{"a": 3, "b"')
        assert list(journal.read_logs(0)) == [{"a": 1}, {"a": 2}]
        journal.append_logs([{"a": 4}])
        assert lines(path) == [{"a": 1}, {"a": 2}, {"a": 4}]
        assert list(JournalFile(path).read_logs(0)) == [{"a": 1}, {"a": 2}, {"a": 4}]
        (torn,) = path.parent.glob("journal.log.torn-*")
        assert torn.read_text() == '{"a": 3, "b"'

    def test_the_first_line_of_all(self, path):
        path.write_text('{"a"')
        JournalFile(path).append_logs([{"a": 1}])
        assert lines(path) == [{"a": 1}]

    def test_at_every_byte_of_a_line(self, path):
        JournalFile(path).append_logs([{"first": 1}])
        whole, line = path.read_bytes(), b'{"op_code":4,"value":"\xc3\xa4"}\n'
        for length in range(len(line)):
            path.write_bytes(whole + line[:length])
            journal = JournalFile(path)
            journal.append_logs([{"next": 2}])
            assert lines(path) == [{"first": 1}, {"next": 2}], length


class TestFullDisk:
    def test_the_file_is_as_it_was(self, path, monkeypatch):
        """The disk takes a part of the line and then refuses."""
        journal = JournalFile(path)
        journal.append_logs([{"a": 1}])
        before = path.read_bytes()

        def full(file, content):
            file.write(content[:5])
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr("lightlib.experiment.ledger.journal._write_all", full)
            with pytest.raises(OSError, match="No space left"):
                journal.append_logs([{"a": 2}])
        assert path.read_bytes() == before
        journal.append_logs([{"a": 3}])
        assert lines(path) == [{"a": 1}, {"a": 3}]


class TestLock:
    @pytest.mark.processes
    def test_a_writer_that_was_killed_with_it_blocks_nobody(self, path):
        journal = JournalFile(path)
        holder = subprocess.Popen([sys.executable, "-c", HOLDS_THE_LOCK, str(path)], stdout=subprocess.PIPE, text=True)
        try:
            assert holder.stdout.readline() == "held\n"
            holder.send_signal(signal.SIGKILL)
            holder.wait(60)
            with Path(f"{path}.flock").open() as other:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while it is held
            journal.append_logs([{"a": 1}])
        finally:
            holder.kill()
            holder.wait(60)
            holder.stdout.close()
        assert lines(path) == [{"a": 1}]

    def test_one_holds_it_at_a_time(self, path):
        lock = KernelLock(path)
        lock.acquire()
        with Path(f"{path}.flock").open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.release()
        with Path(f"{path}.flock").open() as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_it_is_released_when_a_write_fails(self, path, monkeypatch):
        journal = JournalFile(path)

        def broken(file):
            raise OSError("broken")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", broken)
            with pytest.raises(OSError, match="broken"):
                journal.append_logs([{"a": 1}])
        journal.append_logs([{"a": 2}])
        assert lines(path) == [{"a": 2}]

    def test_on_a_network_it_is_a_file_that_only_one_can_create(self, path, monkeypatch):
        monkeypatch.setattr("lightlib.experiment.ledger.journal.is_on_network", lambda folder: True)
        journal = JournalFile(path)
        assert isinstance(journal._exclusive, JournalFileOpenLock)
        journal.append_logs([{"a": 1}])
        assert lines(path) == [{"a": 1}]


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("/home/me", True),
        ("/home/me/local/runs", False),
        ("/mnt/with space/runs", True),
        ("/tmp", False),
    ],
)
def test_which_folders_several_machines_share(tmp_path, folder, expected, monkeypatch):
    monkeypatch.setattr(Path, "resolve", lambda self: self)
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert is_on_network(Path(folder), mounts) is expected
    assert not is_on_network(Path(folder), tmp_path / "missing"), "a system that does not list them"
