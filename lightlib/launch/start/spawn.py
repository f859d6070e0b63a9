"""Run a function in new processes, by spawn, fork or forkserver, and get back what rank 0 returns."""

from __future__ import annotations

import ast
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import connection
from pathlib import Path
from typing import Any, TypeVar

from lightlib import report
from lightlib.errors import LightlibError, MisconfigurationException, UnknownNameError
from lightlib.launch.environment.detect import ENDED, LAUNCHED, PARENT
from lightlib.launch.environment.environment import Environment, HeldPort, threads_per_process
from lightlib.launch.start.subprocess import how_it_ended, is_interactive

__all__ = ["METHODS", "Patience", "ProcessFailedError", "launch_function"]

T = TypeVar("T")
METHODS = ("spawn", "fork", "forkserver")
_ASKED_TO = (130, 143)  # by Ctrl-C, by SIGTERM


class ProcessFailedError(LightlibError, RuntimeError):
    """A process that lightlib started has failed; the message ends with its traceback, the cause is its exception.

    Attributes:
        rank: Which one failed first.
    """

    def __init__(self, rank: int, how: str, trace: str = "") -> None:
        super().__init__(f"Rank {rank} {how}." + (f"\n\n{trace.rstrip()}" if trace else ""))
        self.rank = rank
        self._arguments = (rank, how, trace)

    def __reduce__(self) -> tuple[type, tuple[int, str, str]]:
        return type(self), self._arguments


@dataclass(frozen=True)
class Patience:
    """How long `launch_function` waits for its processes, in seconds; the defaults are for production.

    Attributes:
        poll: Between two looks for a failure, and for the cause of one that was found.
        grace: That the others have to end after a failure, and again once they are asked to.
        save: That all have to end once Ctrl-C was pressed and they are asked to, for they may write a checkpoint.
    """

    poll: float = 0.3
    grace: float = 5.0
    save: float = 30.0


@dataclass(frozen=True)
class _Failure:
    """What a process writes down before it fails."""

    rank: int
    time: float
    trace: str
    error: BaseException | None
    code: int | None
    echo: int = 0  # 1: it has heard of another one's failure, 2: it only says that another one is gone


class _Keyboard:
    """Keeps Ctrl-C until all processes are started: raised by a callback within a fork, Python would ignore it."""

    _before: Any = None
    _pressed = False

    def hold(self) -> None:
        """From now on Ctrl-C is only noted; in another thread than the main one it never comes."""
        if threading.current_thread() is threading.main_thread():
            self._before, self._pressed = signal.getsignal(signal.SIGINT), False
            if self._before is not None:
                signal.signal(signal.SIGINT, self._note)

    def release(self) -> None:
        """Let Ctrl-C do what it did before, also the one that was noted; also in a copy of the process."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None
            if self._pressed:
                signal.raise_signal(signal.SIGINT)

    def _note(self, *_: object) -> None:
        self._pressed = True


_KEYBOARD = _Keyboard()
_PRODUCTION = Patience()


def launch_function(
    function: Callable[[int], T],
    n: int,
    method: str = "spawn",
    environment: Environment | None = None,
    patience: Patience = _PRODUCTION,
) -> T:
    """Run `function(rank)` in `n` new processes and return what it returns on rank 0.

    The processes get their place in the variables RANK, WORLD_SIZE, LOCAL_RANK and so on. They work on copies: what
    the function changes in an object of this process is seen only in what rank 0 returns.

    Args:
        function: With ``"fork"`` anything; otherwise it must be possible to pickle it.
        n: How many processes.
        method: ``"spawn"``, ``"forkserver"`` (new interpreters) or ``"fork"`` (copies of this one: needs no pickling
            and works in notebooks, but not after CUDA was used here).
        environment: The place of this process; the first one's is made of it. Default: this machine alone.
        patience: How long to wait for processes that do not end.

    Raises:
        MisconfigurationException: The method cannot be used here, or the function cannot be sent to a new process.
        ProcessFailedError: A process failed; it names the first, and the others have been ended.
        KeyboardInterrupt, SystemExit: As a process ended by, when it was asked to.

    Example:
        >>> launch_function(lambda rank: {"rank": rank}, 2, "fork")
        {'rank': 0}
    """
    if method not in METHODS:
        raise UnknownNameError("start method", method, METHODS)
    environment = environment or Environment(world_size=n, local_size=n)
    held = HeldPort(environment.port)
    place = environment.at(0, held.port)
    sent: Any = function
    if method == "fork":
        _check_fork()
    else:
        _check_guard(method)
        sent = _pickled(function, method)
    folder = Path(tempfile.mkdtemp(prefix="lightlib-"))
    _KEYBOARD.hold()
    try:
        processes = _start(method, sent, n, place, folder)
        try:
            _KEYBOARD.release()
            with _handing_on(processes) as asked:
                failure = _wait(processes, folder, patience)
        except KeyboardInterrupt:
            _interrupt(processes, patience)
            for failure in map(_read_failure, folder.glob("failed-*")):
                if isinstance(failure.error, SystemExit) and failure.error.code in _ASKED_TO:
                    raise failure.error from None  # they have left their run, and said how to go on
            raise
        except BaseException:
            _end(processes, 0.0)
            raise
        if asked and (failure is None or failure.code == -signal.SIGTERM):  # it came when there was no run to be left
            raise SystemExit(143)
        if failure is not None:
            _raise(failure)
        result: T = _read_result(folder)
        return result
    finally:
        _KEYBOARD.release()
        held.close()
        shutil.rmtree(folder, ignore_errors=True)


# in this process
def _start(method: str, sent: Any, n: int, place: Environment, folder: Path) -> list[Any]:
    own_share = threads_per_process(n)
    if method == "fork" and own_share is not None and own_share > 1:
        report.info(f"Each of the {n} processes computes on one thread, as copies of a process (fork) have to.")
    context: Any = multiprocessing.get_context(method)
    threads = 1 if method == "fork" else own_share
    processes: list[Any] = []
    try:
        for local_rank in range(n):
            arguments = (sent, place.at(local_rank), str(folder), threads)
            process = context.Process(target=_run, args=arguments, name=f"rank {place.rank + local_rank}")
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
                process.start()
            processes.append(process)
    except BaseException:
        _end(processes, 0.0)
        raise
    return processes


@contextmanager
def _handing_on(processes: list[Any]) -> Iterator[list[int]]:
    """Hand SIGTERM on to the processes, which end their run as they do by their own; yields those that came."""
    asked: list[int] = []

    def hand_on(number: int, _: object) -> None:
        asked.append(number)
        for process in processes:
            process.terminate()

    mine = threading.current_thread() is threading.main_thread()
    mine = mine and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # else somebody has other plans with it
    if mine:
        signal.signal(signal.SIGTERM, hand_on)
    try:
        yield asked
    finally:
        if mine:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _wait(processes: list[Any], folder: Path, patience: Patience) -> _Failure | None:
    """Wait until all have ended; after the first failure give the others a moment, and end them."""
    running = list(processes)
    while running:
        connection.wait([process.sentinel for process in running], timeout=patience.poll)
        running = [process for process in running if process.exitcode is None]
        failed = any(process.exitcode or _is_missed(process, folder) for process in processes)
        if failed or any(folder.glob("failed-*")):
            time.sleep(patience.poll)  # a process that was killed is the cause of what the others say at the same time
            killed = [process for process in processes if (process.exitcode or 0) < 0 or _is_missed(process, folder)]
            _end(processes, patience.grace)
            return _first(processes, killed, folder)
    return None


def _is_missed(process: Any, folder: Path) -> bool:
    """Whether a process has ended with exit code 0 before it had done its part, as by `os._exit`."""
    return process.exitcode == 0 and not (folder / f"done-{_rank_of(process)}").exists()


def _rank_of(process: Any) -> int:
    return int(process.name.removeprefix("rank "))


def _first(processes: list[Any], killed: list[Any], folder: Path) -> _Failure:
    """Return the failure that came first: a process that ended without a word, else what was written down first."""
    written = list(map(_read_failure, folder.glob("failed-*"))) + list(map(_read_end, folder.glob("ended-*")))
    if written and not killed:
        return min(written, key=lambda failure: (failure.echo, failure.time))
    process = next(iter(killed or (process for process in processes if process.exitcode)))
    return _Failure(_rank_of(process), 0.0, "", None, process.exitcode)


def _read_failure(path: Path) -> _Failure:
    failure: _Failure = pickle.loads(path.read_bytes())  # noqa: S301  our own
    return failure


def _read_end(path: Path) -> _Failure:
    """Return what a process that was ended from outside of its main thread has heard of the first failure."""
    told = json.loads(path.read_text(encoding="utf-8"))
    return _Failure(told["rank"] or 0, told["time"], told["text"], None, None, echo=1)


def _raise(failure: _Failure) -> None:
    if isinstance(failure.error, (KeyboardInterrupt, SystemExit)):
        if isinstance(failure.error, SystemExit) and failure.error.code not in (*_ASKED_TO, 0, None):
            sys.stderr.write(f"Rank {failure.rank} has ended the program.\n\n{failure.trace}")
        raise failure.error
    how = "failed" if failure.code is None else how_it_ended(failure.code)
    how += " before it had done its part" if failure.code == 0 else ""
    raise ProcessFailedError(failure.rank, how, failure.trace) from failure.error


def _interrupt(processes: list[Any], patience: Patience) -> None:
    """Let the processes come to their own end: Ctrl-C has reached them as well. A second one ends them at once."""
    try:
        _end(processes, patience.save, first=patience.grace)
    except KeyboardInterrupt:
        _end(processes, 0.0)


def _end(processes: list[Any], grace: float, first: float | None = None) -> None:
    """End these processes: by themselves within `first` or `grace` seconds, then when asked to, then at once."""
    _join(processes, grace if first is None else first)
    for process in processes:
        process.terminate()
    _join(processes, grace)
    for process in processes:
        process.kill()
    _join(processes, None)


def _join(processes: list[Any], seconds: float | None) -> None:
    deadline = None if seconds is None else time.monotonic() + seconds
    for process in processes:
        process.join(None if deadline is None else max(0.0, deadline - time.monotonic()))


def _read_result(folder: Path) -> Any:
    import torch  # optional: loaded on use

    return torch.load(folder / "result", weights_only=False)


def _check_fork() -> None:
    if not hasattr(os, "fork"):
        raise MisconfigurationException(
            f"The start method 'fork' was asked for, which {sys.platform} does not have.",
            expected="'spawn', or a script.",
            fix='Trainer(strategy="ddp_spawn"), or Trainer(strategy="ddp") in a script.',
        )
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise MisconfigurationException(
            "CUDA was used in this process already, and a fork of it could not use CUDA any more.",
            expected="no tensor on a GPU, and no other call that initializes CUDA, before the processes are started.",
            fix="restart, and move tensors to the GPU within the Module only; in a script use "
            'Trainer(strategy="ddp") or "ddp_spawn".',
        )


def _check_guard(method: str) -> None:
    """Refuse a script that a new process would run from its first line to this very place."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    frame: Any = sys._getframe()  # noqa: SLF001  public in all but name
    while frame is not None and not (frame.f_code.co_name == "<module>" and frame.f_globals is vars(main)):
        frame = frame.f_back
    named = main.__spec__ is not None and main.__spec__.name.endswith("__main__")  # is not imported again
    if frame is None or named or file is None or not Path(file).is_file():
        return
    tree, line = ast.parse(Path(file).read_bytes()), frame.f_lineno
    within = next((node for node in tree.body if node.lineno <= line <= (node.end_lineno or node.lineno)), None)
    if within is None or (isinstance(within, ast.If) and "__name__" in ast.unparse(within.test)):
        return
    raise MisconfigurationException(
        f"The processes are started by {method!r}, where each imports {Path(file).name} again, and line {line} of it, "
        "which starts them, is not protected.",
        expected='the lines that start the training below `if __name__ == "__main__":`.',
        fix='put them there, or use Trainer(strategy="ddp"), which needs no such line.',
    )


def _pickled(function: Callable[[int], Any], method: str) -> bytes:
    """Return the function as bytes: tensors are copied, where multiprocessing would share the module's parameters."""
    try:
        data = pickle.dumps(function)
    except Exception as error:
        raise MisconfigurationException(
            f"The module or something it holds cannot be sent to a new process: {error}.",
            expected=f"objects that can be pickled, which the start method {method!r} needs: no lambdas, no classes "
            "or functions within functions, no open files.",
            fix='Trainer(strategy="ddp_fork"), which needs none of it, or Trainer(strategy="ddp") in a script.',
        ) from error
    if (is_interactive() or not hasattr(sys.modules["__main__"], "__file__")) and b"__main__" in data:
        raise MisconfigurationException(
            f"The start method {method!r} was asked for in a notebook or an interactive session, with classes or "
            "functions that are defined in it: a new process does not know them.",
            expected="classes from a file that can be imported, or processes that are copies of this one.",
            fix='Trainer(strategy="ddp_notebook"), or write the classes to a file and import them.',
        )
    return data


# in the new processes
def _run(sent: Any, place: Environment, folder: str, threads: int | None) -> None:
    _follow_parent()
    parent = str(os.getppid())
    ended = str(Path(folder) / f"ended-{place.rank}")
    os.environ.update(place.export() | {LAUNCHED: parent, PARENT: parent, ENDED: ended})
    report.rank_zero_only.rank = place.rank
    try:
        _KEYBOARD.release()
        function = _prepare(sent, threads)
        result = function(place.rank)
        if place.local_rank == 0:
            _write_result(result, Path(folder))
        Path(folder, f"done-{place.rank}").touch()
    except BaseException as error:  # noqa: BLE001  it is raised again where the processes were started
        _write_failure(error, place.rank, Path(folder))
        sys.exit(1)


def _follow_parent() -> None:
    """Ask Linux to be killed when the process that has started this one dies."""
    if sys.platform == "linux":
        import ctypes  # optional: where it is missing, processes that are left alone end a little later

        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))


def _prepare(sent: Any, threads: int | None) -> Callable[[int], Any]:
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    torch = sys.modules.get("torch")
    if torch is not None and threads is not None:
        torch.set_num_threads(threads)  # after a fork a second OpenMP thread would wait for ever
    function: Callable[[int], Any] = pickle.loads(sent) if isinstance(sent, bytes) else sent  # noqa: S301  our own
    return function


def _write_result(result: Any, folder: Path) -> None:
    import torch  # optional: loaded on use

    torch.save(result, folder / "begun")
    os.replace(folder / "begun", folder / "result")


def _write_failure(error: BaseException, rank: int, folder: Path) -> None:
    trace = "".join(traceback.format_exception(error))
    known = sys.modules.get("lightlib.launch.watch.failure")
    told: Any = error if known is not None and isinstance(error, known.OtherRankError) else None
    first = rank if told is None or told.failure.rank is None else told.failure.rank
    echo = 1 if told is not None else 2 * int(known is not None and known.is_echo(error))
    failure = _Failure(first, time.time(), trace, error, None, echo)
    try:
        data = pickle.dumps(failure)
        pickle.loads(data)  # noqa: S301  an exception with arguments of its own may not come back
    except Exception:  # noqa: BLE001  it was the user's
        data = pickle.dumps(replace(failure, error=None))
    (folder / f"begun-{rank}").write_bytes(data)
    os.replace(folder / f"begun-{rank}", folder / f"failed-{rank}")
