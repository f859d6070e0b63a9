"""Brackets: their trials, concurrency and lengths, by mode, and mistakes in their settings."""

from __future__ import annotations

import itertools

import pytest

from lightlib.errors import MisconfigurationException, UnknownNameError
from lightlib.experiment.searchers.brackets import (
    Bracket,
    bracket_of_rungs,
    brackets,
    rung_lengths,
    split_concurrency,
    split_trials,
)

TABLE = [
    ((500, 64, 4, 5, 16), "standard", [((1, 4, 16, 64), 344, 6), ((4, 16, 64), 114, 5), ((16, 64), 42, 5)]),
    ((500, 64, 4, 5, 16), "aggressive", [((1, 4, 16, 64), 500, 16)]),
    (
        (500, 64, 4, 5, 16),
        "conservative",
        [((1, 4, 16, 64), 330, 4), ((4, 16, 64), 109, 4), ((16, 64), 41, 4), ((64,), 20, 4)],
    ),
    ((16, 16, 4, 5, 16), "standard", [((1, 4, 16), 12, 8), ((4, 16), 4, 8)]),
    ((64, 100, 4, 5, 16), "standard", [((1, 6, 25, 100), 45, 6), ((6, 25, 100), 14, 5), ((25, 100), 5, 5)]),
    ((100, 937, 4, 5, 16), "standard", [((14, 58, 234, 937), 70, 6), ((58, 234, 937), 22, 5), ((234, 937), 8, 5)]),
    ((10, 100, 4, 5, 2), "standard", [((25, 100), 7, 1), ((100,), 3, 1)]),
    ((10, 1000, 3, 5, 5), "conservative", [((111, 333, 1000), 7, 2), ((333, 1000), 2, 2), ((1000,), 1, 1)]),
]


@pytest.mark.parametrize(("numbers", "mode", "expected"), TABLE)
def test_brackets_by_mode(numbers, mode, expected):
    trials, length, divisor, max_rungs, concurrent = numbers
    found = brackets(trials, length, mode=mode, divisor=divisor, max_rungs=max_rungs, max_concurrent_trials=concurrent)
    assert found == [Bracket(*each) for each in expected]


def test_defaults():
    assert brackets(500, 64) == brackets(
        500, 64, mode="standard", divisor=4, max_rungs=5, bracket_rungs=(), max_concurrent_trials=16
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((20, 3, [3, 2, 1]), [12, 5, 3]),
        ((50, 3, [4, 3]), [35, 15]),
        ((50, 4, [3, 2]), [37, 13]),
        ((100, 4, [4, 3, 2]), [70, 22, 8]),
        ((4, 4, [5, 1, 1]), [2, 1, 1]),
        ((2, 4, [3, 2]), [1, 1]),
        ((5, 4, [5, 5, 1, 1, 1]), [1, 1, 1, 1, 1]),
    ],
)
def test_trials(arguments, expected):
    assert split_trials(*arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0, 3, [9, 3, 1]), [3, 3, 3]),
        ((11, 3, [9, 3, 1]), [4, 4, 3]),
        ((0, 4, [40, 10]), [10, 10]),
        ((1, 3, [9, 3, 1]), [1, 1, 1]),
    ],
)
def test_concurrency(arguments, expected):
    assert split_concurrency(*arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((3, 3, 9), (1, 3, 9)),
        ((4, 2, 10), (1, 2, 5, 10)),
        ((1, 3, 9), (9,)),
        ((3, 3, 900), (100, 300, 900)),
        ((3, 2.5, 100), (16, 40, 100)),
        ((4, 4, 10), (1, 1, 2, 10)),
    ],
)
def test_lengths_of_rungs(arguments, expected):
    assert rung_lengths(*arguments) == expected


@pytest.mark.parametrize(("length", "divisor", "rungs"), [(1000, 10, 4), (999, 10, 3), (243, 3, 6), (125, 5, 4)])
def test_a_power_of_the_divisor_has_all_its_rungs(length, divisor, rungs):
    found = brackets(10**6, length, divisor=divisor, max_rungs=9, mode="aggressive")
    assert len(found[0].lengths) == rungs
    assert found[0].lengths[0] == (1 if length != 999 else 9)


def test_rungs_of_each_bracket_may_be_given():
    assert brackets(100, 64, divisor=4, max_rungs=1, bracket_rungs=[2, 4, 3], mode="aggressive") == [
        Bracket((1, 4, 16, 64), 70, 6),
        Bracket((4, 16, 64), 22, 5),
        Bracket((16, 64), 8, 5),
    ]


def test_a_bracket_of_its_own():
    assert bracket_of_rungs(3, 12, 9000, divisor=3) == Bracket((1000, 3000, 9000), 12, 16)
    assert bracket_of_rungs(3, 12, 9000, divisor=3, max_concurrent_trials=0) == Bracket((1000, 3000, 9000), 12, 9)
    assert bracket_of_rungs(3, 5, 9000, divisor=3, max_concurrent_trials=0).concurrent == 5


def test_all_trials_are_given_out_and_no_more():
    modes = ("aggressive", "standard", "conservative")
    for trials, length, divisor, mode in itertools.product(range(1, 60), (1, 3, 64, 1000), (1.1, 2, 3, 4), modes):
        found = brackets(trials, length, divisor=divisor, mode=mode)
        assert sum(each.trials for each in found) == trials
        assert min(each.trials for each in found) >= 1
        assert {each.lengths[-1] for each in found} == {length}


@pytest.mark.parametrize(
    ("settings", "what", "expected", "fix"),
    [
        ({"max_trials": 0}, "searcher(max_trials=0).", "an int >= 1.", "max_trials: 16"),
        ({"max_trials": 2.5}, "searcher(max_trials=2.5 (float)).", "an int >= 1.", "max_trials: 16"),
        ({"max_length": None}, "searcher(max_length=None (NoneType)).", "an int >= 1.", "max_length: 16"),
        ({"divisor": 1}, "searcher(divisor=1).", "a finite number > 1.", "divisor: 4"),
        ({"divisor": "4"}, "searcher(divisor='4' (str)).", "a finite number > 1.", "divisor: 4"),
        ({"max_rungs": True}, "searcher(max_rungs=True (bool)).", "an int >= 1.", "max_rungs: 16"),
        (
            {"max_concurrent_trials": -1},
            "searcher(max_concurrent_trials=-1).",
            "an int >= 0.",
            "max_concurrent_trials: 16",
        ),
        (
            {"bracket_rungs": [2, 0]},
            "searcher(bracket_rungs=0).",
            "an int >= 1.",
            "bracket_rungs: [3, 2]",
        ),
        (
            {"max_trials": 2, "bracket_rungs": [3, 2, 1]},
            "bracket_rungs has 3 brackets, but max_trials is 2.",
            "at least one trial for each bracket.",
            "set max_trials to 3 or more, or remove brackets.",
        ),
    ],
)
def test_mistakes(settings, what, expected, fix):
    with pytest.raises(MisconfigurationException) as caught:
        brackets(**{"max_trials": 16, "max_length": 16, **settings})
    assert str(caught.value) == f"{what}\n  Expected: {expected}\n  Fix: {fix}"


def test_a_misspelt_mode():
    with pytest.raises(UnknownNameError) as caught:
        brackets(16, 16, mode="agressive")
    assert str(caught.value) == (
        "Unknown mode of searcher 'agressive'. Did you mean 'aggressive'?\n"
        "  Expected: one of 'aggressive', 'conservative', 'standard'.\n"
        "  Fix: mode: standard"
    )


def test_a_bracket_without_rungs():
    with pytest.raises(MisconfigurationException, match=r"searcher\(num_rungs=0\)"):
        bracket_of_rungs(0, 12, 9000)
