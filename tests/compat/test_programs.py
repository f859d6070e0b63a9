"""Programs modelled on real projects print the same figures as with the real Lightning 2.6."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat import record
from tests.compat.recorded_programs import differences
from tests.processes import programs

SAME = 1e-5  # two processors with the same instructions may still add up in another order
CLOSE = 1e-4  # with another torch, or other instructions of the processor
DOCUMENTED = Path(__file__).parents[2] / "docs" / "differences.md"
RATES = "It logs once per optimizer step."
# What differs by decision: places of a program's figures, and the sentence of docs/differences.md.
DIFFERENT = {
    "training/schedules": {"/one cycle/monitored/lr-SGD": RATES},
}


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
    assert not differences(expected, {"a": [1.0 + 1e-6, {"b": 2}], "c": "x", "d": None}, SAME)
    found = differences(expected, {"a": [1.0001, {"b": 2.0}], "c": "x", "e": 1}, SAME)
    assert sorted(place for place, _ in found) == ["/a/0", "/a/1/b", "/d", "/e"]
    assert differences([1], [1, 2], SAME) == [("", "1 values there, 2 here")]
