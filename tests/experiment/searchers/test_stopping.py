"""Stopping: the rule in one rung, reports that pass several rungs, and full searches."""

from __future__ import annotations

import math

import pytest

from lightlib.experiment.searchers.brackets import bracket_of_rungs
from lightlib.experiment.searchers.scores import WORST, score
from lightlib.experiment.searchers.simulate import simulate
from lightlib.experiment.searchers.stopping import Decision, continues, decide, place

EIGHT = [0.50, 0.40, 0.60, 0.30, 0.45, 0.20, 0.70, 0.10]


@pytest.mark.parametrize(
    ("value", "values", "expected"),
    [
        (1.2, [0.0, 1.5, 2.1], 1),
        (3.0, [0.0, 1.5, 2.0], 3),
        (-3.4, [-3.0, -2.0, -1.0], 0),
        (1.2, [], 0),
        (0.2, [0.1, 0.2, 0.2, 0.3], 1),  # before equal ones
        (math.nan, [0.1, WORST], 2),
        (math.inf, [0.1, WORST], 2),
        (-math.inf, [0.1], 1),
    ],
)
def test_the_place_of_a_value(value, values, expected):
    assert place(values, value) == expected


def test_scores():
    assert score(0.5) == 0.5
    assert score(0.5, smaller_is_better=False) == -0.5
    bad = (math.nan, math.inf, -math.inf)
    assert [score(value, flag) for value in bad for flag in (True, False)] == [WORST] * 6


@pytest.mark.parametrize(
    ("values", "value", "divisor", "expected"),
    [
        ([], 0.5, 3, True),
        ([0.5], 0.4, 3, True),
        ([0.5], 0.5, 3, True),
        ([0.5], 0.6, 3, False),
        ([0.1, 0.2, 0.3, 0.4, 0.5], 0.15, 3, True),  # place 1 of 6: two continue
        ([0.1, 0.2, 0.3, 0.4], 0.15, 3, False),  # place 1 of 5: one continues
        ([0.1, 0.2, 0.3, 0.4], 0.15, 2.5, True),
    ],
)
def test_the_best_continue(values, value, divisor, expected):
    assert continues(values, value, divisor) is expected


class TestReports:
    LENGTHS = (1, 3, 9)

    def decide(self, rungs, **report):
        return decide(rungs, self.LENGTHS, divisor=3, **report)

    def test_the_first_validation(self):
        assert self.decide([[], [], []], rung=0, step=1, value=0.5) == Decision("train", 1, range(1))

    def test_one_that_is_better_than_the_first(self):
        assert self.decide([[0.5], [], []], rung=0, step=1, value=0.4) == Decision("train", 1, range(1))

    def test_one_that_is_worse_than_the_first(self):
        assert self.decide([[0.5], [], []], rung=0, step=1, value=0.6) == Decision("stop", 0, range(1))

    def test_one_before_the_rung_counts_nowhere(self):
        assert self.decide([[0.5], [0.5], []], rung=1, step=2, value=0.6) == Decision("train", 1, range(1, 1))

    def test_one_may_pass_several_rungs(self):
        assert self.decide([[0.5], [], []], rung=0, step=4, value=0.4) == Decision("train", 2, range(2))
        assert self.decide([[0.5], [0.3], []], rung=0, step=4, value=0.4) == Decision("stop", 1, range(2))
        assert self.decide([[0.5], [0.4], []], rung=0, step=20, value=0.4) == Decision("complete", 2, range(3))

    def test_the_top_rung_completes_every_trial(self):
        assert self.decide([[], [], [0.1] * 9], rung=2, step=9, value=WORST) == Decision("complete", 2, range(2, 3))


class TestSearches:
    def test_eight_trials_one_after_another(self):
        bracket = bracket_of_rungs(3, 8, 8, divisor=2, max_concurrent_trials=1)
        found = simulate([bracket], lambda trial, _: EIGHT[trial], divisor=2)
        assert bracket.lengths == (2, 4, 8)
        assert list(found.trained.values()) == [8, 8, 2, 8, 2, 8, 2, 8]
        assert [sorted(rung.values()) for rung in found.rungs[0]] == [
            [0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.6, 0.7],
            [0.1, 0.2, 0.3, 0.4, 0.5],
            [0.1, 0.2, 0.3, 0.4, 0.5],
        ]
        assert found.duration == found.units == 46

    @pytest.mark.parametrize("concurrent", [1, 3, 10])
    def test_ten_trials_worse_and_worse(self, concurrent):
        bracket = bracket_of_rungs(3, 10, 900, divisor=3, max_concurrent_trials=concurrent)
        found = simulate([bracket], lambda trial, _: trial, divisor=3)
        assert bracket.lengths == (100, 300, 900)
        assert list(found.trained.values()) == [900] + [100] * 9

    @pytest.mark.parametrize("concurrent", [1, 3, 10])
    def test_ten_trials_better_and_better(self, concurrent):
        bracket = bracket_of_rungs(3, 10, 900, divisor=3, max_concurrent_trials=concurrent)
        found = simulate([bracket], lambda trial, _: -trial, divisor=3)
        assert list(found.trained.values()) == [900] * 10

    def test_equal_trials_all_continue(self):
        bracket = bracket_of_rungs(3, 10, 900, divisor=3)
        found = simulate([bracket], lambda *_: 0.5, divisor=3)
        assert list(found.trained.values()) == [900] * 10

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_trials_that_diverge_stop_at_once(self, value):
        bracket = bracket_of_rungs(3, 10, 900, divisor=3)
        found = simulate([bracket], lambda trial, _: value if trial else 1.0, divisor=3)
        assert list(found.trained.values()) == [900] + [100] * 9

    def test_a_failed_trial_counts_as_the_worst(self):
        bracket = bracket_of_rungs(3, 8, 8, divisor=2, max_concurrent_trials=1)
        failed = simulate([bracket], lambda trial, _: EIGHT[trial], divisor=2, failures={3: 4})
        worst = simulate([bracket], lambda t, n: math.nan if (t, n) == (3, 4) else EIGHT[t], divisor=2)
        assert list(failed.trained.values()) == list(worst.trained.values()) == [8, 8, 2, 4, 2, 8, 2, 8]
        assert failed.rungs == worst.rungs
        assert failed.rungs[0][1][3] == WORST

    def test_a_trial_that_fails_alone_does_not_continue(self):
        bracket = bracket_of_rungs(3, 1, 900, divisor=3)
        assert simulate([bracket], lambda *_: 0.5, divisor=3, failures={0: 50}).trained == {0: 100}
