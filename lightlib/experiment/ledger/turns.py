"""Turns: one worker at a time looks for an attempt, so that many do not add or end the same one."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lightlib.experiment.ledger.journal import has_kernel_lock
from lightlib.experiment.ledger.storage import Patience

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine  # optional: optuna

_FILE = "turn.lock"
_WAIT = 0.5  # seconds that a worker waits for its turn, before it looks after its trials again
_LONG_WAIT = 2.0  # the same for one that has no trials
_LOOK = 0.005  # seconds until the first look at a turn that another worker has; then twice as long each time
_LONGEST_LOOK = 0.05
_LATE = "55P03"  # what PostgreSQL answers after `lock_timeout`
_STUCK = 30.0  # seconds after which a worker that keeps its turn is taken for frozen
_LIMITS = """
SELECT set_config('lock_timeout', :wait, true), set_config('idle_in_transaction_session_timeout', :stuck, true)
"""  # of this transaction


class Turns(Protocol):
    """Gives the workers of an experiment their turns.

    They save work; nothing rests on them: attempts that several workers add at the same moment are sorted out by their
    numbers (`Snapshot`). So a worker that is frozen in its turn does not stop the rest, and a storage without turns
    has right results, too.
    """

    def turn(self, *, patient: bool = False) -> AbstractContextManager[bool]:
        """Wait for the turn, and keep it within the context; the value is False if another worker has it.

        Args:
            patient: Whether to wait longer. Default False.
        """


class NoTurns:
    """Turns where there are none: every worker has its own at once."""

    @contextmanager
    def turn(self, *, patient: bool = False) -> Iterator[bool]:
        yield True


class FolderTurns:
    """Turns by a lock of the kernel, which it releases when a worker dies.

    Args:
        folder: Of the experiment, on a file system of one machine.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._seen: tuple[bytes, float] | None = None  # the turn that another worker has, and since when it was seen

    @contextmanager
    def turn(self, *, patient: bool = False) -> Iterator[bool]:
        import fcntl  # optional: only on Unix

        file = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            end, pause = time.monotonic() + _wait(patient), _LOOK
            while not (acquired := _locked(file, fcntl.LOCK_EX | fcntl.LOCK_NB)) and time.monotonic() < end:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_LOOK)
            if acquired:
                self._seen = None
                os.pwrite(file, b"%20d" % time.time_ns(), 0)
            yield acquired or self._is_stuck(os.pread(file, 20, 0))
        finally:
            os.close(file)

    def _is_stuck(self, turn: bytes) -> bool:
        """Whether one turn of another worker has been seen for long."""
        if self._seen is None or self._seen[0] != turn:
            self._seen = turn, time.monotonic()
        return time.monotonic() - self._seen[1] > _STUCK


def _wait(patient: bool) -> float:
    return _LONG_WAIT if patient else _WAIT


def _locked(file: int, operation: int) -> bool:
    import fcntl  # optional: only on Unix

    try:
        fcntl.flock(file, operation)
    except BlockingIOError:
        return False
    return True


class PostgresTurns:
    """Turns by an advisory lock of a transaction, which PostgreSQL releases when the connection ends.

    The server ends the transaction of a worker that is frozen in its turn.

    Args:
        engine: Of the database.
        name: Of the experiment.
        patience: With a database that does not answer.
    """

    def __init__(self, engine: Engine, name: str, patience: Patience) -> None:
        self._engine, self._key, self._patience = engine, zlib.crc32(f"lightlib {name}".encode()), patience

    @contextmanager
    def turn(self, *, patient: bool = False) -> Iterator[bool]:
        from sqlalchemy.exc import DBAPIError  # optional: optuna

        connection, acquired = self._patience.call(self._begin, _wait(patient))
        with connection:
            yield acquired
            with suppress(DBAPIError):  # the server has ended the transaction, or is away: the turn is over
                connection.rollback()

    def _begin(self, wait: float) -> tuple[Connection, bool]:
        """Return a connection, and whether it has the lock until its transaction ends, after so many seconds."""
        from sqlalchemy import text  # optional: optuna
        from sqlalchemy.exc import DBAPIError  # optional: optuna

        connection = self._engine.connect()
        try:
            connection.execute(text(_LIMITS), {"wait": f"{wait}s", "stuck": f"{_STUCK}s"})
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": self._key})
        except BaseException as error:
            late = isinstance(error, DBAPIError) and _LATE in (
                getattr(error.orig, "sqlstate", ""),
                getattr(error.orig, "pgcode", ""),
            )
            if not late:
                connection.close()
                raise
            return connection, False
        return connection, True


def turns_of(folder: Path, engine: Engine | None, name: str, patience: Patience) -> Turns:
    """Return the turns of the workers of an experiment; none where they cannot be had.

    Args:
        folder: Of the experiment.
        engine: Of its database; None if its ledger is in the folder.
        name: Of the experiment.
        patience: With a database that does not answer.
    """
    if engine is not None and engine.dialect.name == "postgresql":
        return PostgresTurns(engine, name, patience)
    here = engine is None or engine.dialect.name == "sqlite"
    return FolderTurns(folder) if here and has_kernel_lock(folder) else NoTurns()
