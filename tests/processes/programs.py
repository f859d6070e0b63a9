"""Runs Python programs as a user would, in forks of the warm process: no imports to wait for."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import io
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import torch

from tests.processes import fork_server, spares, warm

HANGS_AFTER = 500.0  # seconds; only a hung test takes so long
GRACE = 20.0  # seconds for the streams of a program that was killed to close
# A program of a test is neither in pytest nor a rank of the run that this process may be in.
_NOT_FOR_PROGRAMS = {"PYTEST_CURRENT_TEST", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of a program that a user starts: one thread, lightlib on the path, `changes`."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_PROGRAMS}
    return {**kept, "PYTHONPATH": str(warm.ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **changes}


class Program(warm.Child):
    """A program that runs; used as a `subprocess.Popen` with text pipes is.

    It begins as a fork of the warm process. Everything is as in an interpreter of its own (``__main__``, ``sys.argv``,
    ``sys.path``, streams, signals, exit), but for these: torch, lightlib and more are imported already, options such
    as ``-O`` cannot be given, its parent is the warm process, and at its end, when threads have ended and all that is
    registered was called, objects are not taken apart. A test of any of them uses `interpreter`.

    Args:
        command: What would follow ``python``: a script, ``-m module`` or ``-c code``, and its arguments.
        env: All variables. Default: `environment()`.
        cwd: The working folder. Default: that of this process.
        merged: Whether stderr goes into `stdout`.
        new_session: Whether it leads a session of its own, as in a terminal of its own.
        starts: How many interpreters it starts itself, such as the other ranks: the first so many are forks as well.
        serves: Whether the fork server that it may start is a fork as well.
        each_starts: How many interpreters each of these starts itself that is a fork, likewise.

    Attributes:
        stdout: What it prints.
        stderr: Its errors, None with `merged`.
    """

    def __init__(
        self,
        *command: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        merged: bool = False,
        new_session: bool = True,
        starts: int = 0,
        serves: bool = False,
        each_starts: int = 0,
    ) -> None:
        out, its_out = os.pipe()
        err, its_err = (None, os.dup(its_out)) if merged else os.pipe()
        self.stdout: IO[str] = os.fdopen(out, errors="replace")
        self.stderr: IO[str] | None = None if err is None else os.fdopen(err, errors="replace")
        words = list(map(str, command))
        env = environment() if env is None else env
        with open(os.devnull) as nothing:
            streams = (nothing.fileno(), its_out, its_err)
            child = warm.fork(
                _launch, words, starts, serves, each_starts, streams=streams, env=env, cwd=cwd, new_session=new_session
            )
        os.close(its_out)
        os.close(its_err)
        super().__init__(child.pid, child.status)
        self._texts = ["", ""]
        self._readers: list[threading.Thread] = []

    def communicate(self, timeout: float = HANGS_AFTER) -> tuple[str, str]:
        """Return the rest of stdout and stderr after the program ends; raise `TimeoutExpired` if it hangs."""
        deadline = time.monotonic() + timeout
        if not self._readers:
            streams = [stream for stream in (self.stdout, self.stderr) if stream is not None]
            self._readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in enumerate(streams)]
            for reader in self._readers:
                reader.start()
        self.wait(timeout)
        for reader in self._readers:  # children of the program may still hold its streams
            reader.join(max(0.0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(f"a child of program {self.pid}", timeout)
        return self._texts[0], self._texts[1]

    def _read(self, index: int, stream: IO[str]) -> None:
        with stream:
            self._texts[index] = stream.read()


def run(
    *command: str | Path,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    merged: bool = False,
    new_session: bool = True,
    starts: int = 0,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; if it hangs, kill its session and fail the test with its output."""
    program = Program(*command, env=env, cwd=cwd, merged=merged, new_session=new_session, starts=starts)
    try:
        out, err = program.communicate()
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL) if new_session else program.kill()
        out, err = program.communicate(GRACE)
        raise AssertionError(f"no end within {HANGS_AFTER:g} s:\n{out}\n{err}") from None
    return subprocess.CompletedProcess(["python", *map(str, command)], program.returncode or 0, out, err)


def interpreter(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a program in a new interpreter: for tests of imports, of Python's options, or of a start itself."""
    given = {"env": environment(), "stdin": subprocess.DEVNULL, "capture_output": True, "text": True, **options}
    return subprocess.run([sys.executable, *map(str, command)], check=False, timeout=HANGS_AFTER, **given)


# in the program's process
def _launch(words: list[str], starts: int, serves: bool, each_starts: int) -> None:
    if serves:
        fork_server.stock()
    spares.stock(starts, _main, each_starts)
    _main(words)


def _main(words: list[str]) -> None:
    """Behave as ``python`` with these arguments, then exit."""
    _leave(_run(words))


def _leave(code: int) -> None:
    """Exit as Python does, with threads, atexit functions and flushes, but without freeing the heap."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader is gone, or the program has closed it
            stream.flush()
    os._exit(code)


def _run(words: list[str]) -> int:
    """Run the program and return its exit code."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        signal.signal(number, handler)
    threads = os.environ.get("OMP_NUM_THREADS")
    torch.set_num_threads(int(threads) if threads else len(os.sched_getaffinity(0)))
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdout = _stream(1, unbuffered, os.isatty(1), "strict")
    sys.stderr = _stream(2, unbuffered, True, "backslashreplace")
    code, main, first = _found(words)
    sys.orig_argv = [sys.executable, *words]
    added = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    before = [path for path in sys.path if path not in ("", str(warm.ROOT))]
    sys.path[:] = [first, *added, *before]
    sys.modules["__main__"] = main
    try:
        exec(code, vars(main))
    except KeyboardInterrupt:
        raise  # Python prints it and ends this process by the signal
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)  # noqa: T201  as Python does
        return 1
    except BaseException as error:  # noqa: BLE001  shown as Python would show it, without the lines of this file
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        if sys.version_info >= (3, 12):
            sys.last_exc = error
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


def _stream(number: int, unbuffered: bool, lines: bool, errors: str) -> io.TextIOWrapper:
    raw = io.FileIO(number, "w", closefd=False)
    buffer = raw if unbuffered else io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, errors=errors, write_through=unbuffered, line_buffering=lines and not unbuffered)


def _found(words: list[str]) -> tuple[types.CodeType, types.ModuleType, str]:
    """Return the code, its empty module, and the first place where it looks for imports; sets `sys.argv`."""
    main = types.ModuleType("__main__")
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        return compile(words[1], "<string>", "exec"), main, ""
    if words[0] == "-m":
        sys.path.insert(0, os.getcwd())
        spec = importlib.util.find_spec(words[1])
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{words[1]}.__main__")
        assert spec is not None, f"there is no module {words[1]}"
        sys.argv = [str(spec.origin), *words[2:]]
        main.__spec__, main.__file__, main.__package__ = spec, spec.origin, spec.parent
        return spec.loader.get_code(spec.name), main, os.getcwd()
    assert not words[0].startswith("-"), f"a warm program has no options for Python, such as {words[0]}"
    sys.argv = words
    path = Path(words[0])
    main.__file__ = words[0]
    return compile(path.read_bytes(), words[0], "exec"), main, str(path.resolve().parent)
