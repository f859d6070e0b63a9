"""Opens the ledger of an experiment; imports no torch, so that commands that only look begin at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.ledger.ledger import Ledger, require_new
from lightlib.experiment.ledger.storage import Patience, open_storage
from lightlib.experiment.work.folder import ExperimentFolder


@contextmanager
def open_ledger(folder: ExperimentFolder, config: ExperimentConfig, storage: str | None = None) -> Iterator[Ledger]:
    """Open the ledger of an experiment.

    Args:
        folder: Of the experiment.
        config: It.
        storage: The URL of a database. Default: the folder.
    """
    with open_storage(storage or folder.path, Patience() if storage else None) as opened:
        directions = tuple("minimize" if smaller else "maximize" for smaller in config.searcher.directions)
        ledger = Ledger(opened, config.name, directions, config.max_restarts, Patience())
        require_new(ledger, config.name)
        yield ledger
