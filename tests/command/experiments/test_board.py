"""The board of an experiment in a terminal: its text, and how it is shown."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys

import pytest
from rich.console import Console

pytest.importorskip("optuna")

from lightlib.command.experiments.board import Board
from lightlib.experiment.file import read
from lightlib.experiment.ledger.attempt import Entry
from lightlib.experiment.ledger.ledger import Ledger
from lightlib.experiment.messages import Messages
from lightlib.experiment.space import Space
from lightlib.experiment.work.folder import ExperimentFolder
from tests.experiment.stores import memory
from tests.experiment.work.project import Project

FILE = {
    "name": "search",
    "fit": {"trainer": {}},
    "hyperparameters": {"model.init_args.lr": {"type": "double", "minval": 0, "maxval": 1}},
    "searcher": {"name": "random", "metric": "val_loss", "max_trials": 4},
    "reproducibility": {"experiment_seed": 1},
}
RUNGS = {"name": "adaptive_asha", "metric": "val_loss", "max_trials": 4, "max_length": {"batches": 16}}


class Search:
    """An experiment of which the test decides the events.

    Args:
        folder: Of the experiment.
        searcher: In place of that of `FILE`.
    """

    def __init__(self, folder, **searcher):
        self.config = read({**FILE, "searcher": searcher or FILE["searcher"]})
        self.folder, self.ledger, self.events = ExperimentFolder(folder), Ledger(memory(), "search"), []
        self.board = Board(self.folder, self.config, self.ledger, self.events)
        self._space = Space(self.config.hyperparameters)

    def begin(self, trial, **more):
        params = self._space.draw_trial(1, trial)
        self.ledger.add(Entry(trial, params=params, distributions=self._space.distributions(), more=more))
        attempt = self.ledger.snapshot().last(trial)
        assert self.ledger.claim(attempt, {})
        folder = self.folder.attempt(trial, 0)
        folder.mkdir(parents=True)
        return attempt, Messages(folder)

    def shown(self, now, width=80):
        console = Console(file=io.StringIO(), width=width)
        console.print(self.board.draw(now))
        return console.file.getvalue().splitlines()


def test_the_board_of_an_experiment_that_has_not_begun(tmp_path):
    assert Search(tmp_path).shown(0.0) == ["search  random, waiting", "0 of 4 trials: no trials"]


def test_the_board_shows_counts_the_rest_of_the_time_and_the_best_trial(tmp_path):
    search = Search(tmp_path)
    assert search.shown(100.0)[1] == "0 of 4 trials: no trials"
    attempt, _ = search.begin(0)
    search.ledger.report(attempt, 8, 0.25)
    search.ledger.end(attempt, "completed", 0.25)
    search.begin(1)
    lr = search.ledger.snapshot().last(0).params["model.init_args.lr"]
    assert search.shown(110.0)[1:3] == [
        "2 of 4 trials: 1 completed, 1 running  25%  00:00:30 left",  # a quarter in 10 seconds
        f"best: trial 0, val_loss 0.25  lr={lr:.4g}",
    ]


def test_the_board_shows_the_trials_that_run(tmp_path):
    search = Search(tmp_path)
    _, messages = search.begin(0)
    messages.send("slots", names="cpu 1")
    search.shown(0.0)
    messages.send("logged", step=10, metrics={"train_loss": 2.0})
    search.shown(10.0)
    messages.send("validated", step=50, metrics={"val_loss": 0.125})
    search.events.append("an event")
    *_, head, row, _, event = search.shown(30.0)
    assert re.split("  +", head.strip()) == ["trial", "slots", "batches", "val_loss", "per second", "hyperparameters"]
    assert re.split("  +", row.strip())[:5] == ["0", "cpu 1", "50", "0.125", "2"]  # 40 batches in 20 seconds
    assert event == "an event"


def test_the_board_counts_rungs(tmp_path):
    """One bracket with rungs at 4 and 16 batches, in which 4 trials are planned: 3 x 4 + 16 = 28 batches at least."""
    search = Search(tmp_path, **RUNGS, max_rungs=2, mode="aggressive")
    attempt, _ = search.begin(0, bracket=0, rung=0)
    assert re.split("  +", search.shown(0.0)[-1].strip())[1] == "1/2"
    search.ledger.write(attempt, "score:0", 0.5)
    search.ledger.write(attempt, "decision:0", "train")
    lines = search.shown(1.0)
    assert re.split("  +", lines[-1].strip())[1] == "2/2"
    share = int(re.search(r"(\d+)%", lines[1])[1])
    assert 4 / (4 * 16) <= share / 100 <= 4 / 28 + 0.005


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_lines_are_as_wide_as_the_terminal_at_most(tmp_path, width):
    search = Search(tmp_path)
    search.begin(0)
    search.events.append("a long event " * 30)
    assert max(map(len, search.shown(0.0, width))) <= width


@pytest.mark.processes
def test_a_terminal_shows_the_board_and_then_the_result(tmp_path):
    project = Project(tmp_path, "searcher: {name: random, metric: val_loss, max_trials: 2}")
    above, below = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "lightlib", "experiment", "run", "search.yaml", "--slots", "2"],
        cwd=project.folder,
        env={**project.environment(), "TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
        stdin=below,
        stdout=below,
        stderr=below,
    )
    project.started.append(process)
    os.close(below)
    printed = b""
    while True:
        try:
            piece = os.read(above, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        printed += piece
    os.close(above)
    assert process.wait(timeout=60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed.decode())
    assert "search  random, running" in text
    assert "hyperparameters" in text
    *_, last = text.split("search  random")
    assert "2 completed" in last
    assert "best: trial" in last


@pytest.mark.processes
def test_watching_without_a_terminal_prints_each_change(tmp_path):
    project = Project(tmp_path, "searcher: {name: random, metric: val_loss, max_trials: 1}")
    project.run()
    assert project.command("experiment", "watch", "search") == "completed: 1 completed\n"
