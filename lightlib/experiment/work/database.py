"""Database of an experiment: its URL without a password, in a file of the folder."""

from __future__ import annotations

import json
import os
import socket
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lightlib import report, safe_files
from lightlib.errors import MisconfigurationException
from lightlib.experiment.job import STORAGE
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.storage import is_database, open_storage, this_machine_only

FILE = "storage.json"  # in the folder of the experiment
_NOTE = "experiment"


@dataclass(frozen=True)
class Database:
    """The database of an experiment.

    Attributes:
        url: As SQLAlchemy writes it, without a password.
        experiment: An identity, by which two experiments of one name do not share a ledger.
        host: The machine on which it began.
    """

    url: str
    experiment: str
    host: str

    @classmethod
    def chosen(cls, option: str | None, *, new: bool) -> Database | None:
        """Return the database that `--storage` or ``LIGHTLIB_STORAGE`` names; None for neither.

        Args:
            option: The value of ``--storage``.
            new: Whether the experiment is to begin. Then the database must answer at once: its name may be wrong.

        Raises:
            MisconfigurationException: It is not a URL, the option has a password, or the database cannot be used.
            StorageUnreachable: It does not answer.
        """
        url = option or os.environ.get(STORAGE)
        if not url:
            return None
        if not is_database(url):
            raise MisconfigurationException(
                f"The storage is {url!r}, which is no URL.",
                expected="the URL of a database; without one, the ledger is in the folder of the experiment.",
                fix="--storage postgresql+psycopg://user@host/database, or --root for another folder.",
            )
        if option and report.has_password(option):
            raise MisconfigurationException(
                f"--storage {report.without_passwords(option)!r} has a password, which all users of the machine see.",
                expected="a URL without one.",
                fix=f"the password in PGPASSWORD or ~/.pgpass; or the URL in the variable {STORAGE}.",
            )
        kind, separator, path = url.partition(":///")
        if separator and kind.startswith("sqlite"):
            url = f"{kind}:///{Path(path).absolute()}"
        if new:
            with open_storage(url):
                pass
        return cls(_without_password(url), uuid.uuid4().hex, socket.gethostname())

    @classmethod
    def of(cls, folder: Path) -> Database | None:
        """Return the database of an experiment that has begun; None if its ledger is in its folder."""
        try:
            return cls(**json.loads((folder / FILE).read_text()))
        except FileNotFoundError:
            return None

    def for_another(self) -> Database:
        """Return the same database for another experiment."""
        return replace(self, experiment=uuid.uuid4().hex)

    def save(self, folder: Path) -> None:
        """Write it to the folder of an experiment."""
        safe_files.replace(folder / FILE, json.dumps(asdict(self)).encode())

    def with_password(self) -> str:
        """Return the URL, with the password of ``LIGHTLIB_STORAGE`` if that is the same database.

        Raises:
            MisconfigurationException: It is an SQLite file of another machine.
        """
        this_machine_only(self.url, self.host)
        variable = os.environ.get(STORAGE, "")
        return variable if _without_password(variable) == self.url else self.url

    def require_own(self, ledger: Ledger) -> None:
        """Raise if the ledger is that of another experiment.

        Raises:
            MisconfigurationException: It is.
        """
        if _NOTE not in ledger.notes():
            ledger.note(_NOTE, self.experiment)
        if ledger.notes()[_NOTE] != self.experiment:
            raise MisconfigurationException(
                f"The storage {self.url!r} has another experiment with the name {ledger.name!r}.",
                expected="a name that no experiment in this storage has.",
                fix="another `name:` in the experiment file.",
            )


def _without_password(url: str) -> str:
    return report.without_passwords(url).replace(f":{report.MASK}@", "@")
