"""Type checkers find the mistakes of programs that use lightlib, and none in programs without any."""

from __future__ import annotations

from pathlib import Path

import pytest

import lightlib
import lightlib_lightning
from tests.processes import programs
from tests.typing import checkers

HERE = Path(__file__).parent
PLANTED_ERRORS = HERE / "planted_errors.py"
RIGHT = {  # programs without mistakes, and what they print
    "realistic": "torch.Size([16]) 0.1 1",
    "right_forms": "('val', 'test') True",
    "served_paths": "[rank: 0] ready",
}
PLANTED = [
    number
    for number, line in enumerate(PLANTED_ERRORS.read_text(encoding="utf-8").splitlines(), 1)
    if line.endswith("# planted")
]


def by_line(found):
    """The messages by the place of the error, in one text for each program."""
    return "\n".join(f"{Path(file).name}:{line}: {message}" for file, line, message in sorted(found))


def test_as_many_errors_are_planted_as_are_marked():
    assert len(PLANTED) == 121


@pytest.mark.processes
@pytest.mark.parametrize("checker", checkers.CHECKERS)
def test_checkers_find_the_planted_errors_and_no_others(checker):
    found = checker([PLANTED_ERRORS, *(HERE / f"{name}.py" for name in RIGHT)])
    wrong = by_line(one for one in found if Path(one[0]) != PLANTED_ERRORS)
    assert not wrong
    assert sorted({line for _, line, _ in found}) == PLANTED, by_line(found)


@pytest.mark.processes
@pytest.mark.parametrize("name", RIGHT)
def test_programs_without_errors_run(name):
    ended = programs.run(HERE / f"{name}.py")
    assert ended.returncode == 0, ended.stderr
    assert RIGHT[name] in ended.stdout


def test_the_marker_of_types_is_part_of_the_package():
    assert Path(lightlib.__file__).with_name("py.typed").is_file()
    assert Path(lightlib_lightning.__file__).with_name("py.typed").is_file()
