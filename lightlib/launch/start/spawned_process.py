"""A process started by multiprocessing: runs the function and writes its result or failure to files."""

from __future__ import annotations

import atexit
import json
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightlib import report
from lightlib.launch.environment.detect import ENDED, LAUNCHED, PARENT
from lightlib.launch.environment.environment import Environment
from lightlib.launch.start.deferred_interrupt import INTERRUPT


@dataclass(frozen=True)
class ProcessFailure:
    """The failure of a process, as it reports it before it ends."""

    rank: int
    time: float  # seconds since the epoch
    trace: str
    error: BaseException | None  # None if it cannot be pickled or there is none
    code: int | None  # the exit code, if the process reported nothing
    echo: int = 0  # 1 if another rank's failure was the reason, 2 if the error only shows that another rank is gone


def run_function(sent: Any, environment: Environment, folder: str, threads: int | None, method: str) -> None:
    """Run the function, or its pickle, in this new process; write the result or the failure into `folder`."""
    with _exit_functions(method):
        _run_function(sent, environment, folder, threads)


@contextmanager
def _exit_functions(method: str) -> Iterator[None]:
    """Call the exit functions that this process registers, as an interpreter does that ends by itself.

    Until Python 3.13, multiprocessing ends forked processes without them: rank 0 would not wait for the other ranks.
    Those that a fork has inherited are its parent's.
    """
    if method == "spawn" or sys.version_info >= (3, 13):
        yield
        return
    atexit._clear()  # noqa: SLF001  as Python 3.13 does
    try:
        yield
    finally:
        atexit._run_exitfuncs()  # noqa: SLF001  as Python 3.13 does


def _run_function(sent: Any, environment: Environment, folder: str, threads: int | None) -> None:
    _follow_parent()
    parent, rank = str(os.getppid()), environment.rank
    ended = str(Path(folder) / f"ended-{rank}")
    os.environ.update(environment.export() | {LAUNCHED: parent, PARENT: parent, ENDED: ended})
    report.rank_zero_only.rank = rank
    try:
        INTERRUPT.release()
        function = _prepare(sent, threads)
        result = function(rank)
        if environment.local_rank == 0:
            _write_result(result, Path(folder))
        Path(folder, f"done-{rank}").touch()
    except BaseException as error:  # noqa: BLE001  the parent raises it again
        _write_failure(error, rank, Path(folder))
        sys.exit(1)


def _follow_parent() -> None:
    """Ask Linux to kill this process when its parent dies."""
    if sys.platform == "linux":
        import ctypes  # optional: without it, orphaned processes end a little later

        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))


def _prepare(sent: Any, threads: int | None) -> Callable[[int], Any]:
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    torch = sys.modules.get("torch")
    if torch is not None and threads is not None:
        torch.set_num_threads(threads)  # after a fork a second OpenMP thread would hang
    function: Callable[[int], Any] = pickle.loads(sent) if isinstance(sent, bytes) else sent  # noqa: S301  the parent's
    return function


def _write_result(result: Any, folder: Path) -> None:
    import torch  # optional: loaded on use

    torch.save(result, folder / "begun")
    os.replace(folder / "begun", folder / "result")


def _write_failure(error: BaseException, rank: int, folder: Path) -> None:
    trace = "".join(traceback.format_exception(error))
    failures = sys.modules.get("lightlib.launch.watch.failure")
    others: Any = error if failures is not None and isinstance(error, failures.OtherRankError) else None
    first = rank if others is None or others.failure.rank is None else others.failure.rank
    echo = 1 if others is not None else 2 * int(failures is not None and failures.is_echo(error))
    failure = ProcessFailure(first, time.time(), trace, error, None, echo)
    try:
        data = pickle.dumps(failure)
        pickle.loads(data)  # noqa: S301  an exception with unusual arguments may fail to load
    except Exception:  # noqa: BLE001  the user's exception may raise anything here
        data = pickle.dumps(replace(failure, error=None))
    (folder / f"begun-{rank}").write_bytes(data)
    os.replace(folder / f"begun-{rank}", folder / f"failed-{rank}")


def read_failure(path: Path) -> ProcessFailure:
    """Return the failure that a process has written to a file."""
    failure: ProcessFailure = pickle.loads(path.read_bytes())  # noqa: S301  written by our child
    return failure


def read_end(path: Path) -> ProcessFailure:
    """Return the first failure as known to a process that its watch has ended."""
    first = json.loads(path.read_text(encoding="utf-8"))
    return ProcessFailure(first["rank"] or 0, first["time"], first["text"], None, None, echo=1)


def read_result(folder: Path) -> Any:
    """Return the result of rank 0."""
    import torch  # optional: loaded on use

    return torch.load(folder / "result", weights_only=False)
