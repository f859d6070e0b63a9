"""Plain: so many trials, each trained to its end, as single, random, grid and Optuna's samplers do."""

from __future__ import annotations

from collections.abc import Callable

from lightlib.experiment.ledger.attempt import Entry
from lightlib.experiment.ledger.snapshot import Snapshot

NewTrial = Callable[[int, Snapshot], Entry | None]  # None: not before trials that run have ended


class Plain:
    """A source of trials that no trial is compared with another to stop.

    Args:
        trials: How many; invalid ones are replaced if `replaces`.
        concurrency: The most that are unfinished at the same time.
        new: Returns the first attempt of the trial with a number.
        replaces: Whether a trial with an invalid combination of hyperparameters does not count. Default: yes.
    """

    def __init__(self, trials: int, concurrency: int, new: NewTrial, replaces: bool = True) -> None:
        self._trials, self._concurrency, self._new, self._replaces = trials, concurrency, new, replaces

    def next_entry(self, snapshot: Snapshot) -> Entry | None:
        if snapshot.trials >= self._total(snapshot) or len(snapshot.unfinished()) >= self._concurrency:
            return None
        return self._new(snapshot.trials, snapshot)

    def is_done(self, snapshot: Snapshot) -> bool:
        return snapshot.trials >= self._total(snapshot)

    def _total(self, snapshot: Snapshot) -> int:
        return self._trials + (invalid_trials(snapshot) if self._replaces else 0)


def invalid_trials(snapshot: Snapshot) -> int:
    """Return how many trials ended because their hyperparameters do not fit together."""
    return sum(snapshot.state_of(trial) == "invalid" for trial in snapshot.chains)
