"""A handful of changes of the elastic campaign, and the differences that its comparison finds."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.campaigns.campaign_elastic import ALL, EVENTS, drawn, summary
from tests.campaigns.elastic_checks import Course, changes_of, course_of, plain_course, problems
from tests.campaigns.elastic_program import NOTES, Elastic
from tests.campaigns.elastic_takeover import seconds
from tests.campaigns.runner import Ended
from tests.campaigns.test_kill import campaign

HOW = Elastic("ddp", (2, 1), "shrunk")


@pytest.mark.processes
def test_runs_that_change_their_size_use_each_sample_once(tmp_path: Path) -> None:
    names = [HOW.name, Elastic("fsdp", (2, 1), "shrunk", format="directory", double=True).name]
    ended = campaign("elastic", "--changes", 4, "--only", *names, "--folder", tmp_path / "runs")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ", 0 wrong" in ended.stdout


@pytest.mark.slow
@pytest.mark.processes
def test_a_spare_agent_trains_when_the_first_one_is_killed(tmp_path: Path) -> None:
    assert seconds("warm spare", tmp_path / "run") > 0  # it returns at the spare's first optimizer step


def test_every_configuration_has_a_name_that_leads_back_to_it() -> None:
    assert len({how.name for how in ALL}) == len(ALL)
    for how in ALL:
        assert Elastic.named(how.name) == how
    assert {(how.strategy, how.launcher) for how in ALL} >= {
        ("fsdp", "slurm"),
        ("hsdp", "torchrun"),
        ("ddp", "variables"),
    }


def test_a_seed_draws_the_same_kills_again() -> None:
    ended = Ended(seconds=2.0, counts=dict.fromkeys(EVENTS, 9))
    one, other = ([drawn(HOW, 2, ended, random.Random(seed), 0.7) for _ in range(9)] for seed in (3, 3))
    assert one == other
    many = [drawn(HOW, 2, ended, random.Random(seed), 0.7) for seed in range(200)]
    assert {kill.trigger.event for kill in many if kill.trigger} == {*EVENTS} - {"setup", "instant"}
    assert {kill.rank for kill in many} == {None, 0, 1}


@pytest.fixture(scope="module")
def plain() -> Course:
    return plain_course(HOW)


def test_the_plain_loop_uses_each_sample_once(plain: Course) -> None:
    assert problems(HOW, plain, plain) == ([], 0.0)
    assert len(plain.ids) == HOW.steps
    assert sorted(sum(plain.ids[: HOW.steps // 2], [])) == list(range(96))  # noqa: RUF017  eight lists
    assert plain.ids[0] != plain.ids[HOW.steps // 2]


def _lost(course: Course) -> None:
    course.ids[3][0] = course.ids[3][1]


def _in_another_step(course: Course) -> None:
    course.ids[3][0], course.ids[4][0] = course.ids[4][0], course.ids[3][0]


def _another_loss(course: Course) -> None:
    course.losses[5] *= 1 + 2e-6


def _another_rate(course: Course) -> None:
    course.rates[-1] += 1e-6


def _a_validation_less(course: Course) -> None:
    del course.validations[8]


def _another_metric(course: Course) -> None:
    course.validations[8]["val_loss"] *= 1 + 2e-6


def _other_weights(course: Course) -> None:
    course.weights["model.0.weight"] = course.weights["model.0.weight"] + 1e-5


def _no_weights(course: Course) -> None:
    course.weights.clear()


def _a_step_more(course: Course) -> None:
    for values in (course.ids, course.losses, course.rates, course.epochs):
        values.append(values[-1])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_lost, "samples of step 3 (12, 12 expected)"),
        (_in_another_step, "samples of step 4 (12, 12 expected)"),
        (_another_loss, "losses of step 5"),
        (_another_rate, "rates of step 15"),
        (_a_validation_less, "validations after [4, 8, 12, 16] steps expected, [4, 12, 16] found"),
        (_another_metric, "val_loss after 8 steps"),
        (_other_weights, "weights of model.0.weight"),
        (_no_weights, "weights: ["),
        (_a_step_more, "16 steps expected, 17 found"),
    ],
)
def test_what_differs_is_found(plain: Course, change: Any, text: str) -> None:
    found = copy.deepcopy(plain)
    change(found)
    lines, _ = problems(HOW, plain, found)
    assert any(text in line for line in lines), lines


def test_only_the_last_attempt_of_a_step_counts(tmp_path: Path) -> None:
    lines = [(1, 0, [1, 2], 2), (1, 1, [3], 2), (1, 1, [4], 2), (2, 1, [5, 6], 1), (2, 2, [7, 8], 1)]
    notes = [
        {"attempt": attempt, "step": step, "epoch": 0, "ids": ids, "loss": 1.0, "rate": 0.1, "world": world}
        for attempt, step, ids, world in lines
    ]
    notes.append({"attempt": 2, "step": 2, "epoch": 0, "validation": {"val_loss": 1.0}})
    (tmp_path / NOTES).write_text("".join(f"{json.dumps(note)}\n" for note in notes))
    course = course_of(tmp_path)
    assert course.ids == [[1, 2], [5, 6], [7, 8]]
    assert course.validations == {2: {"val_loss": 1.0}}
    assert changes_of(course) == {"2 to 1": 1}


def test_the_table_counts_starts_and_phases() -> None:
    case = {"name": HOW.name, "kills": [["SIGKILL to all", "train"]], "changes": {"2 to 1": 1}, "starts": 2}
    lines = list(summary([{**case, "error": 2e-7, "problems": []}, {**case, "error": 0.0, "problems": ["hung"]}]))
    assert lines[1].split() == [HOW.name, "4", "1", "1", "2.0e-07"]
    assert lines[2].split() == ["all", "4", "1", "1", "2.0e-07"]
    assert lines[3:] == ["phases: train 2", "signals: SIGKILL 2", "changes between steps that count: 2 to 1 2"]


def test_weights_of_another_dtype_are_compared() -> None:
    one = Course(weights={"model.a": torch.ones(2)}, losses=[1.0])
    other = Course(weights={"model.a": torch.ones(2, dtype=torch.float64) * (1 + 1e-4)}, losses=[1.0])
    lines, error = problems(HOW, one, other)
    assert "weights of model.a (relative error 1.0e-04)" in lines
    assert 0.9e-4 < error < 1.1e-4
