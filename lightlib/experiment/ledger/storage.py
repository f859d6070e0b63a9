"""Storage: opens the folder or database of a ledger, and waits for one that does not answer."""

from __future__ import annotations

import random
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lightlib import optional, report
from lightlib.errors import LightlibError, MisconfigurationException
from lightlib.experiment.ledger.journal import JournalFile, is_on_network

if TYPE_CHECKING:
    from optuna.storages import BaseStorage, RDBStorage  # optional: optuna
    from sqlalchemy import Engine  # optional: optuna

JOURNAL = "journal.log"
_LONGEST_PAUSE = 30.0
_WHILE_OTHERS_CREATE = (0.2, 0.5, 1.0, 2.0, 5.0)  # seconds
T = TypeVar("T")


class StorageUnreachable(LightlibError, OSError):
    """The storage has not answered for the longest time that the worker waits."""


def is_database(place: str) -> bool:
    """Whether a storage is named by a URL, and not by a folder.

    Example:
        >>> is_database("postgresql+psycopg://me@host/db"), is_database("experiments/mnist")
        (True, False)
    """
    return "://" in place


@contextmanager
def open_storage(place: str | Path, patience: Patience | None = None) -> Iterator[BaseStorage]:
    """Open the storage of an experiment, and close its connections on exit; tables are created if they are missing.

    Args:
        place: A folder, created if it is missing, or the URL of a database as SQLAlchemy writes it:
            ``postgresql+psycopg://user@host/database``.
        patience: With a database that does not answer yet. Default: none, so that a wrong URL fails at once.

    Raises:
        MisconfigurationException: The URL is not one, its driver is not installed, or it is SQLite on a file system
            of several machines, which damages it.
        StorageUnreachable: The database does not answer.
    """
    with open_with_engine(place, patience) as (storage, _):
        yield storage


@contextmanager
def open_with_engine(
    place: str | Path, patience: Patience | None = None
) -> Iterator[tuple[BaseStorage, Engine | None]]:
    """Open a storage as `open_storage` does; the context also has the engine of a database."""
    from optuna.storages import JournalStorage, get_storage  # optional: optuna

    if not is_database(str(place)):
        folder = Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        yield JournalStorage(JournalFile(folder / JOURNAL)), None
        return
    _refuse_shared_sqlite(str(place))
    database = patience.call(_database, str(place)) if patience else _database(str(place))
    try:
        yield get_storage(database), database.engine  # this storage remembers trials that have ended
    finally:
        database.remove_session()
        database.engine.dispose()


def _database(url: str) -> RDBStorage:
    from optuna.storages import RDBStorage  # optional: optuna
    from sqlalchemy.exc import (  # optional: optuna
        ArgumentError,
        IntegrityError,
        NoSuchModuleError,
        OperationalError,
        ProgrammingError,
    )

    try:
        for wait in _WHILE_OTHERS_CREATE:
            try:
                return RDBStorage(url, engine_kwargs={"pool_pre_ping": True})
            except (IntegrityError, ProgrammingError):  # another worker is creating the same tables
                time.sleep(wait)
        return RDBStorage(url, engine_kwargs={"pool_pre_ping": True})
    except (ArgumentError, NoSuchModuleError) as error:
        raise MisconfigurationException(
            f"The storage {report.without_passwords(url)!r} is no database's URL: {_hidden(error)}",
            expected="postgresql+psycopg://user@host/database, or a folder.",
            fix="--storage postgresql+psycopg://…, with the password in the environment (PGPASSWORD) or in ~/.pgpass",
        ) from None
    except (IntegrityError, ProgrammingError) as error:
        raise MisconfigurationException(
            f"The storage {report.without_passwords(url)!r} refuses to create its tables: {_hidden(error.orig)}",
            expected="a user that may create tables, or tables of a version of Optuna near this one.",
            fix="GRANT CREATE ON SCHEMA public TO the user, or an empty database.",
        ) from None
    except ImportError as error:
        user = f"The storage {report.without_passwords(url)!r}"
        driver = error.__cause__ if isinstance(error.__cause__, ImportError) else error  # Optuna names no package
        raise optional.missing(driver.name or "psycopg", user, error=driver) from None
    except OperationalError as error:
        raise StorageUnreachable(
            f"The storage {report.without_passwords(url)!r} does not answer: {_hidden(error.orig)}",
            expected="a database that runs, and lets this user in.",
            fix="check host, port, user and password; `psql` with the same values must connect.",
        ) from None


def _hidden(error: object) -> str:
    """Return the text of an error without passwords."""
    return report.without_passwords(str(error))


def _refuse_shared_sqlite(url: str) -> None:
    dialect, _, path = url.partition(":///")
    if dialect.startswith("sqlite") and path and is_on_network(Path(path).absolute().parent):
        raise MisconfigurationException(
            f"The storage {url!r} is an SQLite file on a file system of several machines, where SQLite damages it.",
            expected="a folder, whose journal is made for this, or PostgreSQL.",
            fix=f"--storage {Path(path).absolute().parent}",
        )


def this_machine_only(url: str, first: str | None) -> str:
    """Return the name of this machine; refuse it where an SQLite file belongs to another one.

    Args:
        url: Of the storage.
        first: The machine that created the experiment; None for this one.

    Raises:
        MisconfigurationException: The storage is SQLite, and was created on another machine.
    """
    here = socket.gethostname()
    if url.startswith("sqlite") and first not in (None, here):
        raise MisconfigurationException(
            f"The experiment is in an SQLite file of the machine {first!r}, and this is {here!r}.",
            expected="workers on one machine; SQLite over a network damages its file.",
            fix="PostgreSQL, or a folder on a file system that both machines see.",
        )
    return here


class Patience:
    """Makes calls of a storage again while it does not answer.

    A call may have been made although its answer was lost. All that the ledger writes may be written twice.

    Args:
        seconds: How long one call may take in all. Default: ten minutes.
        sleep: Waits so many seconds.
        clock: Returns seconds that never go back.
    """

    def __init__(
        self,
        seconds: float = 600.0,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._sleep, self._clock = seconds, sleep, clock

    def call(self, act: Callable[..., T], *args: Any) -> T:
        """Make a call, again with longer and longer pauses while the storage does not answer.

        Raises:
            StorageUnreachable: It has not answered for so long.
        """
        began, pause = self._clock(), 0.1
        while True:
            try:
                return act(*args)
            except Exception as error:
                if not is_unreachable(error):
                    raise
                waited = self._clock() - began
                if waited >= self._seconds:
                    raise StorageUnreachable(
                        f"The storage has not answered for {waited:.0f} s: {_hidden(error)}",
                        expected="a storage that answers, or one that comes back in time.",
                        fix="start the database; the same command continues. --storage-patience sets the time.",
                    ) from None
                if pause > _LONGEST_PAUSE / 10:
                    report.warn(f"The storage does not answer; trying again: {_hidden(error).splitlines()[0]}")
                self._sleep(pause * random.uniform(0.5, 1))  # noqa: S311  so that workers do not ask all at once
                pause = min(2 * pause, _LONGEST_PAUSE)


def is_unreachable(error: BaseException) -> bool:
    """Whether an error means that a database was not reached, not that it refused a query."""
    if isinstance(error, StorageUnreachable) or "sqlalchemy" not in sys.modules:  # its import takes 0.3 s
        return isinstance(error, StorageUnreachable)
    from optuna.exceptions import StorageInternalError  # optional: optuna
    from sqlalchemy.exc import DBAPIError, OperationalError, PendingRollbackError  # optional: optuna

    if isinstance(error, StorageInternalError):
        error = error.__cause__ or error
    away = isinstance(error, DBAPIError) and error.connection_invalidated
    return away or isinstance(error, (OperationalError, PendingRollbackError))
