"""Workers that are killed and frozen: no trial is lost, none ends twice, and none is too many."""

from __future__ import annotations

import pytest

pytest.importorskip("optuna")

from tests.experiment.kills import Runs
from tests.experiment.postgres import Postgres, why_not
from tests.processes import programs

SETTINGS = {"trials": 24, "concurrency": 4, "grace": 4.0, "same_machine": True}


@pytest.mark.processes
@pytest.mark.parametrize("search", ["plain", "stopping", "promoting", "synchronous"])
def test_in_a_folder(tmp_path, search):
    runs = Runs(tmp_path, {**SETTINGS, "search": search, "storage": str(tmp_path)}, workers=3, seed=5)
    runs.run(kills=6, every=0.7, limit=600)
    wrong, figures = runs.problems()
    assert not wrong, figures
    assert figures["kills"] >= 1


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("psycopg")
    if reason := why_not():
        pytest.skip(reason)
    server = Postgres()
    yield server
    server.close()


CREATE = """
import sys
from concurrent.futures import ThreadPoolExecutor

from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.ledger.storage import open_storage


def create(number):
    with open_storage(sys.argv[1]) as storage:
        return Ledger(storage, "experiment").study


with ThreadPoolExecutor(6) as pool:
    print(*pool.map(create, range(6)))
"""


@pytest.mark.processes
def test_workers_that_create_the_same_tables(server):
    """All at once, in a new database; in a program, because SQLAlchemy leaves the connections of refused ones open."""
    ended = programs.run("-c", CREATE, server.database("several"))
    assert (ended.returncode, ended.stdout.split()) == (0, ["1"] * 6), ended.stderr


@pytest.mark.processes
def test_in_a_database_that_crashes(tmp_path, server):
    """Two times, among the kills of workers; they wait until it is back."""
    settings = {**SETTINGS, "search": "promoting", "storage": server.url, "same_machine": False}
    runs = Runs(tmp_path, settings, workers=3, seed=6)

    def crash():
        server.crash()
        server.start()

    runs.run(kills=5, every=1.0, limit=600, also=[(1, crash), (3, crash)])
    wrong, figures = runs.problems()
    assert not wrong, (figures, runs.report())
