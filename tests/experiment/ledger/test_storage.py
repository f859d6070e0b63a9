"""Storages: URLs without their passwords, refusals, and patience with a database that is away."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("optuna")

import sqlalchemy.exc
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState

from lightlib.errors import MisconfigurationException
from lightlib.experiment.ledger import storage
from lightlib.experiment.ledger.attempt import Entry
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.storage import Patience, StorageUnreachable, open_storage, this_machine_only
from tests.experiment.stores import memory


@pytest.mark.parametrize("place", ["experiments/new", "sqlite:///study.db"])
def test_a_folder_and_a_file_are_created_and_found_again(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_storage(place) as storage:
        Ledger(storage, "experiment").add(Entry(0, more={"bracket": 1}))
    with open_storage(place) as storage:
        found = Ledger(storage, "experiment").snapshot()
    assert found.last(0).more == {"bracket": 1}


def opened(place):
    with open_storage(place):
        pass


class TestRefused:
    def test_no_url_of_a_database(self):
        with pytest.raises(MisconfigurationException, match="is no database's URL") as error:
            opened("mongodb://me:secret@host/db")
        assert "secret" not in str(error.value)
        assert "Expected: postgresql+psycopg://" in str(error.value)

    def test_a_driver_that_is_missing(self):
        with pytest.raises(
            MisconfigurationException, match=r"the package pg8000, which is not installed(.|\n)*pip install pg8000"
        ) as error:
            opened("postgresql+pg8000://me:secret@127.0.0.1/db")
        assert "secret" not in str(error.value)

    @pytest.mark.processes
    def test_a_database_that_does_not_answer(self, free_port):
        pytest.importorskip("psycopg")
        with pytest.raises(StorageUnreachable, match="does not answer") as error:
            opened(f"postgresql+psycopg://me:secret@127.0.0.1:{free_port}/db")
        assert "secret" not in str(error.value)
        assert "Fix: check host, port" in str(error.value)
        assert error.value.__cause__ is None

    def test_a_user_that_may_not_create_tables(self, monkeypatch):
        def refuses(url, **options):
            raise sqlalchemy.exc.ProgrammingError("CREATE TABLE studies", {}, Exception("permission denied for schema"))

        monkeypatch.setattr("optuna.storages.RDBStorage", refuses)
        monkeypatch.setattr(storage, "_WHILE_OTHERS_CREATE", (0, 0))
        with pytest.raises(MisconfigurationException, match="refuses to create its tables: permission denied") as error:
            opened("postgresql+psycopg://me:secret@host/db")
        assert "secret" not in str(error.value)
        assert "Fix: GRANT CREATE" in str(error.value)

    def test_sqlite_on_a_file_system_of_several_machines(self, tmp_path, monkeypatch):
        monkeypatch.setattr(storage, "is_on_network", lambda folder: True)
        with pytest.raises(MisconfigurationException, match="where SQLite damages it"):
            opened(f"sqlite:///{tmp_path}/study.db")
        assert not (tmp_path / "study.db").exists()

    def test_sqlite_of_another_machine(self):
        here = socket.gethostname()
        assert this_machine_only("sqlite:///a.db", None) == this_machine_only("sqlite:///a.db", here) == here
        assert this_machine_only("postgresql://host/db", "another") == here
        with pytest.raises(MisconfigurationException, match="of the machine 'another'"):
            this_machine_only("sqlite:///a.db", "another")


@pytest.fixture
def free_port():
    with socket.socket() as taken:  # bound and not listening: the port stays taken and silent
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def away():
    """The error of a database that was stopped within a call."""
    error = StorageInternalError("An exception is raised during the commit.")
    error.__cause__ = sqlalchemy.exc.OperationalError("SELECT 1", {}, Exception("terminating connection"))
    return error


def within_a_transaction():
    """The error of SQLAlchemy when the connection was lost earlier in the same transaction."""
    error = StorageInternalError("An exception is raised during the commit.")
    error.__cause__ = sqlalchemy.exc.PendingRollbackError("Can't reconnect until invalid transaction is rolled back.")
    return error


class TestPatience:
    def patient(self, seconds=600.0):
        waits, clock = [], [0.0]

        def sleep(pause):
            waits.append(pause)
            clock[0] += pause

        return Patience(seconds, sleep, lambda: clock[0]), waits

    @pytest.mark.filterwarnings("ignore:The storage does not answer")
    def test_calls_are_made_again_with_longer_pauses(self):
        patience, waits = self.patient()
        answers = [away(), within_a_transaction(), away(), away(), away(), away(), 7]

        def act(number):
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer + number

        assert patience.call(act, 3) == 10
        assert len(waits) == 6
        assert all(0.05 * 2**i <= wait <= 0.1 * 2**i for i, wait in enumerate(waits))

    @pytest.mark.filterwarnings("ignore:The storage does not answer")
    def test_it_ends(self):
        patience, waits = self.patient(seconds=20)

        def act():
            raise away()

        with pytest.raises(StorageUnreachable, match=r"has not answered for [23][0-9] s"):
            patience.call(act)
        assert max(waits) <= 30

    def test_another_error_is_not_the_storages(self):
        patience, waits = self.patient()
        with pytest.raises(KeyError):
            patience.call({}.__getitem__, "name")
        assert waits == []

    @pytest.mark.filterwarnings("ignore:The storage does not answer")
    def test_a_ledger_over_a_storage_whose_answers_are_lost(self):
        """Each write is made, and its answer lost once: everything is written twice."""
        shared, patience = memory(), self.patient()[0]

        def ended(args):
            return any(isinstance(one, TrialState) and one.is_finished() for one in args)

        class Lossy:
            def __init__(self):
                self.lost = set()

            def __getattr__(self, name):
                method = getattr(shared, name)

                def call(*args, **kwargs):
                    result = method(*args, **kwargs)
                    key = (name, repr(args))
                    writes = name.startswith(("create_new_trial", "set_trial_system", "set_trial_inter")) or ended(args)
                    if writes and key not in self.lost:
                        self.lost.add(key)
                        raise away()
                    return result

                return call

        ledger = Ledger(Lossy(), "experiment", patience=patience)
        ledger.add(Entry(0))
        snapshot = ledger.snapshot()
        assert [len(snapshot.chains), len(snapshot.void)] == [1, 1]
        attempt = snapshot.last(0)
        assert ledger.claim(attempt, {"name": "one"})
        ledger.report(attempt, 1, 0.5)
        ledger.end(attempt, "interrupted")
        again = ledger.snapshot().last(0)
        assert again.attempt == 1
        assert ledger.claim(again, {"name": "one"})
        ledger.end(again, "completed", 1.0)
        assert ledger.snapshot().state_of(0) == "completed"
        assert len(ledger.storage.lost) == 9
