"""The policy of three numbers: the documented table, and its rules."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightlib.callbacks.checkpoint.policy import Saved, retained

# Number of a checkpoint, its run and its metric; without one there was no validation. Less is better.
EXPERIMENT = {
    1: ("one", None),
    2: ("one", None),
    3: ("one", 0.6),
    4: ("one", 0.5),
    5: ("one", 0.4),
    6: ("two", None),
    7: ("two", 0.2),
    8: ("two", 0.3),
    9: ("two", None),
    10: ("two", None),
}
SAVED = {number: Saved(run, (number,), metric) for number, (run, metric) in EXPERIMENT.items()}


@pytest.mark.parametrize(
    ("numbers", "kept"),
    [
        ((0, 0, 0), set()),
        ((2, 0, 0), {8, 7}),
        ((5, 0, 0), {8, 7, 5, 4, 3}),
        ((0, 1, 0), {7, 5}),
        ((0, 3, 0), {8, 7, 5, 4, 3}),
        ((0, 0, 1), {10, 5}),
        ((0, 0, 3), {10, 9, 8, 5, 4, 3}),
        ((2, 1, 0), {8, 7, 5}),
        ((2, 0, 1), {10, 8, 7, 5}),
        ((0, 1, 1), {10, 7, 5}),
        ((2, 1, 1), {10, 8, 7, 5}),
    ],
)
def test_the_table(numbers, kept):
    assert retained(SAVED, *numbers) == kept
    mirrored = {
        number: Saved(one.run, one.age, None if one.metric is None else -one.metric) for number, one in SAVED.items()
    }
    assert retained(mirrored, *numbers, mode="max") == kept


def test_nan_is_no_metric_and_equals_keep_the_older():
    saved = {"a": Saved("r", (1,), math.nan), "b": Saved("r", (2,), 1.0), "c": Saved("r", (3,), 1.0)}
    assert retained(saved, 0, 1, 0) == {"b"}
    assert retained(saved, 3, 0, 0) == {"b", "c"}


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 9)), max_size=20),
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 3)),
)
def test_removing_at_once_keeps_what_removing_at_the_end_keeps(history, numbers):
    saved = {age: Saved(run, (age,), metric) for age, (run, metric) in enumerate(history)}
    now: dict[int, Saved] = {}
    for age, one in saved.items():
        now[age] = one
        now = {name: now[name] for name in retained(now, *numbers)}
    assert set(now) == retained(saved, *numbers)
