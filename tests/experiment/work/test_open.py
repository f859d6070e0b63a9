"""Experiments that a worker refuses before the first trial, and trials that it does not claim."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("optuna")

from lightlib.errors import MisconfigurationException
from lightlib.experiment.ledger.attempt import Entry
from lightlib.experiment.machine.slots import Slot, Slots
from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.ledger import open_ledger
from lightlib.experiment.work.open import Accepts, check
from lightlib.experiment.work.results import described
from tests.experiment.work.small import FILE, config


@pytest.fixture
def slots(tmp_path):
    return Slots([Slot("cpu", 0), Slot("cpu", 1)], tmp_path / "locks")


def test_secrets_reach_trials_and_no_file(tmp_path, slots, monkeypatch):
    (tmp_path / "code").mkdir()
    secret = config(environment={"environment_variables": ["API_KEY=hidden"]})
    folder = ExperimentFolder(tmp_path / "a")
    assert folder.begin(secret, tmp_path / "code").environment.variables("cpu") == {"API_KEY": "hidden"}
    assert "hidden" not in (folder.path / "experiment.yaml").read_text()
    with pytest.raises(MisconfigurationException, match=r"(?s)secrets .* are masked.*export LIGHTLIB_SECRET_API_KEY=…"):
        check(folder.config, folder.context, slots)
    monkeypatch.setenv("LIGHTLIB_SECRET_API_KEY", "hidden")
    check(folder.config, folder.context, slots)
    assert described({"api_key": "hidden", "lr": 0.5}) == "api_key=***, lr=0.5"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"searcher": {"name": "single", "metric": "a"}},
            "is 'single', which has one trial, and trainer",
        ),
        (
            {"searcher": {**FILE["searcher"], "name": "tpe", "options": {"n_startup_trial": 3}}},
            "is not a key of the options of tpe. Did you mean 'n_startup_trials'",
        ),
        ({"searcher": {"class_path": "a.B", "metric": "a"}}, r"'a\.B' cannot be imported: ModuleNotFoundError"),
        (
            {"min_checkpoint_period": {"records": 8}},
            "in records, and the hyperparameter 'global_batch_size' is missing",
        ),
        (
            {"resources": {"slots_per_trial": 3, "is_single_node": False}},
            r"is 3, and this worker has 2 slots \(cpu\)\. A trial runs on one machine, with or without resources\.is_s",
        ),
        (
            {"bind_mounts": [{"host_path": "/absent", "container_path": "x"}]},
            "is '/absent', which does not exist",
        ),
        ({"bind_mounts": [{"host_path": "/", "container_path": "/data"}]}, "is '/data', which needs a container"),
        ({"bind_mounts": [{"host_path": "/", "container_path": "log.txt"}]}, "is 'log.txt', which needs a container"),
    ],
)
def test_an_experiment_that_cannot_run_is_refused(tmp_path, slots, changes, message):
    with pytest.raises(MisconfigurationException, match=message):
        check(config(**changes), tmp_path, slots)


def test_excluded_machines_and_slots_that_are_in_use(tmp_path):
    folder = ExperimentFolder(tmp_path)
    with open_ledger(folder, config()) as ledger:
        for number in range(3):
            ledger.add(Entry(number))
        accepts = Accepts(config(resources={"max_slots": 2}))
        first, second, third = (chain[0] for chain in ledger.snapshot().chains.values())
        assert ledger.claim(first, {})
        assert accepts(ledger.snapshot(), third.trial)
        assert ledger.claim(second, {})
        assert not accepts(ledger.snapshot(), third.trial)
        anywhere = Accepts(config())
        assert anywhere(ledger.snapshot(), third.trial)
        ledger.write(third, "excluded", socket.gethostname())
        assert not anywhere(ledger.snapshot(), third.trial)
