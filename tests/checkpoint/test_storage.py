"""storage: a file appears completely or not at all, on a disk and on a store."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from lightlib.checkpoint.storage import claims, filesystem, local, retries, swap
from lightlib.errors import CheckpointWriteError, MisconfigurationException
from lightlib.launch.environment import detect
from tests.processes import programs

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402

MEMORY = "memory://run"
STORE = "a store that can be accessed and written."
CHECK = "check the address, the credentials and the quota."


def bytes_of(content):
    return lambda file: file.write(content) and None


def read(path):
    with filesystem.open_for_reading(path) as file:
        return file.read()


@pytest.fixture(autouse=True)
def _empty_memory(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.001)
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture(params=["local", "file", "memory"])
def folder(request, tmp_path):
    """A folder that is not there yet, named in three ways."""
    return {"local": str(tmp_path / "run"), "file": f"file://{tmp_path}/run", "memory": MEMORY}[request.param]


class TestEverywhere:
    def test_a_file_is_written_read_and_removed(self, folder):
        path = filesystem.join(folder, "a.bin")
        assert not filesystem.exists(path)
        assert filesystem.names_in(folder) == []
        filesystem.write(path, bytes_of(b"0123456789" * 1000))
        assert filesystem.names_in(folder) == ["a.bin"]
        assert (filesystem.size_of(path), filesystem.is_folder(path), filesystem.is_folder(folder)) == (
            10000,
            False,
            True,
        )
        with filesystem.open_for_reading(path) as file:
            assert file.seek(-5, os.SEEK_END) == 9995
            assert file.read() == b"56789"
            assert file.seek(3) == 3
            assert (file.read(4), file.tell()) == (b"3456", 7)
        filesystem.write(path, bytes_of(b"new"))
        assert read(path) == b"new"
        filesystem.remove(path)
        assert filesystem.names_in(folder) == []

    def test_what_torch_saves_is_what_it_loads(self, folder):
        path = filesystem.join(folder, "a.ckpt")
        content = {"w": torch.randn(100, 1000), "n": [1, "x"]}
        filesystem.write(path, lambda file: torch.save(content, file))
        with filesystem.open_for_reading(path) as file:
            loaded = torch.load(file)
        assert loaded["w"].equal(content["w"])
        assert loaded["n"] == [1, "x"]

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError, TypeError])
    def test_an_error_of_the_one_who_writes_is_raised_as_it_is(self, folder, kind):
        path = filesystem.join(folder, "a.bin")
        filesystem.write(path, bytes_of(b"before"))

        def fails(file):
            file.write(b"x" * 10_000_000)
            raise kind("mine")

        with pytest.raises(kind, match="mine"):
            filesystem.write(path, fails)
        assert filesystem.names_in(folder) == ["a.bin"]
        assert read(path) == b"before"

    def test_while_it_is_written_there_is_none_of_the_name(self, folder):
        path = filesystem.join(folder, "a.bin")
        seen = []

        def writes(file):
            file.write(b"half")
            seen.append(filesystem.exists(path))
            file.write(memoryview(torch.arange(4).numpy()))

        filesystem.write(path, writes)
        assert seen == [False]
        assert filesystem.size_of(path) == 36

    def test_copy(self, folder):
        for name in ("b.bin", "index.json", "a.bin"):
            filesystem.write(filesystem.join(folder, f"x/{name}"), bytes_of(name.encode()))
        filesystem.copy(filesystem.join(folder, "x"), filesystem.join(folder, "y"))
        filesystem.copy(filesystem.join(folder, "x/a.bin"), filesystem.join(folder, "z.bin"))
        assert filesystem.names_in(folder) == ["x", "y", "z.bin"]
        assert filesystem.names_in(filesystem.join(folder, "y")) == ["a.bin", "b.bin", "index.json"]
        assert read(filesystem.join(folder, "y/b.bin")) == b"b.bin"
        assert filesystem.size_of(filesystem.join(folder, "y")) == 20

    def test_a_folder_is_removed(self, folder):
        for name in ("b.bin", "index.json", "a/a.bin"):
            filesystem.write(filesystem.join(folder, f"x/{name}"), bytes_of(b"."))
        filesystem.remove(filesystem.join(folder, "x"))
        assert not filesystem.exists(filesystem.join(folder, "x"))
        with pytest.raises(FileNotFoundError):
            filesystem.remove(filesystem.join(folder, "x"))

    def test_a_link(self, folder):
        filesystem.write(filesystem.join(folder, "a.bin"), bytes_of(b"a"))
        filesystem.write(filesystem.join(folder, "b.bin"), bytes_of(b"b"))
        for name in ("a.bin", "b.bin"):
            filesystem.link(filesystem.join(folder, name), filesystem.join(folder, "last"))
        assert read(filesystem.join(folder, "last")) == b"b"
        assert filesystem.names_in(folder) == ["a.bin", "b.bin", "last"]

    def test_what_is_not_there(self, folder):
        path = filesystem.join(folder, "a.bin")
        for call in (filesystem.open_for_reading, filesystem.size_of, filesystem.remove):
            with pytest.raises(FileNotFoundError):
                call(path)
        with pytest.raises(FileNotFoundError):
            filesystem.copy(path, filesystem.join(folder, "b.bin"))
        assert filesystem.names_in(folder) == []

    def test_a_folder_that_can_be_written_stays_as_it_was(self, folder):
        filesystem.check_writable(folder, "ModelCheckpoint")
        assert not filesystem.exists(folder)

    def test_between_a_disk_and_a_store(self, folder, tmp_path):
        filesystem.write(filesystem.join(folder, "x/index.json"), bytes_of(b"{}"))
        for target in (f"{tmp_path}/there", "memory://there"):
            filesystem.copy(filesystem.join(folder, "x"), target)
            assert read(filesystem.join(target, "index.json")) == b"{}"


class TestDisk:
    @pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
    def test_permissions_follow_the_umask(self, umask):
        before = os.umask(umask)
        try:
            filesystem.write("new/a.bin", bytes_of(b"a"))
        finally:
            os.umask(before)
        assert os.stat("new/a.bin").st_mode & 0o777 == 0o666 & ~umask
        assert os.stat("new").st_mode & 0o777 == 0o777 & ~umask

    def test_it_is_written_beside_its_place(self, monkeypatch):
        monkeypatch.setenv("TMPDIR", "/nowhere")
        seen = []
        filesystem.write("run/a.bin", lambda file: seen.extend(os.listdir("run")))
        assert seen[0].startswith(f".a.bin.{os.getpid()}-")
        assert seen[0].endswith(".part")

    def test_the_file_and_then_the_folder_are_flushed(self, monkeypatch):
        order = []
        real, replace = os.fsync, os.replace
        monkeypatch.setattr(
            os, "fsync", lambda handle: (order.append(os.readlink(f"/proc/self/fd/{handle}")), real(handle))
        )
        monkeypatch.setattr(os, "replace", lambda *paths: (order.append("replace"), replace(*paths)))
        filesystem.write("run/a.bin", bytes_of(b"a"))
        here = os.getcwd()
        order[1] = order[1].partition(f".{os.getpid()}-")[0]
        assert order == [here, f"{here}/run/.a.bin", "replace", f"{here}/run"]

    def test_the_disk_works_while_it_is_written(self, monkeypatch):
        asked = []
        monkeypatch.setattr(os, "posix_fadvise", lambda handle, start, length, advice: asked.append((start, length)))
        filesystem.write("a.bin", lambda file: [file.write(bytes(2**20 * 3)) for _ in range(10)] and None)
        assert [start for start, _ in asked] == [sum(length for _, length in asked[:i]) for i in range(len(asked))]
        assert sum(length for _, length in asked) > 2**20 * 20

    @pytest.mark.parametrize("length", [200, 250, 255])
    @pytest.mark.parametrize("letter", ["a", "ä"])
    def test_long_names(self, length, letter):
        name = letter * (length // len(letter.encode()))
        filesystem.write(name, bytes_of(b"a"))
        assert os.listdir() == [name]

    @pytest.mark.parametrize(
        ("path", "number"),
        [
            ("file/a.bin", errno.ENOTDIR),
            ("folder", errno.EISDIR),
            ("a" * 256, errno.ENAMETOOLONG),
            ("/proc/a.bin", errno.ENOENT),
            ("a\0b", None),
        ],
    )
    def test_places_that_take_nothing(self, path, number):
        Path("file").write_text("mine")
        os.mkdir("folder")
        called = []
        if number is None:
            with pytest.raises(ValueError, match="null"):
                filesystem.write(path, called.append)
        else:
            with pytest.raises(CheckpointWriteError) as caught:
                filesystem.write(path, called.append)
            text = str(caught.value)
            assert text.startswith(f"The checkpoint {path!r} could not be written: [Errno {number}] ")
            assert " MiB are free there.\n  Expected: a writable directory with enough room.\n" in text
            assert text.endswith("choose another directory; earlier checkpoints are unchanged.")
        assert called == []
        assert sorted(os.listdir()) == ["file", "folder"]

    @pytest.mark.processes
    def test_a_folder_without_permission(self):
        os.mkdir("closed", mode=0o500)
        program = """
import os
from lightlib.checkpoint.storage import filesystem
if os.getuid() == 0:
    os.chmod(".", 0o755); os.chown("closed", 65534, 65534); os.seteuid(65534)
try:
    filesystem.write("closed/a.bin", lambda file: None)
except OSError as error:
    print(error)
"""
        text = _run(program)
        assert text.startswith("The checkpoint 'closed/a.bin' could not be written: [Errno 13] Permission denied")

    def test_an_error_that_torch_hides_is_told(self, monkeypatch):
        """`torch.save` replaces the errors that its file raises with errors of its own."""

        def full(*arguments):
            raise OSError(errno.ENOSPC, "No space left on device")

        def writes(file):
            monkeypatch.setattr(file._file, "write", full, raising=False)

        class Full:
            def __init__(self, file):
                self.file, self.room = file, 5000

            def write(self, data):
                self.room -= len(data)
                return full() if self.room < 0 else self.file.write(data)

            def __getattr__(self, name):
                return getattr(self.file, name)

        def saves(file):
            file._file = Full(file._file)
            torch.save({"w": torch.randn(10000)}, file)

        with pytest.raises(CheckpointWriteError, match=r"\[Errno 28\] No space left on device\. \d+ MiB are free"):
            filesystem.write("a.ckpt", saves)
        assert os.listdir() == []

    def test_a_folder_disappears_at_once(self, monkeypatch):
        """If killed while it removes a folder, it leaves nothing under its name, and no index anywhere."""
        for name in ("a.bin", "index.json", "z.bin"):
            filesystem.write(f"run/x/{name}", bytes_of(b"."))

        def killed(path):
            raise KeyboardInterrupt

        monkeypatch.setattr(filesystem.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            filesystem.remove("run/x")
        monkeypatch.undo()
        (left,) = os.listdir("run")
        assert left.startswith(".x.")
        assert sorted(os.listdir(f"run/{left}")) == ["a.bin", "z.bin"]
        assert filesystem.remove_leftovers("run") == [left]
        assert os.listdir("run") == []

    def test_on_windows_no_process_gets_signal_0_which_is_ctrl_c_there(self, monkeypatch):
        asked = []
        monkeypatch.setattr(filesystem.os, "kill", lambda *call: asked.append(call))
        assert filesystem._alive(123456)
        assert asked == [(123456, 0)]
        monkeypatch.setattr(filesystem.os, "name", "nt")
        assert filesystem._alive(123456)
        monkeypatch.setenv(detect.PARENT, "123456")
        assert detect.launcher_process() == 0
        assert len(asked) == 1

    @pytest.mark.parametrize("exchanging", [True, False])
    def test_a_copy_takes_the_place_of_a_folder_and_one_of_the_two_is_always_there(self, exchanging, monkeypatch):
        for name, content in (("new", b"new"), ("last", b"old")):
            filesystem.write(f"run/{name}/index.json", bytes_of(content))
            filesystem.write(f"run/{name}/{name}.bin", bytes_of(content))
        if not exchanging:
            monkeypatch.setattr(swap, "exchanged", lambda one, other: False)
        seen = []

        def looking(real):
            def call(*arguments, **more):
                result = real(*arguments, **more)
                seen.append(any(name.startswith("last") for name in os.listdir("run")))
                return result

            return call

        for name in ("rename", "replace", "unlink", "rmdir"):
            monkeypatch.setattr(os, name, looking(getattr(os, name)))
        filesystem.copy("run/new", "run/last")
        monkeypatch.undo()
        assert all(seen)
        assert sorted(os.listdir("run")) == ["last", "new"]
        assert sorted(os.listdir("run/last")) == ["index.json", "new.bin"]

    @pytest.mark.processes
    def test_leftovers_of_living_processes_stay(self):
        os.mkdir("run")
        other = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        try:
            names = [f".a.ckpt.{other.pid}-0123abcd.part", f".b.ckpt.{os.getpid()}-0123abcd.part", ".c.part", "d.ckpt"]
            for name in names:
                Path("run", name).touch()
            seen = []
            filesystem.write("run/e.ckpt", lambda file: seen.extend(filesystem.remove_leftovers("run")))
            assert seen == [names[1]]
        finally:
            other.kill()
            other.wait()
        assert filesystem.remove_leftovers("run") == [names[0]]
        assert sorted(os.listdir("run")) == [".c.part", "d.ckpt", "e.ckpt"]
        assert filesystem.remove_leftovers(MEMORY) == filesystem.remove_leftovers("nowhere") == []

    def test_a_link_takes_the_place_of_a_folder_and_a_file_that_of_a_link(self):
        filesystem.write("run/a/index.json", bytes_of(b"a"))
        filesystem.write("run/last/index.json", bytes_of(b"old"))
        filesystem.link("run/a", "run/last")
        assert os.readlink("run/last") == "a"
        filesystem.write("run/last", bytes_of(b"new"))
        assert (read("run/last"), read("run/a/index.json")) == (b"new", b"a")
        filesystem.link("run/gone", "run/last")
        assert filesystem.exists("run/last")
        filesystem.remove("run/last")
        assert os.listdir("run") == ["a"]

    def test_where_links_are_not_allowed_it_is_copied(self, monkeypatch):
        def refuses(*arguments):
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "symlink", refuses)
        filesystem.write("run/a/index.json", bytes_of(b"a"))
        filesystem.write("run/b", bytes_of(b"b"))
        filesystem.link("run/a", "run/last")
        assert read("run/last/index.json") == b"a"
        filesystem.link("run/b", "run/last.ckpt")
        assert read("run/last.ckpt") == b"b"
        assert sorted(os.listdir("run")) == ["a", "b", "last", "last.ckpt"]

    def test_free_space(self):
        assert local.free_space("not/there/yet") > 0
        assert filesystem.local_path("file:///a") == "/a"


def _run(program):
    environment = {**os.environ, "PYTHONPATH": str(Path(filesystem.__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", program], check=True, env=environment, capture_output=True, text=True)
    return done.stdout


class TestClaim:
    HOLD = """
import os, sys, time
from lightlib.checkpoint.storage.claims import claim
held = claim("run")
print("held", flush=True)
sys.stdin.read()
held.release()
"""

    @pytest.fixture
    def other(self):
        """Another process that holds the folder "run" until its input ends."""
        os.mkdir("run")
        environment = {**os.environ, "PYTHONPATH": str(Path(filesystem.__file__).parents[3])}
        with subprocess.Popen(
            [sys.executable, "-c", self.HOLD], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout.readline() == "held\n"
            yield process
            process.kill()

    @pytest.mark.processes
    def test_a_second_process_is_told_who_holds_it(self, other):
        with pytest.raises(MisconfigurationException) as caught:
            filesystem.claim("run")
        assert str(caught.value) == (
            f"Another run writes its checkpoints into {os.path.realpath('run')!r}: process {other.pid} on "
            f"{claims.socket.gethostname()!r}.\n  Expected: one run per folder: each would remove or replace the files "
            "of the other.\n  Fix: ModelCheckpoint(dirpath='another/folder'), or end the other run first."
        )
        Path("run/.lightlib.lock").write_text("")
        with pytest.raises(MisconfigurationException, match="a process that has not written its number yet"):
            filesystem.claim("run")
        other.stdin.close()
        other.wait()
        assert os.listdir("run") == []
        filesystem.claim("run").release()

    @pytest.mark.processes
    def test_a_killed_one_holds_nothing(self, other):
        other.kill()
        other.wait()
        assert os.listdir("run") == [".lightlib.lock"]
        with filesystem.claim("run"):
            assert json.loads(Path("run/.lightlib.lock").read_text())["process"] == os.getpid()
        assert os.listdir("run") == []

    def test_the_same_process_claims_it_again(self):
        os.mkdir("run")
        first, second = filesystem.claim("run"), filesystem.claim("./run/")
        assert first is second
        first.release()
        assert os.listdir("run") == [".lightlib.lock"]
        second.release()
        second.release()
        assert os.listdir("run") == []

    @pytest.mark.processes
    def test_a_forked_process_holds_nothing(self):
        os.mkdir("run")
        with filesystem.claim("run") as held:
            child = os.fork()
            if child == 0:
                code = 3
                try:
                    held.release()
                    filesystem.claim("run")
                except MisconfigurationException:
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert os.listdir("run") == [".lightlib.lock"]
            assert "Another run" in _run(
                "from lightlib.checkpoint.storage.claims import claim\n"
                "try: claim('run')\nexcept ValueError as e: print(e)"
            )

    @pytest.mark.processes
    def test_of_many_that_claim_at_once_one_holds_it_at_a_time(self):
        os.mkdir("run")
        program = """
import os
from lightlib.checkpoint.storage.claims import claim
from lightlib.errors import MisconfigurationException
print("ready", flush=True)
while not os.path.exists("go"):
    pass
got = 0
while got < 100:
    try:
        with claim("run"):
            os.close(os.open("run/inside", os.O_CREAT | os.O_EXCL)); got += 1; os.unlink("run/inside")
    except MisconfigurationException:
        pass
"""
        started = [programs.Program("-c", program) for _ in range(3)]
        assert [process.stdout.readline() for process in started] == ["ready\n"] * 3
        Path("go").touch()
        errors = [process.communicate()[1] for process in started]
        assert [process.returncode for process in started] == [0] * 3, errors
        assert os.listdir("run") == []

    def test_a_file_system_without_locks_is_said(self, monkeypatch):
        def no_locks(folder):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(claims, "_lock", no_locks)
        with pytest.warns(UserWarning, match="has no locks.*a second run that writes into it is not detected"):
            filesystem.claim(".").release()

    def test_where_nothing_can_be_claimed(self):
        with pytest.raises(
            MisconfigurationException, match=r"'.*/nowhere' cannot be claimed for this run: \[Errno 2\]"
        ):
            filesystem.claim("nowhere")
        filesystem.claim(MEMORY).release()


class Refusal(Exception):
    """An error of a store's package, with the status of the answer."""

    def __init__(self, status):
        super().__init__(f"answer {status}")
        self.status = status


def boto(code, status):
    error = Exception(code)
    error.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return error


def caused(error, cause):
    error.__cause__ = cause
    return error


class TestRetries:
    @pytest.mark.parametrize(
        "error",
        [
            TimeoutError(),
            ConnectionResetError(),
            OSError(errno.EBUSY, "SlowDown"),
            OSError(errno.EPIPE, "Broken pipe"),
            *map(Refusal, (408, 429, 500, 502, 503, 504)),
            boto("SlowDown", 503),
            boto("RequestTimeout", 400),
            caused(FileNotFoundError("The upload does not exist"), boto("NoSuchUpload", 404)),
            caused(OSError(errno.EIO, "TooManyRequests"), boto("TooManyRequests", 429)),
            type("ReadTimeoutError", (Exception,), {})(),
            type("Mine", (type("HTTPClientError", (Exception,), {}),), {})(),
        ],
        ids=repr,
    )
    def test_what_may_be_mended_is_tried_again(self, error, monkeypatch):
        said = []
        monkeypatch.setattr(retries.report, "info", said.append)
        calls = []

        def call():
            calls.append(1)
            if len(calls) < 4:
                raise error
            return "done"

        assert filesystem.with_retries("writing 's3://b/a.ckpt'", call) == "done"
        assert len(said) == 3
        assert said[0].startswith("writing 's3://b/a.ckpt': ")
        assert said[0].endswith("(1 of 6 tries).")

    @pytest.mark.parametrize(
        "error",
        [
            FileNotFoundError(),
            PermissionError(),
            *map(Refusal, (400, 401, 403, 404, 501)),
            boto("AccessDenied", 403),
            caused(PermissionError("no"), boto("AccessDenied", 403)),
            caused(FileNotFoundError("no"), boto("NoSuchBucket", 404)),
            OSError(errno.EINVAL, "what"),
            ValueError(),
            MemoryError(),
            ImportError(),
        ],
        ids=repr,
    )
    def test_what_cannot_be_mended_is_raised_at_once(self, error):
        calls = []

        def call():
            calls.append(1)
            raise error

        with pytest.raises(type(error)):
            filesystem.with_retries("asking", call)
        assert len(calls) == 1

    def test_it_ends(self, monkeypatch):
        calls = []

        def call():
            calls.append(1)
            raise TimeoutError

        with pytest.raises(TimeoutError):
            filesystem.with_retries("asking", call)
        assert len(calls) == retries.ATTEMPTS
        monkeypatch.setattr(retries, "PATIENCE", -1)
        with pytest.raises(TimeoutError):
            filesystem.with_retries("asking", call)
        assert len(calls) == retries.ATTEMPTS + 1

    def test_the_pauses_grow_and_leave_the_users_random_numbers_alone(self, monkeypatch):
        import random

        pauses = []
        monkeypatch.setattr(retries, "FIRST_DELAY", 0.5)
        monkeypatch.setattr(time, "sleep", pauses.append)
        state = random.getstate()

        def call():
            raise TimeoutError

        with pytest.raises(TimeoutError):
            filesystem.with_retries("asking", call)
        assert random.getstate() == state
        assert all(0.25 * 2**i <= pause <= 0.5 * 2**i for i, pause in enumerate(pauses))
        assert len(pauses) == retries.ATTEMPTS - 1


class Faltering:
    """A memory store that fails on request: the n-th call of a kind raises."""

    def __init__(self, monkeypatch):
        self.faults = []
        self.calls = []
        for name in ("_open", "info", "ls", "cat_file", "rm_file", "mv"):
            self._wrap(monkeypatch, name)

    def _wrap(self, monkeypatch, name):
        real = getattr(MemoryFileSystem, name)

        def call(files, *args, **kwargs):
            self.calls.append(name)
            for fault in self.faults:
                if fault[0] == name:
                    self.faults.remove(fault)
                    raise fault[1]
            return real(files, *args, **kwargs)

        monkeypatch.setattr(MemoryFileSystem, name, call)


class TestStore:
    @pytest.fixture
    def store(self, monkeypatch):
        return Faltering(monkeypatch)

    @pytest.mark.parametrize("name", ["_open", "info", "mv"])
    def test_a_write_is_tried_again_from_its_start(self, store, name):
        filesystem.write(f"{MEMORY}/a.bin", bytes_of(b"old"))
        store.faults = [(name, TimeoutError("too slow")), (name, ConnectionResetError("gone"))]
        times = []
        filesystem.write(f"{MEMORY}/a.bin", lambda file: times.append(file.write(b"whole")))
        assert len(times) == (1 if name == "_open" else 3)
        assert read(f"{MEMORY}/a.bin") == b"whole"
        assert filesystem.names_in(MEMORY) == ["a.bin"]

    def test_reading_listing_and_removing_are_tried_again(self, store):
        filesystem.write(f"{MEMORY}/x/index.json", bytes_of(b"whole"))
        for name in ("info", "ls", "cat_file", "rm_file"):
            store.faults.append((name, TimeoutError()))
        assert read(f"{MEMORY}/x/index.json") == b"whole"
        filesystem.remove(f"{MEMORY}/x")
        assert filesystem.names_in(MEMORY) == []
        assert store.faults == []

    def test_an_object_that_cannot_be_written_is_named(self, store):
        filesystem.write(f"{MEMORY}/a.bin", bytes_of(b"old"))
        store.faults = [("_open", TimeoutError("too slow"))] * 10
        with pytest.raises(CheckpointWriteError) as caught:
            filesystem.write(f"{MEMORY}/a.bin", bytes_of(b"new"))
        assert str(caught.value) == (
            f"The checkpoint 'memory://run/a.bin' could not be written: too slow. Tried 6 times in 0 s.\n"
            f"  Expected: {STORE}\n  Fix: {CHECK}"
        )
        store.faults.clear()
        assert read(f"{MEMORY}/a.bin") == b"old"
        assert filesystem.names_in(MEMORY) == ["a.bin"]

    def test_what_is_forbidden_is_tried_once(self, store):
        store.faults = [("_open", PermissionError("Forbidden"))]
        with pytest.raises(CheckpointWriteError, match=r"a\.bin' could not be written: Forbidden\.\n"):
            filesystem.write(f"{MEMORY}/a.bin", bytes_of(b"new"))
        store.faults = [("_open", PermissionError("Forbidden"))]
        with pytest.raises(MisconfigurationException) as caught:
            filesystem.check_writable(MEMORY, "ModelCheckpoint")
        assert str(caught.value).startswith("ModelCheckpoint cannot write into 'memory://run': Forbidden\n")

    def test_an_object_of_another_size_is_written_again(self, store, monkeypatch):
        real, lost = MemoryFileSystem.info, []

        def info(files, path, **more):
            found = real(files, path, **more)
            if not lost:
                lost.append(1)
                return {**found, "size": 3}
            return found

        monkeypatch.setattr(MemoryFileSystem, "info", info)
        times = []
        filesystem.write(f"{MEMORY}/a.bin", lambda file: times.append(file.write(b"whole")))
        assert len(times) == 2

    @pytest.mark.parametrize("path", ["nothing://a/b", "s3x://a"])
    def test_a_protocol_that_nobody_knows(self, path):
        with pytest.raises(CheckpointWriteError, match="could not be written: Protocol not known"):
            filesystem.write(path, bytes_of(b""))
        with pytest.raises(MisconfigurationException, match=r"pip install s3fs for s3://"):
            filesystem.check_writable(path, "ModelCheckpoint")

    def test_an_interrupted_upload_leaves_nothing(self):
        def stops(file):
            file.write(b"half")
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            filesystem.write(f"{MEMORY}/a.bin", stops)
        assert filesystem.names_in(MEMORY) == []

    def test_positions_that_there_are_not(self):
        filesystem.write(f"{MEMORY}/a.bin", bytes_of(b"whole"))
        with filesystem.open_for_reading(f"{MEMORY}/a.bin") as file, pytest.raises(ValueError, match="before start"):
            file.seek(-6, os.SEEK_END)

    def test_many_threads_write(self):
        threads = [
            threading.Thread(target=filesystem.write, args=(f"{folder}/{i}.bin", bytes_of(b"x" * i)))
            for i in range(5)
            for folder in (MEMORY, "run")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for folder in (MEMORY, "run"):
            assert [filesystem.size_of(f"{folder}/{name}") for name in filesystem.names_in(folder)] == [0, 1, 2, 3, 4]


def test_what_is_handed_to_a_store_at_once_is_bounded(monkeypatch):
    """A writer splits its input into pieces, so that no store buffers all of it."""
    sizes, kind = [], type(MemoryFileSystem().open("/sizes", "wb"))
    write = kind.write
    monkeypatch.setattr(kind, "write", lambda file, data: (sizes.append(len(data)), write(file, data))[1])
    filesystem.write(f"{MEMORY}/a.bin", lambda file: file.write(bytes(2**25 + 1)))
    assert sizes[:5] == [2**23] * 4 + [1]


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="only Linux counts the writes of a process")
def test_a_disk_is_written_in_small_pieces():
    """Larger pieces make a virtual machine request memory from its host, which is slower than a write."""
    before = _writes()
    filesystem.write("a.bin", lambda file: file.write(bytes(2**25)))
    assert _writes() - before >= 2**25 // local.PIECE == 128


def _writes() -> int:
    with open("/proc/self/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("syscw"))


def test_a_file_that_cannot_be_made_is_forgotten_quietly(tmp_path):
    """Python closes discarded files, and from 3.13 on prints the errors of that."""
    writer = local.Writer.__new__(local.Writer)
    with pytest.raises(FileNotFoundError):
        writer.__init__(str(tmp_path / "not" / "there"))
    writer.close()
