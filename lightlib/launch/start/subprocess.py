"""SubprocessLauncher: the program is run again for each of the other processes of this machine."""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import multiprocessing
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, TracebackType

from lightlib import report
from lightlib.errors import LightlibError, MisconfigurationException
from lightlib.launch.environment.detect import LAUNCHED, PARENT
from lightlib.launch.environment.environment import Environment, HeldPort, threads_per_process
from lightlib.launch.start.output import Output

__all__ = ["SubprocessLauncher", "how_it_ended", "is_interactive", "is_shell", "launched_processes"]

OnDeath = Callable[[int, int, str], None]

_FOLDER = os.getcwd()  # where the program was started: it may go elsewhere before the others are
_INTERRUPTED = (130, 143, -signal.SIGINT)
_POLL = 0.1
_SETTLED = 2.0
_AT_ONCE = 0.5
# The new process asks Linux to be killed when this one dies, and then becomes the program. Python's `preexec_fn` could
# ask as well, but runs Python code after a fork, which is not safe beside other threads.
_FOLLOW = (
    "import os, sys\n"
    "try:\n"
    "    import ctypes\n"
    f"    ctypes.CDLL(None).prctl(1, {int(getattr(signal, 'SIGKILL', 9))})\n"
    "except (ImportError, OSError, AttributeError): pass\n"
    f"if os.getppid() != int(os.environ['{PARENT}']): os._exit(1)\n"
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
_record: SubprocessLauncher | None = None


@dataclass
class _Child:
    """A process that was started, and what it prints."""

    rank: int
    process: subprocess.Popen[bytes]
    outputs: tuple[Output, Output]
    ended: float = 0.0
    told: bool = False

    @property
    def tail(self) -> str:
        """The last lines of its stderr."""
        return "\n".join(self.outputs[1].tail)


class SubprocessLauncher:
    """Starts the other processes of this machine by running the program again, and looks after them.

    This process is the first one. The others get their place in the variables RANK, WORLD_SIZE, LOCAL_RANK,
    LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR and MASTER_PORT. What they print appears here with a tag. They are started
    once: later runs of the same program use them again. They end when this process does, however it ends.

    Args:
        environment: The place of this process, as `detect` found it.
        forked: How to write the strategy that asks with processes that are copies of this one; for an error.
        timeout: Seconds that the others may go on after this process has come to its end. Default 30.
        grace: Seconds they have to end when something has failed. Default 5.
        drain: Seconds to read what one that has ended left in its pipes. Default 1.

    Attributes:
        meets: Whether this process waits for all others to come: then one that has ended is missing, failed or not.

    Example:
        >>> launcher = SubprocessLauncher(Environment())
        >>> launcher.launch().world_size, launcher.running()  # one process: there is nothing to start
        (1, [])
    """

    def __init__(
        self,
        environment: Environment,
        forked: str = '"ddp_notebook"',
        *,
        timeout: float = 30.0,
        grace: float = 5.0,
        drain: float = 1.0,
    ) -> None:
        self.environment = environment
        self.forked = forked
        self.timeout = timeout
        self.grace = grace
        self.drain = drain
        self._children: list[_Child] = []
        self._callbacks: list[OnDeath] = []
        self._stopped: set[int] = set()
        self.meets = False
        self.process = os.getpid()
        self._ending = False
        self._all_ended = threading.Event()
        self._all_ended.set()  # there are none yet
        self._lock = threading.Lock()

    def launch(self) -> Environment:
        """Start the others and return the place of this process. They may need seconds to come up.

        Raises:
            MisconfigurationException: The program cannot be run again from here, there are several machines, or
                another number of processes was started before.
            LightlibError: The system refused to start a process.
        """
        if self.environment.launched:
            return self.environment
        before = launched_processes()
        if before is not None:
            return self._same_as(before)
        _refuse_several_machines(self.environment)
        self._held = HeldPort(self.environment.port)  # as long as the program runs
        place = self.environment.at(0, self._held.port)
        self.environment = place
        if place.world_size == 1:
            return place
        if place.local_size > 1:
            command = _command(place.local_size, self.forked)
            self._share_threads()
            self._start(command, place)
        os.environ.update(place.export() | {LAUNCHED: str(os.getpid())})
        return place

    def on_death(self, callback: OnDeath) -> None:
        """Call `callback(rank, exit code, last lines of stderr)` for each process that ends before this one, once.

        It is called in another thread, soon for those that have ended already. Whether a process is missed that ended
        with exit code 0 is for the callback to find out. A process that was interrupted (Ctrl-C, or an end that all
        agreed on) is reported only when this one goes on without it.
        """
        with self._lock:
            self._callbacks.append(callback)
            missed = [child for child in self._children if child.told and self._concerns(child)]
        if missed:
            threading.Thread(target=_tell, args=([callback], missed), name="lightlib on_death", daemon=True).start()

    def failures(self) -> list[tuple[int, int, str]]:
        """Return rank, exit code and the last lines of stderr of each process that failed, the first one first."""
        failed = [child for child in self._children if child.ended and self._has_failed(child)]
        failed.sort(key=lambda child: child.ended)
        return [(child.rank, child.process.returncode, child.tail) for child in failed]

    def running(self) -> list[int]:
        """Return the ranks of the processes that have not ended."""
        return [child.rank for child in self._children if child.process.poll() is None]

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all others have ended and what they printed is passed on; return whether that is so."""
        return self._all_ended.wait(timeout)

    def stop(self, grace: float | None = None) -> None:
        """End the others: they are asked to, and after `grace` seconds (default: as given to the class) killed."""
        children = [child for child in self._children if child.process.poll() is None]
        self._stopped.update(child.rank for child in children)
        for child in children:
            child.process.terminate()
        if not self.wait(self.grace if grace is None else grace):
            for child in children:
                child.process.kill()
            self.wait(self.grace)

    # starting
    def _same_as(self, before: SubprocessLauncher) -> Environment:
        asked, there = self.environment, before.environment
        if (asked.world_size, asked.local_size) != (there.world_size, there.local_size):
            raise MisconfigurationException(
                f"This Trainer asks for {asked.world_size} processes, but this program has started "
                f"{there.world_size} for an earlier one.",
                expected="the same number for every Trainer of a program: they are started once, and used again.",
                fix=f"Trainer(devices={there.local_size}), or a program of its own for this Trainer.",
            )
        vars(self).update(vars(before))  # the same processes, and the same callbacks, from now on
        return there

    def _share_threads(self) -> None:
        size = self.environment.local_size
        threads = threads_per_process(size)
        if threads is None:
            return
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch = sys.modules.get("torch")
        if torch is not None and torch.get_num_threads() > threads:
            torch.set_num_threads(threads)
        report.info(f"Each of the {size} processes uses {threads} of this machine's cores: OMP_NUM_THREADS={threads}.")

    def _start(self, command: list[str], first: Environment) -> None:
        global _record  # noqa: PLW0603  the processes belong to the program, and are started once
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True, write_through=False)  # whole lines between those of the others
        self._all_ended.clear()
        started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        # Linux kills the children when the thread that has started them ends: this one stays as long as they do.
        threading.Thread(
            target=self._look_after, args=(command, first, started), name="lightlib children", daemon=True
        ).start()
        error = started.get()
        if error is not None:
            raise LightlibError(
                f"A process could not be started: {error}.",
                expected=f"to run `{shlex.join(command[-4:])}` in {_FOLDER!r}.",
                fix="see what the system says; fewer devices need fewer processes.",
            ) from error
        _record = self

    def _look_after(
        self, command: list[str], first: Environment, started: queue.SimpleQueue[BaseException | None]
    ) -> None:
        try:
            for local_rank in range(1, first.local_size):
                self._children.append(_begin(command, first.at(local_rank)))
        except BaseException as error:  # noqa: BLE001  it is raised where the start was asked for
            for child in self._children:
                child.process.kill()
            started.put(error)
            return
        started.put(None)
        while self.running() or any(not child.told for child in self._children):
            time.sleep(_POLL)
            for child in self._children:
                for output in child.outputs:
                    output.settle(_SETTLED)
            self._note_ended()
            if self._ending and not self.running():
                break
        self._note_ended()

    def _note_ended(self) -> None:
        for child in self._children:
            if child.process.poll() is not None and not child.ended:
                noticed = time.monotonic()
                for output in child.outputs:
                    output.join(timeout=self.drain)  # something that it has started may keep the pipe open
                child.ended = noticed
            if child.ended and not child.told:
                self._consider(child)
        if all(child.ended for child in self._children):
            self._all_ended.set()

    def _consider(self, child: _Child) -> None:
        interrupted = child.process.returncode in _INTERRUPTED
        if interrupted and not self._ending and time.monotonic() - child.ended < self.grace:
            return
        with self._lock:
            child.told = True
            callbacks = list(self._callbacks)
        if not self._ending and self._concerns(child):  # one that is told may wait for what this thread notes
            threading.Thread(target=_tell, args=(callbacks, [child]), name="lightlib on_death", daemon=True).start()

    def _concerns(self, child: _Child) -> bool:
        code, asked_to = child.process.returncode, child.rank in self._stopped
        return code in _INTERRUPTED or self._has_failed(child) or (code == 0 and not asked_to)

    def _has_failed(self, child: _Child) -> bool:
        return child.process.returncode not in (0, *_INTERRUPTED) and child.rank not in self._stopped

    # the end
    def end(self) -> int:
        """Wait for the others at the end of this process, stop those that do not end, and return its exit code."""
        raised = _has_raised()
        self._ending = True
        cause = self._cause() if raised and not self._callbacks else []
        for child in self._children if raised else []:
            for output in child.outputs:
                output.muted = True
        try:
            self._wait_for_the_end((_AT_ONCE if self.meets else self.grace) if raised else self.timeout)
        except KeyboardInterrupt:
            self.stop(0.0)
        late, failures = self.running(), self.failures()
        self.stop()
        if late and not raised:
            _say(f"{_ranks(late)} still running {self.timeout:g} s after rank 0 had ended, and stopped.")
        for rank, code, tail in (cause if raised else failures)[:1]:
            _say("\n".join(["", *tail.splitlines()[-20:], f"Rank {rank} {how_it_ended(code)}."]))
        return 1 if raised or late or failures else 0

    def _cause(self) -> list[tuple[int, int, str]]:
        """Return what another has died of just before this one had to give up, unless all give up for one reason."""
        self.wait(_AT_ONCE)
        last = getattr(sys, "last_exc", None) or sys.last_value
        own = traceback.format_exception_only(type(last), last)[-1].strip()
        return [failure for failure in self.failures() if not failure[2].endswith(own)]

    def _wait_for_the_end(self, patience: float) -> None:
        deadline = time.monotonic() + patience
        while not self.wait(_POLL) and time.monotonic() < deadline:
            if self.failures():
                deadline = min(deadline, time.monotonic() + self.grace)
                self.wait(deadline - time.monotonic())


def launched_processes() -> SubprocessLauncher | None:
    """Return the launcher that has started the other processes of this program, or None."""
    return _record if _record is not None and _record.process == os.getpid() else None


def how_it_ended(code: int) -> str:
    """Return in words what an exit code says.

    Example:
        >>> how_it_ended(-9)
        'was killed by SIGKILL (often: out of memory)'
        >>> how_it_ended(3)
        'ended with exit code 3'
    """
    if code >= 0:
        return f"ended with exit code {code}"
    name = next((number.name for number in signal.Signals if number == -code), f"signal {-code}")
    often = {"SIGKILL": " (often: out of memory)", "SIGSEGV": " (a crash in compiled code)"}.get(name, "")
    return f"was killed by {name}{often}"


def is_shell() -> bool:
    """Return whether this is a notebook or a shell of Python's, in which more may be typed after what runs now."""
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return (ask is not None and ask() is not None) or hasattr(sys, "ps1")


def is_interactive() -> bool:
    """Return whether this is a notebook, a shell of Python's, or a program that becomes one when it ends."""
    return is_shell() or bool(sys.flags.interactive)


def _begin(command: list[str], place: Environment) -> _Child:
    parent = str(os.getpid())
    variables = {"PYTHONUNBUFFERED": "1", **os.environ, **place.export(), LAUNCHED: parent, PARENT: parent}
    process = subprocess.Popen(  # noqa: S603  it is this very program
        command,
        cwd=_FOLDER,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    tag = f"[rank {place.rank}] "
    outputs = Output(process.stdout, tag, "stdout"), Output(process.stderr, tag, "stderr")
    for output in outputs:
        output.start()
    return _Child(place.rank, process, outputs)


def _tell(callbacks: list[OnDeath], children: list[_Child]) -> None:
    for child in children:
        for callback in callbacks:
            try:
                callback(child.rank, child.process.returncode, child.tail)
            except Exception:  # noqa: BLE001  the others are to be told all the same
                traceback.print_exc()


def _command(size: int, forked: str) -> list[str]:
    """Return what runs this program once more; `forked` is how to write a strategy whose processes are copies.

    Raises:
        MisconfigurationException: There is no program, or running it would do something else.
    """
    arguments, main = sys.orig_argv[1:], sys.modules["__main__"]
    if multiprocessing.parent_process() is not None:
        why = "this is a process that multiprocessing has started"
    elif "pytest" in sys.modules and "PYTEST_CURRENT_TEST" in os.environ:
        why = "this is a test, and pytest would run all of them again"
    elif is_interactive():
        why = "this is a notebook or an interactive session, which cannot be run again"
    elif not (sys.executable and (_file(main) or any(re.match("-[a-zA-Z]*c", one) for one in arguments))):
        why = "there is no script to run again"
    else:
        follow = [sys.executable, "-I", "-S", "-c", _FOLLOW] if sys.platform == "linux" else [sys.executable]
        return [*follow, *arguments]
    raise MisconfigurationException(
        f"devices={size} needs {size} processes, for which the program would be run again; but {why}.",
        expected="a script, started as `python train.py`.",
        fix=f"{_in_one_program(forked)}a script started with `torchrun --nproc-per-node={size} train.py`.",
    )


def _in_one_program(forked: str) -> str:
    if not forked:
        return ""
    spawned = forked.replace("notebook", "spawn").replace("fork", "spawn")
    return f"Trainer(strategy={forked}) in a notebook, Trainer(strategy={spawned}) elsewhere, or "


def _refuse_several_machines(environment: Environment) -> None:
    if environment.num_nodes == 1 or environment.port:
        return
    main, nodes, size = sys.modules["__main__"], environment.num_nodes, environment.local_size
    module = main.__spec__.name.removesuffix(".__main__") if main.__spec__ is not None else None
    program = ["-m", module] if module else [sys.argv[0] if _file(main) else "train.py"]
    raise MisconfigurationException(
        f"num_nodes={nodes}, but nothing says which of the {nodes} machines this is: neither torchrun nor SLURM, MPI, "
        "LSF or Kubeflow has started this process.",
        expected="a launcher that starts the program on every machine.",
        fix=f"on each of them type\n  torchrun --nnodes={nodes} --nproc-per-node={size} --rdzv-backend=c10d "
        f"--rdzv-endpoint=FIRST_HOST:29400 --rdzv-id=1 {shlex.join([*program, *sys.argv[1:]])}",
    )


def _has_raised() -> bool:
    """Return whether Python ends because of an exception that nobody has caught: it exits with 1 by itself."""
    return hasattr(sys, "last_value") or hasattr(sys, "last_exc")


def _file(main: ModuleType) -> str | None:
    """Return where the program is; None when it was typed, piped or given by `-c`."""
    file: str | None = getattr(main, "__file__", None)
    return None if file == "<stdin>" else file


def _ranks(ranks: list[int]) -> str:
    return f"Rank {ranks[0]} was" if len(ranks) == 1 else f"Ranks {', '.join(map(str, ranks))} were"


def _say(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _end_of_program() -> None:
    """Exit with another code than 0 when one of the others has failed, though this process has not."""
    launcher = launched_processes()
    if launcher is not None and launcher.end() and not _has_raised():
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        os._exit(1)


def _say_nothing_when_interrupted() -> None:
    """Leave it to rank 0 to say that Ctrl-C was pressed: it reaches all processes of a terminal."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            before(kind, error, trace)

    sys.excepthook = hook


if os.environ.get(PARENT) == str(os.getppid()):
    _say_nothing_when_interrupted()
atexit.register(_end_of_program)  # as early as possible: what is registered later runs before
