"""Promoting: the set rule and the incremental rule agree, and full searches."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightlib.experiment.searchers.brackets import bracket_of_rungs
from lightlib.experiment.searchers.promoting import due, is_complete, owed
from lightlib.experiment.searchers.scores import WORST
from lightlib.experiment.searchers.simulate import simulate

EIGHT = [0.50, 0.40, 0.60, 0.30, 0.45, 0.20, 0.70, 0.10]


class Incremental:
    """One rung of asynchronous successive halving, as it is defined: by the values before and after an insertion."""

    def __init__(self, divisor):
        self.divisor, self.values, self.trials, self.promoted = divisor, [], [], set()

    def insert(self, trial, value):
        before = math.floor(len(self.values) / self.divisor)
        after = math.floor((len(self.values) + 1) / self.divisor)
        place = sum(other <= value for other in self.values)
        self.values.insert(place, value)
        self.trials.insert(place, trial)
        if place < after:
            chosen = trial
        elif after != before and self.trials[before] not in self.promoted:
            chosen = self.trials[before]
        else:
            return []
        self.promoted.add(chosen)
        return [chosen]


@given(
    st.lists(st.one_of(st.integers(0, 5), st.just(WORST), st.floats(-1, 1)), max_size=60),
    st.one_of(st.integers(2, 6), st.floats(1.01, 7)),
)
def test_the_set_rule_gives_the_promotions_of_the_incremental_rule(sequence, divisor):
    rung, values, promoted = Incremental(divisor), {}, set()
    for trial, value in enumerate(sequence):
        expected = rung.insert(trial, value)
        values[trial] = value
        found = owed(values, promoted, divisor)
        assert found == expected
        promoted.update(found)


def test_the_incremental_rule_is_no_trivial_one():
    rung = Incremental(2)
    assert [rung.insert(trial, value) for trial, value in enumerate(EIGHT)] == [[], [1], [], [3], [], [5], [], [7]]
    late = Incremental(2)
    assert [late.insert(trial, value) for trial, value in enumerate([0.1, 0.2, 0.3, 0.4])] == [[], [0], [], [1]]


class TestOwed:
    def test_the_best_come_first(self):
        assert owed({0: 0.5, 1: 0.1, 2: 0.3, 3: 0.9, 4: 0.7, 5: 0.2}, (), 2) == [1, 5, 2]
        assert owed({0: 0.5, 1: 0.1, 2: 0.3, 3: 0.9, 4: 0.7, 5: 0.2}, {5}, 2) == [1, 2]

    def test_the_first_of_equal_ones_is_better(self):
        assert owed({4: 0.5, 2: 0.5, 3: 0.5, 1: 0.5}, (), 2) == [4, 2]

    def test_nan_is_worst(self):
        assert owed({0: math.nan, 1: 7.0, 2: -math.inf, 3: 8.0}, (), 2) == [1, 3]

    def test_too_few(self):
        assert owed({0: 0.5, 1: 0.1}, (), 3) == []
        assert owed({}, (), 3) == []

    def test_values_that_leave_the_rung_do_not_count(self):
        values = {0: 0.5, 1: 0.4, 2: 0.6, 3: 0.3}
        del values[3]
        assert owed(values, {1}, 2) == []


class TestDue:
    def test_the_highest_rung_comes_first(self):
        rungs = [{0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4, 4: 0.05, 5: 0.9}, {0: 0.1, 1: 0.2}, {}]
        assert due(rungs, {0: 1, 1: 1, 2: 0, 3: 0, 4: 0, 5: 0}, (), 2) == [(0, 2), (4, 1)]

    def test_nothing_is_promoted_from_the_top_or_twice(self):
        assert due([{0: 0.1, 1: 0.2}, {0: 0.1}], {0: 1, 1: 0}, (), 2) == []
        assert due([{0: 0.1, 1: 0.2}, {}], {0: 1, 1: 0}, (), 2) == []  # trains to the rung now

    def test_trials_that_ended_count_but_do_not_continue(self):
        assert due([{0: 0.1, 1: 0.2}, {}], {0: 0, 1: 0}, {0}, 2) == []
        assert due([{0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}, {}], {0: 0, 1: 0, 2: 0, 3: 0}, {0}, 2) == [(1, 1)]


def test_a_bracket_is_complete_when_nothing_is_outstanding():
    assert is_complete(12, 12, 0)
    assert not is_complete(12, 11, 0)
    assert not is_complete(12, 12, 1)


def search(values, **settings):
    bracket = bracket_of_rungs(3, len(values), 9000, divisor=3, max_concurrent_trials=settings.pop("concurrent", 12))
    assert bracket.lengths == (1000, 3000, 9000)
    found = simulate([bracket], lambda trial, _: values[trial], divisor=3, stop_once=False, **settings)
    return list(found.trained.values())


class TestSearches:
    def test_eight_trials_one_after_another(self):
        bracket = bracket_of_rungs(3, 8, 8, divisor=2, max_concurrent_trials=1)
        found = simulate([bracket], lambda trial, _: EIGHT[trial], divisor=2, stop_once=False)
        assert found.promotions == [1, 3, 3, 5, 5, 7, 7]
        assert list(found.trained.values()) == [2, 4, 2, 8, 2, 8, 2, 8]
        assert found.duration == found.units == 36
        assert [list(rung) for rung in found.rungs[0]] == [list(range(8)), [1, 3, 5, 7], [3, 5, 7]]

    @pytest.mark.parametrize("concurrent", [1, 12])
    def test_twelve_trials_worse_and_worse(self, concurrent):
        assert search(range(12), concurrent=concurrent) == [9000] + [3000] * 3 + [1000] * 8

    def test_equal_trials(self):
        assert search([1.0] * 12) == [9000] + [3000] * 3 + [1000] * 8

    def test_one_that_fails_counts_as_the_worst(self):
        assert search(range(12), failures={2: 3000}) == [9000] + [3000] * 3 + [1000] * 8
        worst = [9000, 1000, 1000, 3000, 3000, 3000] + [1000] * 6
        assert search([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], failures={1: 1000, 2: 1000}) == worst
        assert search([0, 97, 98, 3, 4, 5, 6, 7, 8, 9, 10, 11]) == worst

    def test_early_trials_are_promoted_from_a_few(self):
        values = [0.10, 0.11, 0.12, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09]
        expected = [3000, 1000, 1000, 9000, 3000, 3000, 3000] + [1000] * 5
        assert search(values) == search(values, failures={2: 1000}) == expected

    def test_one_rung(self):
        bracket = bracket_of_rungs(1, 4, 9000, divisor=3)
        found = simulate([bracket], lambda trial, _: trial, divisor=3, stop_once=False)
        assert (list(found.trained.values()), found.promotions) == ([9000] * 4, [])

    def test_nothing_continues_when_all_fail(self):
        assert search([0.0] * 12, failures=dict.fromkeys(range(12), 1)) == [1000] * 12
