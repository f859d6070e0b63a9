"""Durations as text: their forms, and those that are refused."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lightlib.callbacks.durations import parsed, seconds
from lightlib.errors import ArgumentTypeError, MisconfigurationException


@pytest.mark.parametrize(
    ("text", "number", "unit"),
    [
        ("10ep", 10, "ep"),
        ("1.5 epochs", 1.5, "ep"),
        ("100st", 100, "st"),
        ("1 step", 1, "st"),
        ("500ba", 500, "ba"),
        ("1_000 samples", 1000, "sp"),
        ("1e9tok", 10**9, "tok"),
        ("2.5E+3Tok", 2500, "tok"),
        ("2h", 7200, "s"),
        ("0.5 d", 43200, "s"),
        ("90min", 5400, "s"),
        ("30sec", 30, "s"),
    ],
)
def test_forms(text, number, unit):
    duration = parsed("Trainer", "max_duration", text)
    assert (duration.number, duration.unit) == (number, unit)
    assert parsed("Trainer", "max_duration", str(duration)) == duration


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (10, ArgumentTypeError, r"max_duration=10 \(int\)"),
        ("10", MisconfigurationException, "a number and a unit"),
        ("-1ep", MisconfigurationException, "a number and a unit"),
        ("1e9toks", MisconfigurationException, r"unknown unit 'toks'. Did you mean 'tok'"),
        ("1.5tok", MisconfigurationException, "a whole number of tokens"),
        ("0ep", MisconfigurationException, "a number above 0"),
        ("1e400ep", MisconfigurationException, "a finite number"),
        ("1e30h", MisconfigurationException, "less than 1e9 days"),
    ],
)
def test_refused_forms(text, error, message):
    with pytest.raises(error, match=message):
        parsed("Trainer", "max_duration", text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("2h", 7200), ("01:02:03:04", 93784), (timedelta(minutes=2), 120), ({"hours": 1, "seconds": 1}, 3601)],
)
def test_times(value, expected):
    assert seconds("Timer", "duration", value) == expected


@pytest.mark.parametrize("value", ["2ep", "12:00", {}, {"hour": 1}, timedelta(seconds=-1), "1e400h", "1e30d"])
def test_refused_times(value):
    with pytest.raises(MisconfigurationException, match="Timer"):
        seconds("Timer", "duration", value)
