"""The program run again for every other process: its place, its output, and its end."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from lightlib import registry
from lightlib.errors import MisconfigurationException
from lightlib.launch.environment.detect import Environment
from lightlib.launch.start import subprocess as launch
from lightlib.launch.start.child import how_it_ended
from lightlib.launch.start.output import Output
from lightlib.launch.start.subprocess import SubprocessLauncher
from lightlib.strategies import MeshStrategy
from tests.processes.ends import alive, ends
from tests.processes.programs import HANGS_AFTER, environment

# The launcher's patience is so long that a test hangs which has to wait for it.
START = """\
import atexit, os, signal, subprocess, sys, threading, time
from lightlib.launch.environment.detect import detect
from lightlib.launch.start.subprocess import SubprocessLauncher, launched_processes
def start(n=2, **options):
    launcher = SubprocessLauncher(detect(n), **{"timeout": 1e5, "grace": 1e5, **options})
    place = launcher.launch()
    return launcher, place.rank
def mark(word):
    open(word, "w").close()
def wait_for(word):
    while not os.path.exists(word): time.sleep(0.01)
def hang():
    time.sleep(1e5)
"""


def write(body, name="train.py"):
    Path(name).write_text(START + textwrap.dedent(body))
    return name


def begin(*command, **options):
    """Start a new interpreter: without torch that takes no longer than a fork of the warm process."""
    pipe = subprocess.PIPE
    options = {"stdout": pipe, "stderr": pipe, "text": True, "env": environment(), "start_new_session": True} | options
    return subprocess.Popen([sys.executable, *command], **options)


def finish(process, text=None):
    """Return the exit code and the output of a program, by stream; kill it if it hangs."""
    try:
        out, err = process.communicate(text, timeout=HANGS_AFTER)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, out, err


def run(body, variables=None):
    """Run a script to its end."""
    return finish(begin(write(body), env=environment() if variables is None else variables))


@pytest.mark.processes
class TestPlaces:
    BODY = """
    launcher, rank = start(3)
    place = detect(3)
    assert launcher.environment == place
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR"
    print(*(os.environ[name] for name in names), place.launched, place.name, sys.argv[1:], sys.flags.optimize)
    print(os.environ["MASTER_PORT"], file=sys.stderr)
    """
    EXPECTED = "{} 3 {} 3 0 127.0.0.1 True local ['a', 'b c'] 1"

    def check(self, *command):
        code, out, err = finish(begin(*command))
        assert code == 0, err
        expected = [self.EXPECTED.format(rank, rank) for rank in range(3)]
        assert sorted(out.splitlines()) == sorted([expected[0], f"[rank 1] {expected[1]}", f"[rank 2] {expected[2]}"])
        ports = [line.rpartition(" ")[2] for line in err.splitlines()]
        assert len(ports) == 3
        assert len(set(ports)) == 1
        assert 1024 <= int(ports[0]) < 65536

    def test_a_script(self):
        self.check("-O", write(self.BODY), "a", "b c")

    def test_a_module(self):
        write(self.BODY, "training.py")
        self.check("-O", "-m", "training", "a", "b c")

    def test_a_command(self):
        self.check("-Oc", START + textwrap.dedent(self.BODY), "a", "b c")

    def test_a_script_that_goes_elsewhere(self):
        code, out, err = run("os.makedirs('x', exist_ok=True); os.chdir('x')\nstart()\nprint(1)")
        assert (code, sorted(out.splitlines())) == (0, ["1", "[rank 1] 1"]), err

    def test_their_port_is_kept_for_them(self):
        """Otherwise another run could take the port before their rendezvous."""
        code, out, err = run("""
        import socket
        start(2)
        try:
            socket.socket().bind(("", int(os.environ["MASTER_PORT"])))
        except OSError:
            print("taken")
        """)
        assert (code, sorted(out.splitlines())) == (0, ["[rank 1] taken", "taken"]), err

    def test_they_are_started_once(self):
        code, out, err = run("""
        launcher, rank = start(2)
        again, same = start(2)
        assert again.environment == launcher.environment and same == rank
        assert (launched_processes() is launcher) == (rank == 0)
        print("twice", rank)
        """)
        assert (code, sorted(out.splitlines())) == (0, ["[rank 1] twice 1", "twice 0"]), err

    def test_two_that_were_made_before_the_first_start(self):
        code, out, err = run("""
        first, second, third = (SubprocessLauncher(detect(n) if "RANK" not in os.environ or n == 2 else detect(2))
                                for n in (2, 2, 3))
        assert first.launch() == second.launch()
        assert first.running() == second.running() == ([1] if "LIGHTLIB_PARENT" not in os.environ else [])
        if first.environment.rank == 0:
            try:
                third.launch()
            except ValueError as error:
                print(error)
            second.stop(1e5)
            assert first.wait(0)
        else:
            hang()
        """)
        assert code == 0, err
        assert "This Trainer requests 3 processes, but this program has started 2 for an earlier one." in out
        assert "Fix: Trainer(devices=2), or a separate program" in out

    def test_another_number_is_refused_everywhere(self):
        code, out, err = run("""
        start(2)
        try:
            detect(3)
        except ValueError as error:
            print(str(error).splitlines()[0])
        """)
        what = "The Trainer has devices=3, but lightlib has started 2 processes on this machine "
        what += "(LOCAL_WORLD_SIZE=2, WORLD_SIZE=2)."
        assert (code, sorted(out.splitlines())) == (0, sorted([what, f"[rank 1] {what}"])), err

    def test_one_process_needs_no_other(self):
        code, out, _ = run("launcher, rank = start(1)\nprint(rank, launcher.wait(0), launcher.running())")
        assert (code, out) == (0, "0 True []\n")

    def test_a_machine_of_several(self):
        code, out, err = run(
            """
            place = SubprocessLauncher(detect(2, 3)).launch()
            print(place.rank, os.environ["RANK"], place.world_size, os.environ["MASTER_ADDR"], place.port)
            """,
            environment(NODE_RANK="1", MASTER_ADDR="there", MASTER_PORT="77"),
        )
        assert (code, sorted(out.splitlines())) == (0, ["2 2 6 there 77", "[rank 3] 3 3 6 there 77"]), err

    def test_a_program_that_one_of_them_starts_stands_alone(self):
        code, out, err = run("""
        _, rank = start(2)
        ask = "from lightlib.launch.environment.detect import detect; print(detect(4))"
        print(rank, subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True).stdout.strip())
        """)
        assert (code, out.count(f"{Environment(world_size=4, local_size=4)}")) == (0, 2), err

    def test_the_cores_are_shared_and_that_is_said_once(self):
        variables = environment()
        del variables["OMP_NUM_THREADS"]
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        threads = max(1, cores // 2)
        code, out, err = run("start()\nprint(os.environ['OMP_NUM_THREADS'])", variables)
        assert (code, sorted(out.split())) == (0, sorted([str(threads), "[rank", "1]", str(threads)]))
        assert err == f"Each of the 2 processes uses {threads} of this machine's cores: OMP_NUM_THREADS={threads}.\n"
        code, out, err = run("start()\nprint(os.environ['OMP_NUM_THREADS'])")
        assert (code, err) == (0, "")

    def test_they_outlive_the_thread_that_asked_for_them(self):
        code, out, err = run("""
        found = []
        def work():
            found.extend(start(2))
            wait_for("up") if found[1] == 0 else mark("up")
            found.append(threading.get_native_id())
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        launcher, rank, native = found
        while os.path.exists(f"/proc/self/task/{native}"): time.sleep(0.001)
        mark("over") if rank == 0 else wait_for("over")
        print("done")
        """)
        assert (code, sorted(out.splitlines())) == (0, ["[rank 1] done", "done"]), err


class Read(Output):
    """Notifies the test when a part has been read."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.parts = threading.Semaphore(0)

    def _take(self, text):
        super()._take(text)
        self.parts.release()


class TestOutput:
    def passed_on(self, written, monkeypatch, name="stdout"):
        end, begin = os.pipe()
        stream = io.StringIO()
        monkeypatch.setattr(sys, name, stream)
        output = Read(os.fdopen(end, "rb"), "[rank 1] ", name)
        output.start()
        for part in written:
            if isinstance(part, float):
                output.settle(part)
            else:
                os.write(begin, part)
                assert output.parts.acquire(timeout=HANGS_AFTER)
        os.close(begin)
        output.join()
        assert list(output.tail) == [line.removeprefix("[rank 1] ") for line in stream.getvalue().splitlines()][-200:]
        return stream.getvalue().replace("[rank 1] ", ">")

    @pytest.mark.parametrize(
        ("written", "expected"),
        [
            ([b"a\nb\n", b"c\n"], ">a\n>b\n>c\n"),
            ([b"be", b"gun\nan", b"d ended\n"], ">begun\n>and ended\n"),
            ([b"no end"], ">no end\n"),
            ([b"a\r\n", b"b\r\n"], ">a\n>b\n"),
            ([b"\r 1%", b"\r50%", b"\r 99%\r100%", b"\n"], ">100%\n"),
            ([b"\r10%\r20%"], ">20%\n"),
            ([b"\r10%", b"\r   \r", b"after\n"], ">after\n"),
            ([b"\r10%", b"\r   \r"], ">10%\n"),
            ([b"waits", 0.0, b" on\n"], ">waits\n> on\n"),
            ([b"waits", 1e5, b" on\n"], ">waits on\n"),
            ([0.0, b"\n", 0.0], ">\n"),
            (["ü€".encode()[:1], "ü€".encode()[1:4], "ü€".encode()[4:] + b"\n"], ">ü€\n"),
            ([b"\xff!\n"], ">\ufffd!\n"),
            ([b"[rank1]: ValueError\n"], ">ValueError\n"),
            ([b"".join(b"%d\n" % i for i in range(300))], "".join(f">{i}\n" for i in range(300))),
        ],
    )
    @pytest.mark.parametrize("name", ["stdout", "stderr"])
    def test_lines_are_passed_on_whole_and_in_order(self, written, expected, name, monkeypatch):
        assert self.passed_on(written, monkeypatch, name) == expected

    def test_a_terminal_that_knows_fewer_letters(self, monkeypatch):
        end, begin = os.pipe()
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
        monkeypatch.setattr(sys, "stdout", stream)
        output = Output(os.fdopen(end, "rb"), "> ", "stdout")
        output.start()
        os.write(begin, "ü\n".encode())
        os.close(begin)
        output.join()
        assert stream.buffer.getvalue() == b"> ?\n"

    @pytest.mark.parametrize("stream", [None, io.BytesIO()])
    def test_nobody_listens(self, stream, monkeypatch):
        end, begin = os.pipe()
        monkeypatch.setattr(sys, "stdout", stream)
        output = Output(os.fdopen(end, "rb"), "> ", "stdout")
        output.start()
        for _ in range(40):
            os.write(begin, b"x" * 4095 + b"\n")  # more than a pipe holds
        os.close(begin)
        output.join()
        assert len(output.tail) == 40

    @pytest.mark.processes
    def test_lines_come_when_they_are_printed(self):
        process = begin(write("start()[1] and print('early')\nhang()"))
        assert process.stdout.readline() == "[rank 1] early\n"
        assert process.poll() is None
        process.kill()
        process.communicate()

    @pytest.mark.processes
    def test_they_have_no_input(self):
        code, out, err = run("_, rank = start()\nprint(rank and sys.stdin.read() == '')")
        assert (code, sorted(out.splitlines())) == (0, ["0", "[rank 1] True"]), err

    @pytest.mark.processes
    def test_what_is_printed_last_arrives(self):
        code, out, err = run("_, rank = start()\nfor i in range(3000 * rank): print(i)")
        assert (code, out) == (0, "".join(f"[rank 1] {i}\n" for i in range(3000))), err


@pytest.mark.processes
class TestEnds:
    def test_a_failure_after_rank_0_has_ended(self):
        code, _, err = run("""
        launcher, rank = start()
        if rank: wait_for("ended"); raise ValueError('late')
        atexit.register(mark, "ended")
        """)
        assert code == 1
        lines = err.splitlines()
        assert "[rank 1] ValueError: late" in lines
        assert lines[-2:] == ["ValueError: late", "Rank 1 ended with exit code 1."]

    def test_it_is_reported_while_rank_0_runs(self):
        code, out, err = run("""
        launcher, rank = start(3)
        launcher.on_death(lambda *reported: (print("reported", *reported), mark("reported")))
        if rank == 1:
            print("bad", file=sys.stderr); os._exit(3)
        if rank == 2: hang()
        wait_for("reported")
        print(launcher.failures(), launcher.running())
        launcher.on_death(lambda *reported: (print("also", *reported), mark("also")))
        wait_for("also")
        launcher.stop()
        """)
        assert code == 1, err
        assert [line for line in out.splitlines() if "rank" not in line] == [
            "reported 1 3 bad",
            "[(1, 3, 'bad')] [2]",
            "also 1 3 bad",
        ]
        assert err.splitlines()[-1] == "Rank 1 ended with exit code 3."

    def test_the_first_one_comes_first(self):
        code, _, err = run("""
        launcher, rank = start(3)
        if rank == 1: wait_for("noted")
        if rank: sys.exit(rank + 3)
        while not launcher.failures(): time.sleep(0.01)
        mark("noted")
        while len(launcher.failures()) < 2: time.sleep(0.01)
        print([failed[:2] for failed in launcher.failures()], file=sys.stderr)
        """)
        assert (code, err.splitlines()) == (1, ["[(2, 5), (1, 4)]", "", "Rank 2 ended with exit code 5."])

    def test_one_is_killed(self):
        code, out, err = run("""
        launcher, rank = start()
        launcher.on_death(lambda *reported: (print(*reported[:2], flush=True), mark("reported")))
        if rank: os.kill(os.getpid(), signal.SIGKILL)
        wait_for("reported")
        launcher.wait()
        """)
        assert (code, out) == (1, "1 -9\n")
        assert err.splitlines()[-1] == "Rank 1 was killed by SIGKILL (often: out of memory)."

    def test_one_ends_well_before_rank_0(self):
        code, out, err = run("""
        launcher, rank = start()
        launcher.on_death(lambda *reported: (print(*reported[:2], flush=True), mark("reported")))
        if rank: sys.exit(0)
        wait_for("reported")
        """)
        assert (code, out, err) == (0, "1 0\n", "")

    def test_one_ends_well_while_it_is_waited_for(self):
        code, out, err = run("""
        launcher, rank = start(3)
        if rank == 2: sys.exit(0)
        if rank == 1: hang()
        launcher.meets = True
        def reported(*what):
            launcher.stop(0.0)  # does not wait in vain for the thread that reports
            print(*what[:2], launcher.wait(), flush=True)
            os._exit(0)
        launcher.on_death(reported)
        hang()
        """)
        assert (code, out, err) == (0, "2 0 True\n", "")

    @pytest.mark.parametrize("end", ["sys.exit(143)", "sys.exit(130)", "os.kill(os.getpid(), signal.SIGINT)"])
    def test_an_interrupted_one_has_not_failed_unless_rank_0_goes_on(self, end):
        code, out, _ = run(f"""
        launcher, rank = start()
        reported = []
        launcher.on_death(lambda *what: reported.append(what[0]))
        if rank: {end}
        launcher.wait()
        print(launcher.failures(), reported)
        launcher.grace = 0.0
        while not reported: time.sleep(0.01)
        print(launcher.failures(), reported)
        """)
        assert (code, out) == (0, "[] []\n[] [1]\n")

    def test_rank_0_fails_and_its_traceback_comes_last(self):
        code, out, err = run("""
        launcher, rank = start(grace=0.1)
        if rank == 0:
            wait_for("up")
            raise ValueError("rank 0")
        try:
            print(os.getpid(), flush=True)
            mark("up")
            hang()
        finally:
            print("never mind")
        """)
        assert (code, err.splitlines()[-1]) == (1, "ValueError: rank 0")
        assert ends(int(out.split()[-1]))

    def test_rank_0_fails_because_another_has(self):
        code, _, err = run("""
        launcher, rank = start()
        if rank: raise KeyError("cause")
        while not launcher.failures(): time.sleep(0.01)
        raise RuntimeError("echo")
        """)
        assert (code, err.splitlines()[-2:]) == (1, ["KeyError: 'cause'", "Rank 1 ended with exit code 1."])

    @pytest.mark.parametrize("first", [0, 1])
    def test_all_fail_for_one_reason(self, first):
        code, _, err = run(f"""
        launcher, rank = start()
        if {first} == 0:
            wait_for("ended") if rank else atexit.register(mark, "ended")
        while {first} == 1 and rank == 0 and not launcher.failures(): time.sleep(0.01)
        raise ValueError('of all')
        """)
        assert code == 1
        assert err.splitlines()[-1] in {"ValueError: of all", "[rank 1] ValueError: of all"}

    def test_one_that_does_not_end_is_stopped(self):
        code, out, err = run("""
        _, rank = start(timeout=0.2)
        if rank: print(os.getpid(), flush=True); mark("up"); hang()
        wait_for("up")
        """)
        assert (code, err) == (1, "Rank 1 was still running 0.2 s after rank 0 had ended, and stopped.\n")
        assert ends(int(out.split()[-1]))

    def test_one_that_does_not_listen_is_killed(self):
        code, out, _ = run("""
        launcher, rank = start()
        if rank:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print(os.getpid(), flush=True)
            mark("up")
            hang()
        wait_for("up")
        launcher.stop(0.1)
        print(launcher.running(), launcher.failures())
        """)
        assert (code, out.splitlines()[-1]) == (0, "[] []")
        assert not alive(int(out.split()[2]))

    def test_rank_0_is_killed(self):
        process = begin(write("_, rank = start()\nprint(os.getpid(), flush=True)\nhang()"))
        pids = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
        process.kill()
        process.communicate()
        assert all(ends(pid) for pid in pids)

    def test_rank_0_is_killed_before_the_others_are_up(self):
        finish(
            begin(
                write("""
                if "RANK" in os.environ:
                    with open("pid", "w") as file: file.write(str(os.getpid()))
                    os.kill(os.getppid(), signal.SIGKILL)
                    hang()
                start()
                hang()
                """)
            )
        )
        assert ends(int(Path("pid").read_text()))

    def test_ctrl_c_reaches_all_and_is_told_once(self):
        process = begin(write("_, rank = start()\nprint(os.getpid(), flush=True)\nhang()"))
        pids = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
        os.killpg(process.pid, signal.SIGINT)
        code, _, err = finish(process)
        assert code == -signal.SIGINT
        assert err.count("KeyboardInterrupt") == 1
        assert err.splitlines()[-1] == "KeyboardInterrupt"
        assert all(ends(pid) for pid in pids)

    def test_a_fork_of_rank_0_ends_for_itself(self):
        code, out, err = run("""
        _, rank = start()
        if rank == 0:
            if os.fork() == 0: sys.exit()
            os.wait()
            mark("ended")
        wait_for("ended")
        print("done", rank)
        """)
        assert (code, sorted(out.splitlines())) == (0, ["[rank 1] done 1", "done 0"]), err

    def test_a_grandchild_that_keeps_the_pipe_open_holds_nobody_up(self):
        code, _, err = run("""
        launcher, rank = start(drain=0.1)
        if rank:
            grandchild = subprocess.Popen(["sleep", "1000"])
            with open("pid", "w") as file: file.write(str(grandchild.pid))
        """)
        assert code == 0, err
        os.kill(int(Path("pid").read_text()), signal.SIGKILL)

    @pytest.mark.parametrize(
        ("code", "text"),
        [
            (1, "ended with exit code 1"),
            (-9, "was killed by SIGKILL (often: out of memory)"),
            (-11, "was killed by SIGSEGV (a crash in native code)"),
            (-15, "was killed by SIGTERM"),
            (-99, "was killed by signal 99"),
        ],
    )
    def test_an_exit_code_in_words(self, code, text):
        assert how_it_ended(code) == text


class TestRefusals:
    def refused(self, text, environment=None):
        with pytest.raises(MisconfigurationException, match=text):
            SubprocessLauncher(environment or Environment(world_size=2, local_size=2)).launch()

    @pytest.mark.processes
    def test_a_test(self):
        self.refused(
            r"devices=2 needs 2 processes, for which the program would be run again; but this is a test"
            r"(.|\n)*strategy=\"ddp_notebook\"\) in a notebook, Trainer\(strategy=\"ddp_spawn\"\)"
            r"(.|\n)*torchrun --nproc-per-node=2 train.py"
        )

    @pytest.mark.processes
    @pytest.mark.parametrize(
        ("strategy", "here", "elsewhere"),
        [
            ("fsdp", 'MeshStrategy(shard=-1, launcher="fork")', 'MeshStrategy(shard=-1, launcher="spawn")'),
            (MeshStrategy(replicate=2, tensor=2), 'MeshStrategy(replicate=2, tensor=2, launcher="fork")', "spawn"),
            ("pipeline", 'MeshStrategy(pipeline=-1, launcher="fork")', "spawn"),
            ("zero1", 'DDPStrategy(zero=True, start_method="fork")', 'DDPStrategy(zero=True, start_method="spawn")'),
            ("ddp", '"ddp_notebook"', '"ddp_spawn"'),
        ],
    )
    def test_what_is_offered_is_the_same_strategy(self, strategy, here, elsewhere):
        forked = (registry.get("strategies", strategy)() if isinstance(strategy, str) else strategy).forked
        with pytest.raises(MisconfigurationException) as caught:
            SubprocessLauncher(Environment(world_size=2, local_size=2), forked).launch()
        fix = str(caught.value).partition("Fix: ")[2]
        assert fix.startswith(f"Trainer(strategy={here}) in a notebook, Trainer(strategy=")
        assert elsewhere in fix
        assert fix.endswith("or a script started with `torchrun --nproc-per-node=2 train.py`.")

    @pytest.mark.processes
    def test_where_a_strategy_has_no_such_way_only_a_launcher_is_offered(self):
        with pytest.raises(MisconfigurationException, match="Fix: a script started with `torchrun"):
            SubprocessLauncher(Environment(world_size=2, local_size=2), "").launch()

    @pytest.mark.processes
    def test_an_interactive_session(self, monkeypatch):
        monkeypatch.delenv("PYTEST_CURRENT_TEST")
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
        self.refused("but this is a notebook or an interactive session, which cannot be run again")

    @pytest.mark.processes
    def test_a_script_from_a_pipe(self):
        code, _, err = finish(begin(stdin=subprocess.PIPE), START + "start()")
        assert code == 1
        assert "but there is no script to run again" in err

    @pytest.mark.processes
    def test_a_process_of_multiprocessing(self):
        code, _, err = run("""
        import multiprocessing
        if __name__ == "__main__":
            process = multiprocessing.get_context("fork").Process(target=start)
            process.start()
            process.join()
        """)
        assert "but this process was started by multiprocessing" in err
        assert code == 0

    def test_several_machines_without_a_launcher(self, monkeypatch):
        monkeypatch.setattr(sys, "argv", ["train.py", "--name", "a b"])
        monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
        self.refused(
            r"num_nodes=2, but it is unknown which of the 2 machines this is"
            r"(.|\n)*torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=FIRST_HOST:29400 "
            r"--rdzv-id=1 train.py --name 'a b'",
            Environment(world_size=8, local_size=4, num_nodes=2),
        )

    @pytest.mark.processes
    def test_a_system_that_starts_no_process(self):
        code, _, err = run("""
        import lightlib.start_folder as own
        own._folder = "/nowhere"
        sys.modules["__main__"].__file__ = "train.py"  # else that folder is found by it
        start()
        """)
        assert code == 1
        assert re.search(r"LightlibError: A process could not be started: .*'/nowhere'.\n  Expected: to run", err)


def test_nothing_is_started_where_the_processes_exist():
    there = Environment("torchrun", rank=1, world_size=2, local_rank=1, local_size=2, launched=True)
    assert SubprocessLauncher(there).launch() is there
    assert launch.launched_processes() is None
