"""Opens the ledger of an experiment; imports no torch, so that commands that only look begin at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.ledger.ledger import Ledger, require_new
from lightlib.experiment.ledger.storage import Patience, open_with_engine
from lightlib.experiment.ledger.turns import turns_of
from lightlib.experiment.work.database import Database
from lightlib.experiment.work.folder import ExperimentFolder

_SHORT = 5.0  # seconds that a command waits for a database; a worker waits longer


@contextmanager
def open_ledger(
    folder: ExperimentFolder, config: ExperimentConfig, patience: Patience | None = None
) -> Iterator[Ledger]:
    """Open the ledger of an experiment, in its database or its folder.

    Args:
        folder: Of the experiment.
        config: It.
        patience: With a database that does not answer. Default: a few seconds.

    Raises:
        MisconfigurationException: The database has another experiment of this name, or is SQLite on another machine.
        StorageUnreachable: The database does not answer.
    """
    database, waits = Database.of(folder.path), patience or Patience(_SHORT)
    place = folder.path if database is None else database.with_password()
    with open_with_engine(place, None if database is None else waits) as (opened, engine):
        directions = tuple("minimize" if smaller else "maximize" for smaller in config.searcher.directions)
        turns = turns_of(folder.path, engine, config.name, waits)
        ledger = Ledger(opened, config.name, directions, config.max_restarts, waits, turns)
        require_new(ledger, config.name)
        if database is not None:
            database.require_own(ledger)
        yield ledger
