"""`lightlib search preview`: the plan of an experiment file, and its faults by file and line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from lightlib.command.main import main

FILE = """\
name: mnist
fit: {trainer: {}}
hyperparameters:
  lr: {type: log, minval: -4, maxval: -1, count: 5}
  layers: {type: int, minval: 1, maxval: 3, count: 3}
searcher:
  name: adaptive_asha
  metric: val_loss
  max_trials: 64
  max_length: {epochs: 100}
"""
PAGE = Path(__file__).parents[2] / "docs/experiments.md"
TPE = "searcher={name: tpe, metric: a, max_trials: 16, max_length: {epochs: 16}, stopping: {mode: standard}}"


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "search.yaml"
    path.write_text(FILE)
    return path


def plan(capsys, *more):
    assert main(["search", "preview", "search.yaml", "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("file")
class TestPlan:
    def test_the_numbers_of_the_design(self, capsys):
        found = plan(capsys)
        assert found["trials_per_length"] == [
            {"length": 1, "trials": 34},
            {"length": 6, "trials": 20},
            {"length": 25, "trials": 7},
            {"length": 100, "trials": 3},
        ]
        assert (found["units"], found["unit"], found["units_without_stopping"]) == (629, "epochs", 6400)

    def test_as_tables(self, capsys):
        assert main(["search", "preview", "search.yaml", "--seconds", "36"]) == 0
        printed = capsys.readouterr().out
        assert "adaptive_asha: 64 trials in 3 brackets" in printed
        assert "planned        629 epochs" in printed
        assert "slot-hours" in printed

    @pytest.mark.parametrize(
        ("changes", "trials", "units"),
        [
            (["searcher={name: grid, metric: a, max_length: {epochs: 2}}"], 15, 30),
            (["searcher={name: random, metric: a, max_trials: 7}"], 7, 7),
            (["searcher={name: single, metric: a, max_length: {batches: 9}}", "hyperparameters={lr: 1}"], 1, 9),
            (["searcher={name: adaptive_asha, metric: a, max_trials: 16, time_metric: e, max_time: 16}"], 16, 61),
            ([TPE], 16, 61),
        ],
    )
    def test_of_every_kind(self, capsys, changes, trials, units):
        found = plan(capsys, *(word for change in changes for word in ("--config", change)))
        assert (found["trials"], found["units"]) == (trials, units)

    def test_slots_count(self, capsys):
        one = plan(capsys, "--seconds", "3600")["slot_hours"]
        four = plan(capsys, "--seconds", "3600", "--config", "resources.slots_per_trial=4")["slot_hours"]
        assert four == 4 * one
        assert one == plan(capsys)["units_simulated"]


def wrong(capsys, *words):
    assert main(["search", "preview", *words]) == 2
    return capsys.readouterr().err


class TestWrong:
    @pytest.mark.parametrize(
        ("old", "new", "message", "fix"),
        [
            ("type: log", "type: logg", "search.yaml, line 4", "Did you mean 'log'?"),
            ("minval: -4", "minval: 4", "search.yaml, line 4: Hyperparameter 'lr'", "Fix: for example lr:"),
            ("max_trials", "max_trails", "(search.yaml, line 9)", "Did you mean 'max_trials'?"),
            ("name: adaptive_asha", "name: pbt", "line 7", "adaptive_asha"),
            ("  max_length: {epochs: 100}\n", "", "max_length", "Fix: "),
        ],
    )
    def test_file_and_line_and_the_right_name(self, file, capsys, old, new, message, fix):
        file.write_text(FILE.replace(old, new))
        printed = wrong(capsys, "search.yaml")
        assert message in printed
        assert fix in printed
        assert "Expected: " in printed

    def test_a_grid_without_counts(self, file, capsys):
        file.write_text(FILE.replace(", count: 5", ""))
        printed = wrong(capsys, "search.yaml", "--config", "searcher={name: grid, metric: a}")
        assert "search.yaml, line 4" in printed
        assert "'lr'" in printed

    @pytest.mark.usefixtures("file")
    @pytest.mark.parametrize("seconds", ["0", "-3", "nan", "inf", "long"])
    def test_a_time_that_is_none(self, capsys, seconds):
        printed = wrong(capsys, "search.yaml", f"--seconds={seconds}")
        assert f"--seconds is {seconds!r}." in printed
        assert "Fix: --seconds 0.5" in printed

    @pytest.mark.usefixtures("file")
    def test_no_such_file(self, capsys):
        printed = wrong(capsys, "serch.yaml")
        assert "There is no file 'serch.yaml'. Did you mean 'search.yaml'?" in printed
        assert "Fix: lightlib search preview search.yaml" in printed

    @pytest.mark.usefixtures("file")
    def test_no_such_command(self, capsys):
        assert main(["search", "previw", "search.yaml"]) == 2
        assert "Did you mean 'preview'?" in capsys.readouterr().err

    @pytest.mark.usefixtures("file")
    def test_a_searcher_of_ones_own_has_no_plan(self, capsys):
        printed = wrong(capsys, "search.yaml", "--config", "searcher={class_path: my.Search, metric: a}")
        assert "my.Search decides while it runs" in printed


def test_the_page_shows_the_plan_of_its_file(tmp_path, capsys):
    part = PAGE.read_text("utf-8").partition("## The plan")[2]
    yaml, plan, *_ = re.findall(r"```\w*\n(.*?)```", part, re.DOTALL)
    (tmp_path / "search.yaml").write_text(yaml)
    assert main(["search", "preview", str(tmp_path / "search.yaml")]) == 0
    assert capsys.readouterr().out == plan


@pytest.mark.usefixtures("file")
def test_it_needs_no_optuna(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert plan(capsys)["trials"] == 64
