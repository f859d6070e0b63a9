"""Programs modelled on real projects print the same figures as with the real Lightning 2.6."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from tests.compat import record
from tests.processes import programs

# Two roundings of a float32: lightlib adds up means in double precision.
SAME = 2.5e-7
CLOSE = 1e-4  # with another torch, or other instructions of the processor
DOCUMENTED = Path(__file__).parents[2] / "docs" / "differences.md"
X_AXIS = "The x-axis is `global_step`, the number of completed steps"
EPOCH = "It has, like every other row."
RATES = "It logs once per optimizer step."
STOPPED = "`current_epoch` stays, though `on_train_epoch_end` is called."
# What differs by decision: places of a program's figures, and the sentence of docs/differences.md.
DIFFERENT = {
    "callbacks/logged_metrics": {r"/tables/.*/step": X_AXIS, r"/tables/.*/(pre-)?epoch": EPOCH},
    "callbacks/own_logger": {r"/rows/\d+/2": X_AXIS},
    "training/iterable_dataset": {"/end/0": STOPPED},
    "training/schedules": {"/one cycle/monitored/lr-SGD": RATES},
    "training/limits": {"/(by steps|stop)/end/0": STOPPED},
}


def differences(expected: object, found: object, tolerance: float, place: str = "") -> list[tuple[str, str]]:
    """Return the places at which two nested values differ, and how."""
    if isinstance(expected, dict) and isinstance(found, dict):
        only = [(f"{place}/{key}", "only there") for key in expected if key not in found]
        only += [(f"{place}/{key}", "only here") for key in found if key not in expected]
        shared = [key for key in expected if key in found]
        inner = (differences(expected[key], found[key], tolerance, f"{place}/{key}") for key in shared)
        return [*only, *chain.from_iterable(inner)]
    if isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return [(place, f"{len(expected)} values there, {len(found)} here")]
        pairs = enumerate(zip(expected, found, strict=True))
        inner = (differences(one, other, tolerance, f"{place}/{index}") for index, (one, other) in pairs)
        return list(chain.from_iterable(inner))
    if isinstance(expected, float) and isinstance(found, float):
        same = math.isclose(expected, found, rel_tol=tolerance, abs_tol=tolerance / 10)
    else:
        same = (type(expected), expected) == (type(found), found)
    return [] if same else [(place, f"{expected} there, {found} here")]


@pytest.fixture(scope="module")
def recorded():
    """Return the recorded figures and the tolerance with which they hold on this machine."""
    content = record.recorded()
    here = subprocess.check_output([sys.executable, "-c", record.MACHINE], text=True).strip()
    return content["programs"], SAME if content["machine"] == here else CLOSE


@pytest.mark.processes
@pytest.mark.parametrize("name", record.names())
def test_the_figures_are_those_of_lightning(name, recorded):
    figures, tolerance = recorded
    ran = programs.run("-m", "lightlib", "compat", "run", record.PROGRAMS / f"{name}.py")
    assert ran.returncode == 0, ran.stderr
    found = differences(figures[name], json.loads(ran.stdout.splitlines()[-1]), tolerance)
    documented = DIFFERENT.get(name, {})
    unknown = [f"{place}: {how}" for place, how in found if not any(re.fullmatch(one, place) for one in documented)]
    assert not unknown, "\n".join(unknown)
    for pattern, sentence in documented.items():
        assert any(re.fullmatch(pattern, place) for place, _ in found), f"{pattern} does not differ any more"
        assert sentence in DOCUMENTED.read_text("utf-8")


def test_every_program_is_recorded():
    assert sorted(record.recorded()["programs"]) == record.names()
    assert len(record.names()) >= 20


def test_a_difference_is_found_wherever_it_is():
    expected = {"a": [1.0, {"b": 2}], "c": "x", "d": None}
    assert not differences(expected, {"a": [1.0 + 1e-7, {"b": 2}], "c": "x", "d": None}, SAME)
    found = differences(expected, {"a": [1.00001, {"b": 2.0}], "c": "x", "e": 1}, SAME)
    assert sorted(place for place, _ in found) == ["/a/0", "/a/1/b", "/d", "/e"]
    assert differences([1], [1, 2], SAME) == [("", "1 values there, 2 here")]
