"""Searches of Python functions, each trial of which is a call in a process of its own."""

from __future__ import annotations

import functools
import json

import pytest

pytest.importorskip("optuna")

from lightlib import experiment
from lightlib.errors import MisconfigurationException
from lightlib.experiment.parameters import Const
from lightlib.experiment.space import Space
from tests.experiment.work.project import Project

SCRIPT = """
import json
import os
from pathlib import Path

from lightlib import InvalidHP, experiment

SEEN = Path(os.environ["SEEN"])


def parabola(trial):
    (SEEN / str(os.getpid())).touch()
    if trial.hparams["x"] > 3.5:
        raise InvalidHP("too large")
    return (trial.hparams["x"] - 2) ** 2


def counted(trial):
    saved = trial.checkpoint_dir / "step"
    step = int(saved.read_text()) if saved.exists() else 0
    if step == 2 and not (SEEN / "died").exists():
        (SEEN / "died").touch()
        os._exit(7)
    for step in range(step + 1, 5):
        trial.report(step, size=step * trial.hparams["x"], rest=-step)
        saved.write_text(str(step))
        if step == 2 and not (SEEN / "died").exists():
            break
    else:
        return
    counted(trial)


if __name__ == "__main__":
    space = {"x": experiment.Double(0, 4), "y": 7}
    found = experiment.search(parabola, space, searcher="random", max_trials=4, seed=5, slots=2)
    print(json.dumps([[one.hparams, one.metric, one.state] for one in found.trials]))
    names = {"metric": ["size", "rest"], "smaller_is_better": [False, True]}
    found = experiment.search(counted, {"x": experiment.Int(3, 3)}, max_trials=1, seed=5, slots=1, **names)
    print(json.dumps([[one.metrics, one.attempts] for one in found.trials]))
"""


@pytest.mark.processes
def test_trials_are_calls(tmp_path):
    project = Project(tmp_path)
    (project.folder / "tune.py").write_text(SCRIPT)
    printed = project.script("tune.py")
    first, second = map(json.loads, [line for line in printed.splitlines() if line.startswith("[[")])
    space, found = Space({"x": {"type": "double", "minval": 0, "maxval": 4}, "y": 7}), []
    for trial in range(len(first)):
        values = space.values(space.draw_trial(5, trial))
        invalid = values["x"] > 3.5
        found.append([values, None if invalid else (values["x"] - 2) ** 2, "invalid" if invalid else "completed"])
    assert first == found
    assert sum(state == "completed" for *_, state in found) == 4
    assert len(list(project.seen.glob("[0-9]*"))) == len(first), "each in a process of its own"
    assert second == [[{"size": 12.0, "rest": -4.0}, 2]]


def test_a_function_that_no_process_can_import_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def within(trial):
        return 0.0

    for wrong in (within, lambda trial: 0.0, functools.partial(max, 0.0)):
        with pytest.raises(MisconfigurationException, match="other processes cannot import it"):
            experiment.search(wrong, {"x": experiment.Log(-4, -1)}, max_trials=1)


def test_a_search_within_a_trial_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIGHTLIB_TRIAL_JOB", "job.json")
    with pytest.raises(MisconfigurationException, match=r"was called by a trial(.|\n)*__name__ == '__main__'"):
        experiment.search(test_trials_are_calls, {}, searcher="single")


@pytest.mark.parametrize(
    "made",
    [
        experiment.Double(0, 1, step=0.5, when={"a": True}),
        experiment.Int(1, 3, count=2),
        experiment.Log(-4, -1),
        experiment.LogInt(0, 3, base=2),
        experiment.Categorical([None, "a", 1.5]),
        Const(None),
    ],
)
def test_a_space_is_the_same_as_a_mapping(made):
    more = {"a": {"type": "categorical", "vals": [True, False]}}
    assert Space({"x": made.plain(), **more}).parameters["x"] == made
