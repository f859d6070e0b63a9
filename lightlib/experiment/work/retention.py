"""Retention: removes the logs of trials that ended as many days ago as the experiment file has it."""

from __future__ import annotations

from datetime import datetime, timedelta

from lightlib.experiment.ledger.snapshot import ENDED
from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.logs import remove
from lightlib.experiment.work.results import Results


def remove_old_logs(folder: ExperimentFolder, results: Results, days: int, now: datetime) -> list[int]:
    """Remove the logs of all attempts of the trials that ended at least so many days ago.

    Args:
        folder: Of the experiment.
        results: Of the experiment.
        days: 0: all trials that have ended; negative: none.
        now: In local time without a time zone, as the ledger has it.

    Returns:
        The numbers of the trials of which a log was removed.
    """
    removed = []
    for trial in results.trials if days >= 0 else ():
        ends = [attempt.finished for attempt in results.snapshot.chains[trial.number] if attempt.finished is not None]
        if trial.state not in ENDED or not ends:
            continue
        if days == 0 or now - max(ends) >= timedelta(days=days):
            files = sum(map(remove, folder.attempts(trial.number)))
            removed += [trial.number] if files else []
    return removed
