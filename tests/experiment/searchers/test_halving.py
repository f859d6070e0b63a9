"""Halving over the ledger: workers die or sleep before any write, and rungs stay right."""

from __future__ import annotations

import pytest

pytest.importorskip("optuna")

from lightlib.experiment.ledger.attempt import Entry
from lightlib.experiment.ledger.ledger import LostAttempt
from lightlib.experiment.searchers import promoting
from lightlib.experiment.searchers.brackets import Bracket
from lightlib.experiment.searchers.halving import Halving
from tests.experiment.stores import Alive, Killed, memory, worker

BRACKETS = [Bracket((1, 2, 4), 6, 2), Bracket((2, 4), 3, 1)]
RULES = ("stopping", "promoting", "synchronous")
ENDS = {"complete": "completed", "stop": "stopped", "pause": "paused"}


def score(trial, length):
    return (trial * 7 % 10) / 10 + 1 / length


def halving(rule):
    return Halving(BRACKETS, 2, lambda trial, snapshot: Entry(trial), rule=rule)


def script(ledger, queue, source, metric=score):
    """Run attempts until there are none, as a worker does; training takes no time."""
    while (attempt := queue.next()) is not None:
        action = "train"
        while action == "train":
            course = source.course(ledger.snapshot(), attempt.trial)
            length = source.length(course)
            action = course.action or source.decide(ledger, attempt, metric(attempt.trial, length))
        value = metric(attempt.trial, length) if action == "complete" else None
        ledger.end(attempt, ENDS[action], value)


def check(ledger, queue, source, rule, at):
    snapshot = ledger.snapshot()
    assert queue.is_done(), at
    assert all(one.state == "ended" for one in snapshot.attempts), at
    courses = {trial: source.course(snapshot, trial) for trial in snapshot.chains}
    assert len(courses) == 9, at
    for number, bracket in enumerate(BRACKETS):
        own = {trial: course for trial, course in courses.items() if course.bracket == number}
        assert len(own) == bracket.trials, at
        rungs = []
        for rung, length in enumerate(bracket.lengths):
            found = {trial: snapshot.attribute(trial, f"score:{rung}") for trial in own if own[trial].rung >= rung}
            assert found == {trial: score(trial, length) for trial in found}, at
            rungs.append(found)
        if rule == "promoting":
            assert promoting.due(rungs, {trial: course.rung for trial, course in own.items()}, (), 2) == [], at
    top = {trial for trial, course in courses.items() if course.action == "complete"}
    assert {trial for trial in courses if snapshot.state_of(trial) == "completed"} == top, at
    for chain in snapshot.chains.values():
        assert [one.ended_as for one in chain].count("completed") <= 1, at


def writes(rule):
    source = halving(rule)
    ledger, queue = worker(memory(), Alive(), source=source)
    script(ledger, queue, source)
    check(ledger, queue, source, rule, "no death")
    return ledger.storage.writes


@pytest.mark.parametrize(
    ("rule", "trained"),
    [
        ("stopping", [8, 8, 2, 8, 2, 8, 2, 8]),
        ("promoting", [2, 4, 2, 8, 2, 8, 2, 8]),
        ("synchronous", [2, 4, 2, 4, 2, 8, 2, 8]),
    ],
)
def test_eight_trials_one_after_another(rule, trained):
    """The lengths are those of Determined's tests, with constant metrics."""
    metrics = (0.5, 0.4, 0.6, 0.3, 0.45, 0.2, 0.7, 0.1)
    source = Halving([Bracket((2, 4, 8), 8, 1)], 2, lambda trial, snapshot: Entry(trial), rule=rule)
    ledger, queue = worker(memory(), Alive(), source=source)
    script(ledger, queue, source, lambda trial, length: metrics[trial])
    snapshot = ledger.snapshot()
    assert [source.length(source.course(snapshot, trial)) for trial in range(8)] == trained


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("second", [None, 0, 2, 5])
def test_a_death_at_any_write(rule, second):
    for at in range(writes(rule)):
        shared, beats, source = memory(), Alive(), halving(rule)
        for name, death in (("one", at), ("two", second), ("three", None)):
            ledger, queue = worker(shared, beats, name, death, source)
            try:
                script(ledger, queue, source)
            except Killed:
                beats.living.discard(name)
        check(ledger, queue, source, rule, at)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dead", [False, True], ids=["slow", "taken for dead"])
@pytest.mark.parametrize("steps", [1, 3, 6, 1000])
def test_a_worker_that_sleeps_before_any_write(rule, dead, steps):
    """Another worker takes `steps` writes in between, and then it continues."""
    for at in range(writes(rule)):
        shared, beats, source = memory(), Alive(), halving(rule)

        def sleep(shared=shared, beats=beats, source=source):
            if dead:
                beats.living.discard("one")
            ledger, queue = worker(shared, beats, "two", steps, source)
            try:
                script(ledger, queue, source)
            except Killed:
                beats.living.discard("two")
            beats.living.add("one")

        ledger, queue = worker(shared, beats, "one", at, source, then=sleep)
        while True:
            try:
                script(ledger, queue, source)
                break
            except LostAttempt:
                pass
        beats.living.clear()
        ledger, queue = worker(shared, beats, "three", source=source)
        script(ledger, queue, source)
        check(ledger, queue, source, rule, at)
