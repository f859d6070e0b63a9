"""Logs of trials are removed so many days after their end."""

from __future__ import annotations

from datetime import timedelta

import pytest

pytest.importorskip("optuna")

from lightlib.experiment.file import read
from lightlib.experiment.ledger.attempt import Entry
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.orders import give_order
from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.results import Results
from lightlib.experiment.work.retention import remove_old_logs
from tests.experiment.stores import memory
from tests.experiment.work.project import Project

FILE = {
    "name": "a",
    "fit": {"trainer": {}},
    "searcher": {"name": "random", "metric": "loss", "max_trials": 9},
    "reproducibility": {"experiment_seed": 1},
}
# the ends of the attempts of each trial; None for one that runs
TRIALS = [["lost", "completed"], ["failed", None], ["paused"], ["interrupted"], ["canceled"], [None], ["invalid"]]
ENDED = [0, 4, 6]
NAMES = ("log.txt", "log.1.txt", "log.2.txt")


class Search:
    """An experiment of which every attempt has a log in three files, and a checkpoint."""

    def __init__(self, folder):
        self.folder, self._config, self.ledger = ExperimentFolder(folder), read(FILE), Ledger(memory(), "a")
        for trial, ends in enumerate(TRIALS):
            self.ledger.add(Entry(trial))
            for number, end in enumerate(ends):
                attempt = self.ledger.snapshot().last(trial)
                assert self.ledger.claim(attempt, {})
                path = self.folder.attempt(trial, number)
                path.mkdir(parents=True)
                for name in (*NAMES, "last.ckpt"):
                    (path / name).touch()
                if end is not None:
                    self.ledger.end(attempt, end, 0.5 if end == "completed" else None)

    def removes(self, days, now):
        return remove_old_logs(self.folder, Results(self.folder, self._config, self.ledger), days, now)

    def ended(self, trial):
        return self.ledger.snapshot().last(trial).finished

    def kept(self):
        """Return the trials that have a log in each attempt, after a check that the rest have none."""
        found = []
        for trial in range(len(TRIALS)):
            names = [{one.name for one in path.iterdir()} for path in self.folder.attempts(trial)]
            assert all(each == names[0] and "last.ckpt" in each for each in names)
            assert names[0] in ({"last.ckpt"}, {"last.ckpt", *NAMES})
            found += [trial] * (len(names[0]) > 1)
        return found


@pytest.fixture
def search(tmp_path):
    return Search(tmp_path)


def test_none_is_removed_by_default(search):
    assert search.removes(-1, search.ended(6) + timedelta(days=10_000)) == []
    assert search.kept() == list(range(len(TRIALS)))


def test_those_of_ended_trials_are_removed_and_no_more(search):
    late = search.ended(6) + timedelta(days=10_000)
    assert search.removes(30, late) == ENDED
    assert search.kept() == [1, 2, 3, 5]
    assert search.removes(30, late) == [], "they are gone"


def test_days_are_counted_from_the_end_of_the_trial(search):
    assert search.removes(7, search.ended(0) + timedelta(days=7, microseconds=-1)) == []
    assert 0 in search.removes(7, search.ended(0) + timedelta(days=7))
    assert 0 not in search.kept()


def test_zero_days_remove_all_of_ended_trials_even_if_their_clock_is_ahead(search):
    assert search.removes(0, search.ended(0) - timedelta(hours=9)) == ENDED


def test_a_trial_that_waited_and_was_canceled_has_ended(search):
    give_order(search.ledger, "cancel", 3)
    assert search.removes(0, search.ended(0)) == [0, 3, 4, 6]


@pytest.mark.processes
def test_a_run_removes_logs_at_its_end_and_at_its_start(tmp_path):
    project = Project(
        tmp_path,
        """
        retention_policy: {log_retention_days: 0}
        searcher: {name: random, metric: val_loss, max_trials: 1}
        """,
    )
    removed = "The logs of trial 0 were removed, after retention_policy.log_retention_days: 0.\n"
    printed = project.run()
    assert printed.index("1 completed") < printed.index(removed)
    log = project.attempts(0)[0] / "log.txt"
    assert not log.exists()
    log.touch()
    printed = project.run()
    assert printed.index(removed) < printed.index("1 completed")
    assert not log.exists()
