"""A function in new processes: its result, its failures, and where it cannot be started."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import signal
import socket
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

import lightlib
from lightlib.errors import MisconfigurationException, UnknownNameError
from lightlib.launch.environment.detect import Environment, detect
from lightlib.launch.start import spawn
from lightlib.launch.start.process_errors import ProcessFailedError
from lightlib.launch.start.spawn import Patience, launch_function
from lightlib.launch.start.spawned_process import ProcessFailure
from lightlib.launch.start.start_methods import pickled
from lightlib.launch.watch.failure import Failure, write_error_file
from tests.launch.changed import change
from tests.processes.ends import alive, ends
from tests.processes.programs import HANGS_AFTER, Program

PATIENT = Patience(poll=0.05, grace=1e5, save=1e5)  # a test hangs that has to wait for it
IMPATIENT = Patience(poll=0.05, grace=0.1)


def fork(function, n=2, environment=None, patience=PATIENT):
    return launch_function(function, n, "fork", environment, patience)


def begin(body, *command):
    """Start a script; in it `hang` waits forever, and `up` reports that a rank has come that far."""
    prelude = """
        import os, signal, sys, time
        from lightlib.launch.start.spawn import Patience, launch_function
        def hang():  # a signal just before one long sleep would be noticed after it
            while True: time.sleep(0.1)
        def up(): os.write(1, b"%d\\n" % os.getpid())
    """
    Path("train.py").write_text(textwrap.dedent(prelude) + textwrap.dedent(body))
    return Program(*(command or [Path("train.py").resolve()]))


def run(body, *command):
    process = begin(body, *command)
    out, err = process.communicate()
    return process.returncode, out, err


def leave_pid(file):
    """Write the number of this process to a file, which appears with it."""
    file.with_suffix(".part").write_text(str(os.getpid()))
    file.with_suffix(".part").rename(file)


def pid_in(file):
    """Wait for the file that `leave_pid` writes."""
    while not file.exists():
        time.sleep(0.01)
    return int(file.read_text())


def refused(port):
    """Whether another program finds that a port is used."""
    with socket.socket() as other:
        try:
            other.bind(("", port))
        except OSError:
            return True
    return False


def until_caught(pid, number):
    """Wait until a process has a handler for a signal: until it waits for those that it has started."""
    deadline = time.monotonic() + HANGS_AFTER
    while time.monotonic() < deadline:
        caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
        if int(caught[1], 16) >> (number - 1) & 1:
            return
        time.sleep(0.01)
    raise AssertionError(f"{pid} does not catch {number}")


@pytest.mark.processes
class TestResults:
    def test_what_rank_0_returns_comes_back(self):
        result = fork(lambda rank: {"rank": rank, "weights": torch.full((3,), 7.0), "module": torch.nn.Linear(2, 2)})
        assert (result["rank"], result["weights"].tolist()) == (0, [7.0, 7.0, 7.0])
        assert isinstance(result["module"], torch.nn.Linear)

    @pytest.mark.skipif(sys.platform != "linux", reason="a port is held on Linux only")
    def test_their_port_is_kept_for_them(self):
        """Otherwise another run could take the port before their rendezvous."""

        def taken(rank):
            return refused(int(os.environ["MASTER_PORT"])), os.environ["MASTER_PORT"]

        there, port = fork(taken)
        assert there
        assert not refused(int(port))

    def test_every_process_knows_its_place(self, tmp_path):
        def write(rank):
            place = detect(3)
            assert place.launched
            assert place.is_local
            (tmp_path / str(rank)).write_text(f"{place.rank} {place.world_size} {lightlib.report.rank_zero_only.rank}")
            return place.port

        variables = dict(os.environ)
        assert fork(write, 3) > 0
        assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == ["0 3 0", "1 3 1", "2 3 2"]
        assert dict(os.environ) == variables

    def test_a_machine_of_several(self):
        environment = detect(2, 2, variables={"NODE_RANK": "1", "MASTER_ADDR": "there", "MASTER_PORT": "77"})
        place = fork(lambda rank: (rank, os.environ["RANK"], detect(2, 2)), 2, environment)
        assert place[:2] == (2, "2")
        assert place[2] == Environment("local", 2, 4, 0, 2, 1, 2, "there", 77, launched=True)

    def test_they_compute_though_this_process_has_used_its_threads(self):
        code, out, err = run("""
        import torch
        torch.set_num_threads(4)
        work = lambda rank: ((torch.ones(700, 700) @ torch.ones(700, 700))[0, 0].item(), torch.get_num_threads())
        work(0)
        print(launch_function(work, 2, "fork"))
        """)
        assert (code, out) == (0, "(700.0, 1)\n"), err

    @pytest.mark.parametrize("method", ["spawn", "forkserver"])
    def test_a_new_interpreter_gets_copies(self, method, tmp_path):
        multiprocessing.get_context("forkserver").set_forkserver_preload(["torch"])  # once for both ranks
        linear = torch.nn.Linear(2, 1)
        before = linear.weight.clone()
        result = launch_function(partial(change, linear, tmp_path), 2, method)
        assert result.tolist() == [[5.0, 5.0]]
        assert torch.equal(linear.weight, before)
        assert not linear.weight.is_shared()
        assert sorted(os.listdir(tmp_path)) == ["0 of 2", "1 of 2"]

    def test_a_script_with_a_guard(self):
        code, out, err = run("""
        def function(rank):
            return os.environ["WORLD_SIZE"], os.environ["OMP_NUM_THREADS"]
        if __name__ == "__main__":
            print(launch_function(function, 2, "spawn"))
        """)
        assert (code, out) == (0, "('2', '1')\n"), err


def with_lock():
    """Return a module with a layer that holds an object which cannot be pickled."""
    layer = torch.nn.Linear(1, 1)
    layer.lock = threading.Lock()
    return torch.nn.Sequential(layer)


class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


@pytest.mark.processes
class TestFailures:
    def failed(self, function, patience=PATIENT):
        with pytest.raises(ProcessFailedError) as caught:
            fork(function, patience=patience)
        return caught.value

    def test_names_the_rank_and_ends_with_its_traceback(self):
        def fail(rank):
            if rank == 1:
                raise ValueError("this one")

        error = self.failed(fail)
        text = str(error)
        assert text.startswith("Rank 1 failed.\n\nTraceback (most recent call last):\n")
        assert 'raise ValueError("this one")' in text
        assert text.endswith("ValueError: this one")
        assert (error.rank, str(error.__cause__)) == (1, "this one")
        assert isinstance(error.__cause__, ValueError)
        again = pickle.loads(pickle.dumps(error))
        assert (again.rank, str(again)) == (1, text)

    def test_it_is_the_error_of_torch(self, tmp_path):
        def fail(rank):
            leave_pid(tmp_path / str(rank))
            if rank == 1:
                raise ValueError("this one")

        with pytest.raises(ProcessRaisedException, match="ValueError: this one") as caught:
            fork(fail)
        error = caught.value
        assert not isinstance(error, ProcessExitedException)
        assert (error.error_index, error.error_pid) == (1, pid_in(tmp_path / "1"))
        assert error.msg == str(error)
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.error_index, again.error_pid) == (type(error), 1, error.error_pid)

    @pytest.mark.parametrize(("number", "name"), [(signal.SIGKILL, "SIGKILL"), (0, None)])
    def test_that_of_a_killed_one_is_torchs_as_well(self, number, name):
        def fail(rank):
            if rank == 1 and name is not None:
                os.kill(os.getpid(), number)
            if rank == 1:
                os._exit(0)

        with pytest.raises(ProcessExitedException, match=r"^Rank 1 (was killed|ended)") as caught:
            fork(fail)
        error = caught.value
        assert isinstance(error, ProcessFailedError)
        assert not isinstance(error, ProcessRaisedException)
        again = pickle.loads(pickle.dumps(error))
        for one in (error, again):
            assert (one.exit_code, one.signal_name, one.error_index) == (-number, name, 1)

    def test_a_rank_of_another_machine_has_no_process_here(self):
        here = [SimpleNamespace(name=f"rank {rank}", pid=70 + rank) for rank in range(2)]
        with pytest.raises(ProcessRaisedException) as caught:
            spawn._raise(ProcessFailure(3, 0.0, "ValueError: there", None, None), here)
        assert (caught.value.rank, caught.value.error_index, caught.value.error_pid) == (3, 3, 0)

    def test_the_first_one_is_named(self, tmp_path):
        def fail(rank):
            if rank == 0:
                assert ends(pid_in(tmp_path / "one"))
            leave_pid(tmp_path / "one")
            raise KeyError(rank)

        assert self.failed(fail).rank == 1

    def test_an_error_that_cannot_be_sent(self):
        def fail(rank):
            raise Odd(1, 2)

        error = self.failed(fail)
        assert str(error).endswith("Odd: 1 and 2")
        assert error.__cause__ is None

    def test_those_that_wait_for_ever_are_ended(self, tmp_path):
        def fail(rank):
            if rank == 0:
                pid_in(tmp_path / "pid")
                raise ValueError
            leave_pid(tmp_path / "pid")
            time.sleep(1e5)

        assert self.failed(fail, IMPATIENT).rank == 0
        assert not alive(pid_in(tmp_path / "pid"))

    def test_one_is_killed_and_another_complains(self, tmp_path):
        def fail(rank):
            if rank == 1:
                leave_pid(tmp_path / "one")
                os.kill(os.getpid(), signal.SIGKILL)
            assert ends(pid_in(tmp_path / "one"))
            raise RuntimeError("Connection closed by peer")

        assert str(self.failed(fail)) == "Rank 1 was killed by SIGKILL (often: out of memory)."

    def test_one_complains_before_another_says_why(self, tmp_path):
        def fail(rank):
            if rank == 0:
                leave_pid(tmp_path / "zero")
                raise RuntimeError("Connection closed by peer")
            assert ends(pid_in(tmp_path / "zero"))
            raise ValueError("the cause")

        assert str(self.failed(fail)).endswith("ValueError: the cause")

    def test_one_complains_of_what_the_watch_has_told(self, tmp_path):
        def fail(rank):
            if rank == 1:
                write_error_file(Failure.hang(1, "rank 1 hangs", "No progress for 3 s."), 1)
                os._exit(1)
            raise RuntimeError("Connection closed by peer")

        assert str(self.failed(fail)) == "Rank 1 failed.\n\nNo progress for 3 s."

    def test_one_ends_without_a_word(self):
        assert str(self.failed(lambda rank: os._exit(3) if rank else None)) == "Rank 1 ended with exit code 3."

    def test_one_leaves_as_if_all_was_done_and_another_complains(self, tmp_path):
        def fail(rank):
            if rank == 1:
                leave_pid(tmp_path / "one")
                os._exit(0)
            assert ends(pid_in(tmp_path / "one"))
            raise RuntimeError("Connection closed by peer")

        assert str(self.failed(fail)) == "Rank 1 ended with exit code 0 before the function had returned."

    @pytest.mark.parametrize("rank", [0, 1])
    def test_one_leaves_as_if_all_was_done_and_nobody_complains(self, rank):
        error = self.failed(lambda mine: os._exit(0) if mine == rank else None)
        assert str(error) == f"Rank {rank} ended with exit code 0 before the function had returned."

    def test_a_result_that_cannot_be_sent(self):
        assert "pickle" in str(self.failed(lambda rank: lambda: None))

    @pytest.mark.parametrize("code", [143, 130, 0])
    def test_an_end_that_was_asked_for(self, code):
        with pytest.raises(SystemExit) as caught:
            fork(lambda rank: sys.exit(code))
        assert caught.value.code == code

    def test_no_file_is_left(self, monkeypatch, tmp_path):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        assert fork(lambda rank: rank) == 0
        self.failed(lambda rank: 1 / 0)
        assert os.listdir(tmp_path) == []

    def test_ctrl_c_lets_them_come_to_their_end(self):
        process = begin("""
        def function(rank):
            try:
                up()
                hang()
            except KeyboardInterrupt:
                time.sleep(0.1)  # it takes a while to save
                os.write(1, b"saved\\n")
        launch_function(function, 2, "fork", patience=Patience(grace=1e5))
        """)
        pids = [int(process.stdout.readline()) for _ in range(2)]
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate()
        assert out.count("saved") == 2
        assert err.count("KeyboardInterrupt") == 1
        assert process.returncode == -signal.SIGINT
        assert all(ends(pid) for pid in pids)

    @pytest.mark.parametrize(("number", "code"), [("INT", 130), ("TERM", 143)])
    def test_they_leave_as_they_are_asked_to(self, number, code):
        process = begin(f"""
        def function(rank):
            signal.signal(signal.SIG{number}, lambda *_: sys.exit({code}))
            up()
            hang()
        launch_function(function, 2, "fork", patience=Patience(grace=1e5))
        """)
        pids = [int(process.stdout.readline()) for _ in range(2)]
        until_caught(process.pid, signal.SIGTERM)
        if number == "INT":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.terminate()
        _, err = process.communicate()
        assert (process.returncode, err) == (code, "")
        assert all(ends(pid) for pid in pids)

    def test_a_wish_to_end_before_they_can_be_asked(self):
        process = begin("""
        def function(rank):
            up()
            hang()
        launch_function(function, 2, "fork", patience=Patience(grace=1e5))
        """)
        pids = [int(process.stdout.readline()) for _ in range(2)]
        until_caught(process.pid, signal.SIGTERM)
        process.terminate()
        _, err = process.communicate()
        assert (process.returncode, err) == (143, "")
        assert all(ends(pid) for pid in pids)

    def test_somebody_else_ends_one(self, tmp_path):
        def fail(rank):
            if rank == 1:
                leave_pid(tmp_path / "one")
                os.kill(os.getpid(), signal.SIGTERM)
            assert ends(pid_in(tmp_path / "one"))
            raise RuntimeError("Connection closed by peer")

        assert str(self.failed(fail)) == "Rank 1 was killed by SIGTERM."

    def test_ctrl_c_while_they_are_started(self):
        process = begin("""
        read, write = os.pipe()
        def press_once_it_is_there():
            os.write(1, os.read(read, 100))
            os.kill(os.getpid(), signal.SIGINT)
        there = lambda: os.write(write, b"%d\\n" % os.getpid())
        os.register_at_fork(after_in_parent=press_once_it_is_there, after_in_child=there)
        launch_function(lambda rank: hang(), 2, "fork", patience=Patience(grace=0.1))
        """)
        pids = [int(process.stdout.readline()) for _ in range(2)]
        _, err = process.communicate()
        assert err.count("KeyboardInterrupt") == 1
        assert process.returncode == -signal.SIGINT
        assert all(ends(pid) for pid in pids)

    def test_this_process_is_killed(self):
        process = begin("""
        def function(rank):
            up()
            hang()
        launch_function(function, 2, "fork", patience=Patience(grace=1e5))
        """)
        pids = [int(process.stdout.readline()) for _ in range(2)]
        process.kill()
        process.communicate()
        assert all(ends(pid) for pid in pids)


class TestRefusals:
    def test_an_unknown_method(self):
        with pytest.raises(UnknownNameError, match=r"Unknown start method 'spwan'. Did you mean 'spawn'"):
            launch_function(print, 2, "spwan")

    @pytest.mark.processes
    def test_a_fork_after_cuda(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        with pytest.raises(MisconfigurationException, match=r"CUDA was already used in this process(.|\n)*ddp_spawn"):
            fork(print)

    @pytest.mark.processes
    def test_a_function_that_cannot_be_sent(self):
        text = r"cannot be sent to a new process: .*lambda(.|\n)*start method 'spawn' needs(.|\n)*ddp_fork"
        with pytest.raises(MisconfigurationException, match=text):
            launch_function(lambda rank: rank, 2, "spawn")

    @pytest.mark.parametrize(
        ("held", "text"),
        [
            ({"model": SimpleNamespace(parts={"a": [lambda: 0]})}, r"^model\.parts\['a'\]\[0\] \(.*<lambda>\) cannot"),
            ({"model": with_lock()}, r"^model\.0\.lock \(an object of lock\) cannot be sent"),
            (
                {"data": [1, threading.Lock()]},
                r"^data\[1\] \(an object of lock\) cannot be sent .*: cannot pickle '_th",
            ),
            (SimpleNamespace(callbacks=[print, sys]), r"^SimpleNamespace\.callbacks\[1\] \(.*module\) cannot be sent"),
        ],
    )
    def test_the_object_that_cannot_be_sent_is_named(self, held, text):
        """It need not be part of the user's module."""
        with pytest.raises(MisconfigurationException, match=text):
            pickled(partial(change, torch.ones(1), held), "spawn")

    @pytest.mark.processes
    def test_a_script_without_a_guard(self):
        code, out, err = run("""
        print("once")
        def main():
            launch_function(print, 2, "spawn")
        main()
        """)
        assert (code, out) == (1, "once\n")
        line = Path("train.py").read_text().splitlines().index("main()") + 1
        assert (
            f"imports train.py again in each process, and line {line} of it, which starts them, is not guarded" in err
        )
        assert 'if __name__ == "__main__":' in err

    @pytest.mark.processes
    def test_a_session_whose_classes_a_new_process_does_not_know(self):
        body = """
        from lightlib.launch.start.spawn import launch_function
        def function(rank): pass
        launch_function(function, 2, "spawn")
        """
        code, _, err = run(body, "-c", textwrap.dedent(body))
        assert code == 1
        assert "in a notebook or an interactive session, with classes or functions" in err
        assert 'Fix: Trainer(strategy="ddp_notebook")' in err
