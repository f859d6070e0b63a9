"""Previews: trials of each length, units, texts, and mistakes."""

from __future__ import annotations

import json

import pytest

from lightlib.errors import MisconfigurationException, UnknownNameError
from lightlib.experiment.searchers.preview import preview

TABLE = [
    ((500, 64, 4, 5, 16), "standard", {1: 258, 4: 151, 16: 69, 64: 22}, 3374),
    ((500, 64, 4, 5, 16), "aggressive", {1: 375, 4: 94, 16: 24, 64: 7}, 1583),
    ((500, 64, 4, 5, 16), "conservative", {1: 248, 4: 144, 16: 67, 64: 41}, 4520),
    ((16, 16, 4, 5, 16), "standard", {1: 9, 4: 5, 16: 2}, 61),
    ((64, 100, 4, 5, 16), "standard", {1: 34, 6: 20, 25: 7, 100: 3}, 629),
    ((100, 937, 4, 5, 16), "standard", {14: 53, 58: 30, 234: 13, 937: 4}, 9272),
    ((10, 900, 3, 10, 5), "standard", {100: 5, 300: 3, 900: 2}, 3200),
]


@pytest.mark.parametrize(("numbers", "mode", "per_length", "units"), TABLE)
def test_adaptive_asha(numbers, mode, per_length, units):
    trials, length, divisor, max_rungs, concurrent = numbers
    plan = preview(
        "adaptive_asha",
        max_trials=trials,
        max_length=length,
        mode=mode,
        divisor=divisor,
        max_rungs=max_rungs,
        max_concurrent_trials=concurrent,
    )
    assert plan.trials_per_length == per_length
    assert list(plan.trials_per_length) == sorted(plan.trials_per_length)
    assert plan.units == units
    assert plan.trials == trials
    assert plan.units_without_stopping == trials * length


@pytest.mark.parametrize("stop_once", [True, False])
def test_the_simulated_units_are_near_those_of_a_search(stop_once):
    plan = preview("adaptive_asha", max_trials=500, max_length=64, stop_once=stop_once)
    assert 3374 < plan.units_simulated < 4300
    assert plan.units_without_stopping == 32000


@pytest.mark.parametrize(
    ("name", "settings", "per_length"),
    [
        ("single", {}, {900: 1}),
        ("random", {"max_trials": 7}, {900: 7}),
        ("grid", {"max_trials": 4, "max_concurrent_trials": 0}, {900: 4}),
        ("tpe", {"max_trials": 10}, {900: 10}),
        ("tpe", {"max_trials": 10, "divisor": 3, "stopping": True, "max_rungs": 10}, {100: 5, 300: 3, 900: 2}),
        ("async_halving", {"max_trials": 12, "divisor": 3, "num_rungs": 3}, {100: 8, 300: 3, 900: 1}),
        ("halving", {"max_trials": 12, "divisor": 3, "num_rungs": 3, "max_rungs": 2}, {100: 8, 300: 3, 900: 1}),
        ("halving", {"max_trials": 10, "divisor": 3, "max_rungs": 10}, {100: 5, 300: 3, 900: 2}),
        ("adaptive_asha", {"max_trials": 12, "divisor": 3, "bracket_rungs": [3]}, {100: 8, 300: 3, 900: 1}),
    ],
)
def test_other_searchers(name, settings, per_length):
    plan = preview(name, max_length=900, **settings)
    assert plan.trials_per_length == per_length
    assert plan.units == sum(length * trials for length, trials in per_length.items())


def test_searchers_without_chance_are_simulated_exactly():
    assert preview("random", max_trials=7, max_length=900).units_simulated == 6300
    assert preview("halving", max_trials=10, max_length=900, divisor=3, max_rungs=10).units_simulated == 3200


def test_the_text():
    plan = preview(
        "adaptive_asha", max_trials=500, max_length=64, unit="epochs", seconds_per_unit=60, slots_per_trial=2
    )
    simulated = plan.units_simulated
    assert plan.as_text() == (
        "adaptive_asha: 500 trials in 3 brackets\n"
        "\n"
        "bracket  trials  concurrent  rungs (epochs)\n"
        "      1     344           6    1  4  16  64\n"
        "      2     114           5       4  16  64\n"
        "      3      42           5          16  64\n"
        "\n"
        "trained (epochs)  trials\n"
        "               1     258\n"
        "               4     151\n"
        "              16      69\n"
        "              64      22\n"
        "\n"
        "planned       3,374 epochs\n"
        f"simulated     {simulated:,} epochs, {simulated / 32000:.0%} of full trials\n"
        "full trials  32,000 epochs\n"
        f"time          {simulated * 2 / 60:.1f} slot-hours"
    )


def test_the_text_of_one_trial():
    text = preview("single", max_length=1000).as_text()
    assert text.startswith("single: 1 trial in 1 bracket\n")
    assert "full trials  1,000 batches" in text
    assert "slot-hours" not in text


def test_the_json():
    plan = preview("adaptive_asha", max_trials=16, max_length=16, seconds_per_unit=3600)
    assert json.loads(plan.as_json()) == {
        "searcher": "adaptive_asha",
        "unit": "batches",
        "trials": 16,
        "brackets": [
            {"trials": 12, "concurrent": 8, "lengths": [1, 4, 16]},
            {"trials": 4, "concurrent": 8, "lengths": [4, 16]},
        ],
        "trials_per_length": [{"length": 1, "trials": 9}, {"length": 4, "trials": 5}, {"length": 16, "trials": 2}],
        "units": 61,
        "units_simulated": plan.units_simulated,
        "units_without_stopping": 256,
        "slot_hours": float(plan.units_simulated),
    }
    assert json.loads(preview("single", max_length=5).as_json())["slot_hours"] is None


@pytest.mark.parametrize(
    ("name", "settings", "lines"),
    [
        (
            "random",
            {},
            (
                "The searcher random has no max_trials.",
                "max_trials, an int >= 1.",
                "searcher: {name: random, max_trials: 16, ...}",
            ),
        ),
        (
            "async_halving",
            {"max_trials": 3},
            (
                "The searcher async_halving has no num_rungs.",
                "num_rungs, an int >= 1.",
                "searcher: {name: async_halving, num_rungs: 3, ...}",
            ),
        ),
        (
            "adaptive_asha",
            {"max_trials": 3, "divisor": 0},
            ("searcher(divisor=0).", "a finite number > 1.", "divisor: 4"),
        ),
    ],
)
def test_mistakes(name, settings, lines):
    with pytest.raises(MisconfigurationException) as caught:
        preview(name, max_length=9, **settings)
    what, expected, fix = lines
    assert str(caught.value) == f"{what}\n  Expected: {expected}\n  Fix: {fix}"


def test_an_unknown_searcher():
    with pytest.raises(UnknownNameError) as caught:
        preview("adaptive_ahsa", max_trials=3, max_length=9)
    what, expected, fix = str(caught.value).split("\n")
    assert what == "Unknown searcher 'adaptive_ahsa'. Did you mean 'adaptive_asha'?"
    assert expected.startswith("  Expected: one of 'adaptive_asha', 'async_halving', 'cmaes'")
    assert fix == "  Fix: searcher: {name: adaptive_asha, ...}"
