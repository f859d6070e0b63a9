"""Facts and figures of a report, from ledgers in which every number is given."""

from __future__ import annotations

import math
import sys

import pytest

pytest.importorskip("optuna")

from lightlib.experiment.report import figures
from tests.experiment.report.made import NOON, Made

LR = {"lr": {"type": "log", "minval": -4, "maxval": 0}}
OPTIMIZER = {"optimizer": {"type": "categorical", "vals": ["adam", "sgd"]}}
MOMENTUM = {"momentum": {"type": "double", "minval": 0, "maxval": 1, "when": {"optimizer": "sgd"}}}
ASHA = {"name": "adaptive_asha", "metric": "val_loss", "max_trials": 16, "max_length": {"epochs": 16}}


@pytest.fixture
def three(tmp_path):
    """Trial 0 completes, trial 1 fails once and is stopped, trial 2 runs; trial 0 ends last."""
    made = Made(tmp_path, {**LR, "seed": 3})
    made.add(0, "completed", {"lr": -2.0}, [(10, 0.5), (20, 0.25)], seconds=(0, 100))
    made.add(1, "failed", {"lr": -4.0}, [(10, 0.75)], seconds=(0, 20), worker="two")
    made.add(1, "stopped", {"lr": -4.0}, [(20, 1.5)], attempt=1, reason="failed", seconds=(30, 60), worker="two")
    made.add(2, "running", {"lr": -1.0}, [(10, math.inf)], seconds=(100, 0))
    return made


def test_rows_have_the_reports_and_times_of_all_attempts(three):
    rows = three.facts.rows
    assert [one.trial.state for one in rows] == ["completed", "stopped", "running"]
    assert [one.points for one in rows[:2]] == [((10, 0.5), (20, 0.25)), ((10, 0.75), (20, 1.5))]
    assert [one.seconds for one in rows[:2]] == [100, 20 + 30]
    assert [one.metric for one in rows] == [0.25, 0.75, None], "infinity is not drawn"


def test_curves_have_one_line_for_each_trial_and_the_best_one_is_on_top(three):
    drawn = figures.curves(three.facts)["data"]
    assert [(one["x"], one["y"]) for one in drawn] == [([10, 20], [0.75, 1.5]), ([10, 20], [0.5, 0.25])]
    assert drawn[0]["line"]["width"] < drawn[1]["line"]["width"]
    assert drawn[0]["line"]["color"] == figures.PALE


def test_a_value_that_is_not_finite_is_a_gap(tmp_path):
    made = Made(tmp_path, LR)
    made.add(0, "completed", {"lr": -2.0}, [(1, 2.0), (2, math.inf), (3, 1e308), (4, 1.0)])
    assert figures.curves(made.facts)["data"][0]["y"] == [2.0, None, None, 1.0]


def test_the_history_is_in_the_order_of_ends(three):
    dots, best = figures.history(three.facts)["data"]
    assert (dots["x"], dots["y"]) == ([1, 2], [0.75, 0.25])
    assert best["y"] == [0.75, 0.25]


def test_the_best_so_far_may_be_the_largest(tmp_path):
    made = Made(tmp_path, LR, {"name": "random", "metric": "acc", "smaller_is_better": False, "max_trials": 3})
    for trial, value in enumerate((0.5, 0.25, 0.75)):
        made.add(trial, "completed", {"lr": -1.0}, [(1, value)], seconds=(trial, trial + 1))
    assert figures.history(made.facts)["data"][1]["y"] == [0.5, 0.5, 0.75]
    assert made.facts.results.best.number == 2


def test_slices_have_the_values_and_a_log_axis_for_a_log_space(three):
    (figure,) = figures.slices(three.facts)
    assert (figure["data"][0]["x"], figure["data"][0]["y"]) == ([0.01, 0.0001], [0.25, 0.75])
    assert figure["layout"]["xaxis"]["type"] == "log"


def test_parallel_coordinates_have_heights_between_the_lowest_and_the_highest(tmp_path):
    made = Made(tmp_path, {**LR, **OPTIMIZER, **MOMENTUM})
    made.add(0, "completed", {"lr": -4.0, "optimizer": 0}, [(1, 1.0)])
    made.add(1, "completed", {"lr": -3.0, "optimizer": 1, "momentum": 0.5}, [(1, 2.0)])
    made.add(2, "completed", {"lr": 0.0, "optimizer": 1, "momentum": 0.9}, [(1, 5.0)])
    figure = figures.parallel(made.facts)
    found = {one["name"][:7]: one["y"] for one in figure["data"]}
    keys = [one.key for one in made.facts.axes]
    heights = {
        "lr": [0, 1 / 4, 1],
        "momentum": [-0.15, 0, 1],  # the first is below the rest: it has none
        "optimizer": [0, 1, 1],
    }
    for trial in range(3):
        expected = [*(heights[key][trial] for key in keys), (0, 1 / 4, 1)[trial]]
        assert found[f"trial {trial}"] == pytest.approx(expected)
    assert figure["data"][-1]["name"] == "trial 0, completed: 1", "the best one is on top"
    texts = [one["text"] for one in figure["layout"]["annotations"]]
    assert {"adam", "sgd", "none", "0.0001", "0.1", "<b>lr</b>"} <= set(texts)


def test_importances_find_the_hyperparameter_that_matters(tmp_path):
    pytest.importorskip("sklearn")
    width = {"width": {"type": "int", "minval": 1, "maxval": 8}}
    made = Made(tmp_path, {**LR, **width})
    for trial in range(24):
        number = -4 + (trial % 6) * 0.8
        made.add(trial, "completed", {"lr": number, "width": 1 + trial % 4}, [(1, (number + 2) ** 2 + 1)])
    found = made.facts.importances
    assert list(found) == ["lr", "width"]
    assert found["lr"] > 0.8
    assert sum(found.values()) == pytest.approx(1)
    bars = figures.importances(made.facts)["data"][0]
    assert bars["y"] == ["width", "lr"]
    assert bars["x"] == pytest.approx([found["width"], found["lr"]])


SEVERAL = {"name": "random", "metric": ["loss", "speed"], "smaller_is_better": [True, False], "max_trials": 300}


def test_two_metrics_have_a_front_and_importances_of_the_first(tmp_path):
    pytest.importorskip("sklearn")
    width = {"width": {"type": "int", "minval": 1, "maxval": 8}}
    made = Made(tmp_path, {**LR, **width}, SEVERAL)
    for trial in range(24):  # the loss is of lr alone, the speed of width alone
        number, size = -4 + (trial % 6) * 0.8, 1 + trial % 4
        loss = (number + 2) ** 2 + 1
        made.add(trial, "completed", {"lr": number, "width": size}, [(1, 9.0), (2, loss)], second=[0.0, float(size)])
    assert list(made.facts.importances) == ["lr", "width"]
    assert made.facts.importances["lr"] > 0.8
    figure = figures.front(made.facts)
    rest, front = figure["data"]
    least = min((-4 + place * 0.8 + 2) ** 2 + 1 for place in range(6))
    best = {(x, y) for x, y in zip(front["x"], front["y"], strict=True)}
    assert (least, max(y for x, y in best if x == least)) in best
    every = [*zip(rest["x"], rest["y"], strict=True), *best]
    assert len(rest["x"]) + len(front["x"]) == 24
    for x, y in every:
        beaten = any(a <= x and b >= y and (a, b) != (x, y) for a, b in every)
        assert beaten == ((x, y) not in best)
    assert [figure["layout"][axis]["title"] for axis in ("xaxis", "yaxis")] == ["loss", "speed"]


def test_a_metric_that_is_not_finite_has_no_place_among_two(tmp_path):
    made = Made(tmp_path, LR, SEVERAL)
    made.add(0, "completed", {"lr": -1.0}, [(1, 1.0)], second=[math.inf])
    made.add(1, "stopped", {"lr": -2.0}, [(1, math.nan)], second=[1.0])
    made.add(2, "running", {"lr": -3.0})
    assert figures.front(made.facts) is None


def test_importances_give_the_reason_why_they_are_missing(three, tmp_path, monkeypatch):
    assert three.facts.importances == "They need 4 completed trials with a finite metric; there are 1."
    made = Made(tmp_path, LR)
    for trial in range(4):
        made.add(trial, "completed", {"lr": -trial}, [(1, 1.0)])
    assert made.facts.importances == "All completed trials have the same metric."
    made.add(4, "completed", {"lr": -4}, [(1, 2.0)])
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert "scikit-learn, which is not installed" in made.facts.importances


def test_rungs_count_the_trials_that_reached_them(tmp_path):
    made = Made(tmp_path, LR, ASHA)  # 12 trials with rungs 1, 4, 16, and 4 with 4, 16
    for trial, reached in enumerate((1, 1, 2, 3)):
        written = {f"score:{rung}": 1.0 for rung in range(reached)}
        written |= {f"decision:{rung}": "train" if rung < reached - 1 else "stop" for rung in range(reached)}
        more = {"bracket": 0, "rung": 0}
        made.add(trial, "stopped", {"lr": -1.0 - trial / 10}, [(1, 1.0)], more=more, attributes=written)
    found = [(one.bracket, one.length, one.reached, one.trials) for one in made.facts.rungs]
    assert found == [(0, 1, 4, 4), (0, 4, 2, 4), (0, 16, 1, 4), (1, 4, 0, 0), (1, 16, 0, 0)]
    assert [one.rungs for one in made.facts.rows] == [(1, 3), (1, 3), (2, 3), (3, 3)]


def test_attempts_at_the_same_time_are_in_different_rows_of_their_worker(tmp_path):
    made = Made(tmp_path, LR)
    for trial, (began, ended) in enumerate(((0, 10), (5, 20), (12, 15))):
        made.add(trial, "completed", {"lr": -1.0 - trial}, [(1, 1.0)], seconds=(began, ended))
    made.add(3, "failed", {"lr": 0.0}, seconds=(0, 4), worker="two")
    spans = [(one.trial, one.worker, one.lane) for one in made.facts.spans]
    assert spans == [(0, "one", 0), (2, "one", 0), (1, "one", 1), (3, "two", 0)]
    figure = figures.gantt(made.facts)
    done, failed = figure["data"]
    assert (done["x"], done["y"]) == ([10_000, 3_000, 15_000], [0, 0, 1])
    assert (done["base"][0], failed["y"]) == (NOON.isoformat(), [2])
    assert figure["layout"]["yaxis"]["ticktext"] == ["one", "two"]


def test_failures_have_the_last_lines_of_their_logs(three):
    folder = three.folder.attempt(1, 0)
    folder.mkdir(parents=True)
    lines = [f"2026-01-02T12:00:00.000Z 0 line {number}\n" for number in range(15)]
    (folder / "log.txt").write_text("".join([*lines, "2026-01-02T12:00:01.000Z 0 postgres://me:abc@host\n"]))
    (failure,) = three.facts.failures
    assert (failure.trial, failure.attempt, failure.outcome) == (1, 0, "failed")
    expected = [f"2026-01-02T12:00:00.000Z 0 line {number}" for number in range(6, 15)]
    assert list(failure.lines) == [*expected, "2026-01-02T12:00:01.000Z 0 postgres://me:***@host"]


def test_secrets_are_masked(tmp_path):
    made = Made(tmp_path, {"api_key": {"type": "categorical", "vals": ["abc", "def"]}})
    made.add(0, "completed", {"api_key": 1}, [(1, 1.0)])
    (axis,) = made.facts.axes
    assert (axis.categories, axis.at(made.facts.rows[0].trial.hparams)) == (("***",), 0)
