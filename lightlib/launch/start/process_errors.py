"""Errors of a function in new processes; each is the error of torch.multiprocessing as well."""

from __future__ import annotations

import signal
from typing import Any

from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from lightlib.errors import LightlibError
from lightlib.launch.start.child import how_it_ended


class ProcessFailedError(LightlibError, RuntimeError):
    """A process that lightlib started has failed; the message ends with its traceback, the cause is its exception.

    It is also torch's `ProcessRaisedException`, or its `ProcessExitedException` if the process was killed or ended
    without an exception.

    Attributes:
        rank: The rank that failed first.
        error_index: Its number among the processes that were started here, as in torch.
        error_pid: Its process id; 0 if it was started on another machine.
    """

    def __init__(self, rank: int, how: str, trace: str = "", error_index: int = 0, error_pid: int = 0) -> None:
        super().__init__(f"Rank {rank} {how}." + (f"\n\n{trace.rstrip()}" if trace else ""))
        self.rank = rank
        self.msg = str(self)
        self.error_index, self.error_pid = error_index, error_pid
        self._arguments: tuple[Any, ...] = (rank, how, trace, error_index, error_pid)

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), self._arguments


class ProcessRaisedError(ProcessFailedError, ProcessRaisedException):
    """A process has raised an exception."""


class ProcessExitedError(ProcessFailedError, ProcessExitedException):
    """A process was killed, or has ended without an exception.

    Attributes:
        exit_code: Its exit code; negative for a signal.
        signal_name: The name of the signal, or None.
    """

    def __init__(self, rank: int, exit_code: int, error_index: int, error_pid: int) -> None:
        how = how_it_ended(exit_code) + (" before the function had returned" if exit_code == 0 else "")
        super().__init__(rank, how, "", error_index, error_pid)
        self.exit_code = exit_code
        self.signal_name = next((candidate.name for candidate in signal.Signals if candidate == -exit_code), None)
        self._arguments = (rank, exit_code, error_index, error_pid)
