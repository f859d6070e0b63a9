"""Failure: which rank failed first and why, and the last lines that a process writes."""

from __future__ import annotations

import json
import logging
import os
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

from torch import distributed

from lightlib.errors import LightlibError
from lightlib.launch.environment.detect import ENDED
from lightlib.launch.start.child import how_it_ended
from lightlib.launch.watch.timing import PRODUCTION, Timing

MAX_TEXT = 60_000  # characters of a traceback
# Errors of gloo, NCCL and the store when another process is gone or does not arrive.
_GONE = (
    "connection closed by peer", "connection reset by peer", "connection refused", "broken pipe", "no route to host",
    "remote process exited", "remote error", "application timeout caused pair closure", "connection was likely closed",
    "socket error", "unhandled system error", "nccl communicator was aborted", "failed to recv", "monitoredbarrier",
)  # fmt: skip
_LATE = ("timed out", "timeout")


@dataclass(frozen=True)
class Failure:
    """The reason why a run ends on all ranks."""

    rank: int | None  # that failed; None if it is unknown
    kind: str  # "exception", "interrupt" (Ctrl-C, twice), "death", "hang", or "lost": another process is out of reach
    summary: str  # one line, for the other ranks
    text: str  # the full report, headed by the rank; printed as the last lines on the terminal
    time: float = field(default_factory=time.time)  # seconds since the epoch
    round: int = 0  # the number of the run in this program, from 1; 0 before the first

    @classmethod
    def of_error(cls, rank: int, error: BaseException) -> Failure:
        """Return the failure for an exception on this rank."""
        kind = "interrupt" if isinstance(error, KeyboardInterrupt) else "exception"
        summary = f"rank {rank} failed: {_last_line(error)}"
        return cls(rank, kind, summary, f"Rank {rank} failed first:\n{_trace(error)}")

    @classmethod
    def of_echo(cls, rank: int, error: BaseException) -> Failure:
        """Return the failure for a lost connection without a reported cause."""
        return cls(
            rank,
            "lost",
            f"rank {rank} lost its connection to another rank, which did not report why",
            f"Rank {rank} lost its connection to another rank, and no rank reported why. A rank that is killed "
            f"(SIGKILL, out of memory) or calls os._exit cannot report it. The error on rank {rank}:\n{_trace(error)}",
        )

    @classmethod
    def of_death(cls, rank: int, returncode: int, tail: str) -> Failure:
        """Return the failure for a process that ended without reporting why."""
        summary = f"rank {rank} {how_it_ended(returncode)}"
        summary += " while the run still needed it" if returncode == 0 else ""
        text = f"R{summary[1:]}."
        if tail.strip():
            text = f"The last lines that rank {rank} wrote to stderr:\n{textwrap.indent(tail.rstrip(), '  ')}\n{text}"
        return cls(rank, "death", summary, text)

    @classmethod
    def lost(cls, rank: int | None, summary: str) -> Failure:
        """Return the failure for a process that is gone, as far as this one can see."""
        return cls(rank, "lost", summary, f"{summary[0].upper()}{summary[1:]}.")

    @classmethod
    def hang(cls, rank: int | None, summary: str, text: str) -> Failure:
        """Return the failure for a rank that does not reach the collective in which other ranks wait."""
        return cls(rank, "hang", summary, text)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Failure:
        return cls(**json.loads(text))


class OtherRankError(LightlibError, RuntimeError):
    """The run ends because another rank failed; the message is that rank's report, `failure` its failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure

    def __reduce__(self) -> tuple[type, tuple[Failure]]:
        return type(self), (self.failure,)


def is_echo(error: BaseException) -> bool:
    """Whether an error is only the consequence of another process that is gone or did not arrive.

    Example:
        >>> is_echo(RuntimeError("[gloo/pair.cc:553] Connection closed by peer [10.0.0.2]:50381"))
        True
        >>> is_echo(ValueError("Connection closed by peer"))
        False
    """
    return any(_is_of_a_collective(link) for link in chain(error))


def is_timeout(error: BaseException) -> bool:
    """Whether an error is the timeout of a collective."""
    return any(_is_of_a_collective(link) and any(word in str(link).lower() for word in _LATE) for link in chain(error))


def _is_of_a_collective(error: BaseException) -> bool:
    text = str(error).lower()
    if isinstance(error, OtherRankError):
        return True
    if isinstance(error, (distributed.DistNetworkError, distributed.DistStoreError)):
        return True
    if not isinstance(error, RuntimeError):
        return False
    is_collective = isinstance(error, distributed.DistError) or any(word in text for word in ("gloo", "nccl", "c10d"))
    return any(word in text for word in _GONE) or (is_collective and any(word in text for word in _LATE))


def chain(error: BaseException) -> list[BaseException]:
    """Return an error followed by its causes and contexts."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return links


def _trace(error: BaseException) -> str:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    if len(text) > MAX_TEXT:
        half = MAX_TEXT // 2
        text = f"{text[:half]}\n  … {len(text) - MAX_TEXT} characters left out …\n{text[-half:]}"
    return text


def _last_line(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    return text.partition("\n")[0][:200]


def exit_code(error: BaseException | None) -> int:
    """Return the exit code of a `SystemExit`; 0 for any other exception.

    Example:
        >>> exit_code(SystemExit(3)), exit_code(SystemExit("out of data")), exit_code(ValueError("3"))
        (3, 1, 0)
    """
    code = error.code if isinstance(error, SystemExit) else None
    return code if isinstance(code, int) else int(code is not None)


def write_error_file(failure: Failure, rank: int) -> None:
    """Report the failure to the launcher that started this process, through a file.

    For torchrun, the rank that failed first writes its traceback. Any other rank writes a line that names the first,
    with a later time, so that torchrun's summary finds the root cause.
    """
    ended = os.environ.get(ENDED)
    if ended:
        _write_file(ended, failure.to_json())
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    first = failure.rank == rank
    text = failure.text if first else f"Ended because {failure.summary}."
    stamp = int(failure.time) if first else int(max(time.time(), failure.time + 1))
    extra = {"py_callstack": text, "timestamp": str(stamp)}
    content = {"message": {"message": failure.summary, "extraInfo": extra}}
    _write_file(path, json.dumps(content))


def _write_file(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        logging.getLogger("lightlib").debug("%s could not be written: %s", path, error)


def end_process(
    text: str, before: Callable[[], None] | None = None, code: int = 1, timing: Timing = PRODUCTION
) -> NoReturn:
    """Write `text` to stderr as the last lines of this process and end it, whatever its threads are doing.

    `before` is called first, for at most a few seconds: it ends other processes and passes on their output.
    """
    try:
        _bounded(_flush, timing.flush)
        if before is not None:
            _bounded(before, timing.before_end)
        if text:
            _bounded(lambda: _write(text), timing.last_lines)
    finally:
        os._exit(code)


def _bounded(call: Callable[[], None], seconds: float) -> None:
    """Run `call` for at most `seconds`: a stream may be locked by a thread that never returns."""

    def quiet() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  nothing may keep the process from ending
            logging.getLogger("lightlib").debug("%r while the process was ending", error)

    thread = threading.Thread(target=quiet, daemon=True)
    thread.start()
    thread.join(seconds)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _write(text: str) -> None:
    stream = sys.stderr
    try:
        plain = stream.fileno() == 2
    except (AttributeError, OSError, ValueError):
        plain = False
    if plain or stream is None:
        data = f"\n{text}\n".encode(errors="backslashreplace")
        while data:
            data = data[os.write(2, data) :]
    else:
        stream.write(f"\n{text}\n")
        stream.flush()
