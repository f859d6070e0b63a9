"""docs/parity.md: every row has objects and tests, and all of them exist."""

from __future__ import annotations

import pytest

from scripts import parity

ROWS = parity.read()
GOOD = {"row": "B1.2", "feature": "f", "objects": ["lightlib.Module"], "tests": ["tests/docs/test_parity.py::test_x"]}


@pytest.mark.parametrize("row", ROWS, ids=[row["row"] for row in ROWS])
def test_the_objects_and_tests_of_a_row_exist(row):
    assert parity.problems(row) == []


def test_the_page_is_current_and_no_row_is_there_twice():
    assert parity.PAGE.read_text("utf-8") == parity.page(ROWS), "run `python scripts/parity.py --write`"
    assert len({row["row"] for row in ROWS}) == len(ROWS)


def test_no_feature_is_left_out():
    numbers = {"B1": 10, "B2": 12, "B3": 8, "B4": 7, "B5": 11, "B6": 7, "B7": 6, "B8": 12, "B9": 8}
    numbers |= {"B10": 11, "B11": 6, "B12": 4, "B13": 6, "B14": 16}
    expected = {f"{group}.{i}" for group, count in numbers.items() for i in range(1, count + 1)}
    assert {row["row"] for row in ROWS} == expected


def test_what_is_missing_is_found():
    row = {"row": "B9.9", "feature": "f", "objects": ["lightlib.Modul"], "tests": ["tests/absent.py::test_a"]}
    assert parity.problems(row) == [
        "B9.9: there is no object lightlib.Modul", "B9.9: there is no test tests/absent.py::test_a"
    ]  # fmt: skip
    assert parity.problems({**row, "objects": [], "tests": []}) == ["B9.9: no objects", "B9.9: no tests"]
    assert parity.problems(GOOD) == ["B1.2: there is no test tests/docs/test_parity.py::test_x"]


class TestOneName:
    def test_in_two_classes(self):
        """The next class has a test of this name: each is known by its class, and neither without one."""
        here = "tests/docs/test_parity.py"
        places = ("TestOneName::", "TestTheSameName::", "", "TestNone::")
        names = [f"{here}::{place}test_in_two_classes" for place in places]
        row = {**GOOD, "tests": names}
        assert parity.problems(row) == [f"B1.2: there is no test {name}" for name in names[2:]]
        assert parity.problems({**GOOD, "tests": names[:1] * 2}) == [f"B1.2: {names[0]} is there twice"]


class TestTheSameName:
    def test_in_two_classes(self):
        """The page has the number of tests of a file, so that one of two tests cannot vanish unseen."""
        row = next(row for row in ROWS if row["row"] == "B2.12")
        twice = [name for name in row["tests"] if name.endswith("::test_it_acts_once")]
        assert len(twice) == 2
        line = next(line for line in parity.page(ROWS).splitlines() if line.startswith("| B2.12 |"))
        in_file = [name for name in row["tests"] if name.startswith("tests/core/run/parts/test_requests.py")]
        assert f"[requests](../tests/core/run/parts/test_requests.py) {len(in_file)}" in line
