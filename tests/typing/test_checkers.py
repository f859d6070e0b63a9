"""Type checkers find the mistakes of programs that use lightlib, and none in a program without any."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lightlib
from tests.processes import programs

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLANTED_ERRORS = HERE / "planted_errors.py"
RIGHT = [HERE / "realistic.py", HERE / "right_forms.py"]
PROGRAMS = [PLANTED_ERRORS, *RIGHT]
PLANTED = [
    number
    for number, line in enumerate(PLANTED_ERRORS.read_text(encoding="utf-8").splitlines(), 1)
    if line.endswith("# planted")
]
PYRIGHT = Path(sys.executable).with_name("basedpyright")


def output_of(*command):
    """Return the output of a checker, which finds lightlib as an installed package with py.typed."""
    done = subprocess.run(
        [*map(str, command), *map(str, PROGRAMS)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=programs.HANGS_AFTER,
    )
    assert done.returncode == 1, done.stdout + done.stderr  # it has found errors
    return done.stdout


def by_line(found):
    """The messages by the place of the error, in one text for each program."""
    return "\n".join(f"{Path(file).name}:{line}: {message}" for file, line, message in sorted(found))


def check(found):
    wrong = by_line(one for one in found if Path(one[0]) != PLANTED_ERRORS)
    assert not wrong
    assert sorted({line for _, line, _ in found}) == PLANTED, by_line(found)


def test_as_many_errors_are_planted_as_are_marked():
    assert len(PLANTED) == 110


@pytest.mark.processes
def test_mypy_finds_the_planted_errors_and_no_others():
    cache = ROOT / ".mypy_cache" / "programs"
    text = output_of(sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--cache-dir", cache)
    check(
        [(file, int(line), what) for file, line, what in re.findall(r"^(.+?):(\d+): error: (.*)$", text, re.MULTILINE)]
    )


@pytest.mark.processes
@pytest.mark.skipif(not PYRIGHT.exists(), reason="needs basedpyright, which the extra dev installs")
def test_pyright_finds_the_planted_errors_and_no_others(tmp_path):
    (tmp_path / "strict.json").write_text('{"typeCheckingMode": "strict"}')
    text = output_of(PYRIGHT, "--pythonpath", sys.executable, "-p", "strict.json", "--outputjson")
    check(
        [
            (one["file"], one["range"]["start"]["line"] + 1, one["message"])
            for one in json.loads(text)["generalDiagnostics"]
            if one["severity"] == "error"
        ]
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    ("program", "last"), [(RIGHT[0], "torch.Size([16]) 0.1 1"), (RIGHT[1], "('val', 'test') True")]
)
def test_programs_without_errors_run(program, last):
    ended = programs.run(program)
    assert ended.returncode == 0, ended.stderr
    assert last in ended.stdout


def test_the_marker_of_types_is_part_of_the_package():
    assert Path(lightlib.__file__).with_name("py.typed").is_file()
