"""Experiments with their ledger in SQLite, and in a PostgreSQL server that is killed."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("optuna")

from lightlib.errors import MisconfigurationException
from lightlib.experiment.file import read
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.storage import StorageUnreachable
from lightlib.experiment.work.database import FILE, Database
from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.ledger import open_ledger
from tests.experiment import postgres
from tests.experiment.stores import memory
from tests.experiment.work.project import MODEL, Project, until
from tests.experiment.work.test_worker import assert_as_torch

CONTENTS = {"name": "a", "fit": {"trainer": {}}, "searcher": {"name": "random", "metric": "loss", "max_trials": 1}}
WITH = "postgresql+psycopg://me:secret@host/db"
WITHOUT = "postgresql+psycopg://me@host/db"


@pytest.fixture
def sqlite(tmp_path):
    return Database.chosen(f"sqlite:///{tmp_path}/ledger.db", new=True)


def test_without_a_name_the_ledger_is_in_the_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("LIGHTLIB_STORAGE", raising=False)
    assert Database.chosen(None, new=True) is None
    assert Database.of(tmp_path) is None


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("experiments", "is 'experiments', which is no URL"),
        (WITH, r"'postgresql\+psycopg://me:\*\*\*@host/db' has a password"),
        ("nothing://a/b", "is no database's URL"),
    ],
)
def test_a_storage_that_cannot_be_used_is_refused(option, message):
    with pytest.raises(MisconfigurationException, match=message) as error:
        Database.chosen(option, new=True)
    assert "secret" not in str(error.value)


def test_a_storage_that_does_not_answer_is_refused():
    pytest.importorskip("psycopg")
    with pytest.raises(StorageUnreachable, match="does not answer"):
        Database.chosen("postgresql+psycopg://me@localhost:1/db", new=True)


def test_an_experiment_that_has_begun_waits_for_its_storage():
    """Its worker may be started again while the database is down."""
    url = "postgresql+psycopg://me@localhost:1/db"
    assert Database.chosen(url, new=False).url == url


def test_a_relative_file_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Database.chosen("sqlite:///ledger.db", new=True).url == f"sqlite:///{tmp_path}/ledger.db"


def test_passwords_are_in_the_environment_only(tmp_path, monkeypatch):
    made = Database(WITHOUT, "identity", "here")
    made.save(tmp_path)
    assert Database.of(tmp_path) == made
    assert made.with_password() == WITHOUT
    monkeypatch.setenv("LIGHTLIB_STORAGE", WITH)
    assert made.with_password() == WITH
    monkeypatch.setenv("LIGHTLIB_STORAGE", WITH.replace("host", "another"))
    assert made.with_password() == WITHOUT
    assert "secret" not in (tmp_path / FILE).read_text()


def test_the_environment_names_the_storage(tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTLIB_STORAGE", f"sqlite:///{tmp_path}/ledger.db")
    assert Database.chosen(None, new=True).url == f"sqlite:///{tmp_path}/ledger.db"


def test_two_experiments_of_one_name_do_not_share_a_ledger(sqlite):
    ledger = Ledger(memory(), "a")
    sqlite.require_own(ledger)
    sqlite.require_own(ledger)
    with pytest.raises(MisconfigurationException, match="has another experiment with the name 'a'"):
        sqlite.for_another().require_own(ledger)


def test_an_experiment_keeps_its_storage(tmp_path, sqlite):
    config, folder = read(CONTENTS), ExperimentFolder(tmp_path / "a")
    folder.begin(config, tmp_path, database=sqlite)
    folder.begin(config, tmp_path, database=sqlite.for_another())
    assert Database.of(folder.path) == sqlite
    with pytest.raises(MisconfigurationException, match="and the ledger of the experiment is in 'sqlite:"):
        folder.begin(config, tmp_path, database=Database("sqlite:///other.db", "", ""))
    with open_ledger(folder, config):
        assert not (folder.path / "journal.log").exists()
    plain = ExperimentFolder(tmp_path / "b")
    plain.begin(config, tmp_path)
    with pytest.raises(MisconfigurationException, match="the ledger of the experiment is in its folder"):
        plain.begin(config, tmp_path, database=sqlite)


@pytest.mark.processes
@pytest.mark.parametrize(("slots", "trials"), [(1, 3), (2, 1)])
def test_a_search_in_a_database_trains_as_torch_does(tmp_path, slots, trials):
    """A trial fails if it gets the variable with the storage, which may have a password."""
    model = MODEL.replace(
        "        self.batch_size =", "        assert 'LIGHTLIB_STORAGE' not in os.environ\n        self.batch_size ="
    )
    search = f"searcher: {{name: random, metric: val_loss, max_trials: {trials}}}\nmax_restarts: 0\n"
    project = Project(tmp_path, search + f"resources: {{slots_per_trial: {slots}}}", model)
    url = f"sqlite:///{tmp_path}/ledger.db"
    project.run(LIGHTLIB_STORAGE=url)
    assert [one.state for one in project.trials()] == ["completed"] * trials
    if slots == 1:
        assert_as_torch(project, 3)
    assert not (project.experiment / "journal.log").exists()
    assert "completed" in project.command("experiment", "list")
    assert "experiments/search-2 has begun" in project.command("experiment", "fork", "search")
    assert Database.of(project.folder / "experiments" / "search-2").url == url


@pytest.mark.processes
@pytest.mark.parametrize(
    ("start", "own"),
    [
        ("preload: true", None),
        ("preload: true", "of-the-file"),
        ("preload: false", None),
        ("preload: false", "of-the-file"),
        ("command", None),
    ],
)
def test_a_trial_inherits_no_password_but_one_of_the_file(tmp_path, start, own):
    """Forked, as a new interpreter, and as a command of the user's; other variables of the worker stay."""
    names = ("LIGHTLIB_STORAGE", "PGPASSWORD", "PGUSER")
    show = f"print('seen', [os.environ.get(name) for name in {names}])"
    given = f", environment_variables: [PGPASSWORD={own}]" if own else ""
    search = f"environment: {{{start if start != 'command' else 'preload: true'}{given}}}\n"
    search += "searcher: {name: random, metric: val_loss, max_trials: 1, max_length: {epochs: 1}}\n"
    if start == "command":
        search = search.replace(", max_length: {epochs: 1}", "") + "entrypoint: python3 train.py\n"
    model = MODEL.replace("        self.batch_size =", f"        {show}\n        self.batch_size =")
    project = Project(tmp_path, search, model)
    report = "from lightlib import experiment\nexperiment.current().report(1, val_loss=1.0)\n"
    (project.folder / "train.py").write_text(f"import os\n{show}\n{report}")
    url = f"sqlite:///{tmp_path}/ledger.db"
    project.run(LIGHTLIB_STORAGE=url, PGPASSWORD="of-the-worker", PGUSER="me")
    assert [one.state for one in project.trials()] == ["completed"]
    assert f"seen {[None, own, 'me']}" in project.log(0)


@pytest.mark.processes
@pytest.mark.skipif(bool(postgres.why_not()), reason=postgres.why_not() or "-")
def test_a_killed_server_of_postgresql_loses_nothing(tmp_path):
    pytest.importorskip("psycopg")
    server = postgres.Postgres()
    try:
        hold = "fit: {model: {init_args: {holds_at: [2]}}}\nsearcher: {name: random, metric: val_loss, max_trials: 4}"
        project = Project(tmp_path, hold)
        process = project.start("experiment", "run", "search.yaml", "--slots", "2", "--storage", server.url)
        until(lambda: len(project.held()) == 2)
        server.crash()
        project.let_go()
        server.start()
        printed, _ = process.communicate(timeout=500)
        assert process.returncode == 0, printed
        assert [(one.state, one.attempts) for one in project.trials()] == [("completed", 1)] * 4
        assert_as_torch(project, 4)
        listed = json.loads(project.command("experiment", "list", "--json"))
        assert listed[0]["trials"] == {"completed": 4}
    finally:
        server.close()
