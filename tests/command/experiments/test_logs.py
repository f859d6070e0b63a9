"""`lightlib experiment logs`: the output of a trial for people and for programs."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("optuna")

from lightlib.command.main import main
from lightlib.experiment.file import read
from lightlib.experiment.ledger.attempt import Entry
from lightlib.experiment.work.folder import ExperimentFolder
from lightlib.experiment.work.ledger import open_ledger

FILE = {"name": "a", "fit": {"trainer": {}}, "searcher": {"name": "random", "metric": "loss", "max_trials": 1}}
FIRST, SECOND = "2026-11-28T03:10:00.123Z", "2026-11-28T03:11:00.456Z"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An experiment of which the only trial has completed in its second attempt."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    config = read(FILE)
    found = ExperimentFolder.of(config)
    with open_ledger(found, found.begin(config, "code")) as ledger:
        ledger.add(Entry(0))
        for end in ("lost", "completed"):
            attempt = ledger.snapshot().last(0)
            assert ledger.claim(attempt, {})
            ledger.end(attempt, end, 0.5 if end == "completed" else None)
    for number, text in enumerate((f"{FIRST} 0 begins\n{FIRST} 1 \x1b[1m½\ndamaged\n", f"{SECOND} 0 loss=0.5\n")):
        path = found.attempt(0, number)
        path.mkdir(parents=True)
        (path / "log.txt").write_text(text)
    return found


LINES = [
    {"time": FIRST, "trial": 0, "attempt": 0, "rank": 0, "text": "begins"},
    {"time": FIRST, "trial": 0, "attempt": 0, "rank": 1, "text": "\x1b[1m½"},
    {"time": None, "trial": 0, "attempt": 0, "rank": 0, "text": "damaged"},
    {"time": SECOND, "trial": 0, "attempt": 1, "rank": 0, "text": "loss=0.5"},
]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a/0"], LINES),
        (["a/0", "--follow"], LINES),
        (["a/0/1"], LINES[3:]),
        (["a/0", "--rank", "1"], LINES[1:2]),
        (["a/0", "--rank", "0", "--grep", "loss|begins"], [LINES[0], LINES[3]]),
        (["a/0", "--grep", "absent"], []),
    ],
)
def test_lines_for_programs(folder, capsys, words, expected):
    assert main(["experiment", "logs", *words, "--json"]) == 0
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert [json.loads(line) for line in printed.splitlines()] == expected
    assert len(printed.splitlines()) == len(expected)


def test_lines_for_people_have_a_heading_for_each_attempt(folder, capsys):
    assert main(["experiment", "logs", "a/0", "--rank", "0"]) == 0
    expected = ["== attempt 0", f"{FIRST} 0 begins", "damaged", "== attempt 1", f"{SECOND} 0 loss=0.5"]
    assert capsys.readouterr().out.splitlines() == expected
