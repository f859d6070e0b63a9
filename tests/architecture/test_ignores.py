"""Every comment that silences a checker names the rule, and is read by the checker."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.rules import ROOT

RUFF = Path(sys.executable).with_name("ruff")
BARE = re.compile(
    r"# *(type: *ignore(?!\[[a-z])|pyright: *ignore(?!\[report)|mypy: *ignore|(ruff: *)?noqa(?!: *[A-Z]+\d))"
)
OF_MYPY = re.compile(r"# *type: *ignore")
SETTINGS = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[tool.mypy]")[2]
# A test in tests/typing checks the programs there.
CHECKED = (*ast.literal_eval(re.findall(r"^files = (.*)$", SETTINGS, re.MULTILINE)[0]), "tests/typing")
FILES = [
    path
    for place in ("lightlib", "lightlib_lightning", "scripts", "tests", "benchmarks", "examples", "conftest.py")
    for path in sorted((ROOT / place).rglob("*.py") if (ROOT / place).is_dir() else [ROOT / place])
]


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a file with the numbers of their lines."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def wrong_ignores(name: str, text: str) -> list[str]:
    """Return the faults of a file that is called `name` in the repository."""
    is_checked = name.startswith(CHECKED)
    return [
        f"{name}:{number}: {comment} names no rule; write the code that the checker prints in brackets."
        if BARE.search(comment)
        else f"{name}:{number}: {comment} is read by no checker; remove it."
        for number, comment in comments(text)
        if BARE.search(comment) or (not is_checked and OF_MYPY.search(comment))
    ]


def test_every_ignore_names_its_rule_and_has_a_reader() -> None:
    assert len(FILES) > 1000
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in FILES}
    wrong = [
        fault
        for name, text in texts.items()
        if "ignore" in text or "noqa" in text
        for fault in wrong_ignores(name, text)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "comment",
    [
        "type: ignore",
        "type:ignore # reason",
        "pyright: ignore",
        "noqa",
        "noqa  a reason",
        "ruff: noqa",
        "mypy: ignore-errors",
    ],
)
def test_an_ignore_without_a_rule_is_found(comment: str) -> None:
    (fault,) = wrong_ignores("lightlib/file.py", f"x = 1\ny = x  # {comment}\n")
    assert fault.startswith(f"lightlib/file.py:2: # {comment} names no rule")


@pytest.mark.parametrize(
    "comment",
    ["type: ignore[arg-type]", "pyright: ignore[reportAny]", "noqa: S101", "noqa: S101  why", "ruff: noqa: S101"],
)
def test_an_ignore_with_a_rule_is_right(comment: str) -> None:
    assert wrong_ignores("lightlib/file.py", f"x = 1  # {comment}\ny = '# noqa'\n") == []


def test_an_ignore_that_no_checker_reads_is_found() -> None:
    text = "x = 1  # type: ignore[arg-type]\n"
    assert wrong_ignores("tests/core/test_a.py", text) == [
        "tests/core/test_a.py:1: # type: ignore[arg-type] is read by no checker; remove it."
    ]
    assert wrong_ignores("tests/architecture/test_a.py", text) == []


@pytest.mark.processes
def test_mypy_reports_an_ignore_that_is_not_needed(tmp_path: Path) -> None:
    path = tmp_path / "unused.py"
    path.write_text("x: int = 1  # type: ignore[assignment]\n", encoding="utf-8")
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path)]
    command = [sys.executable, "-m", "mypy", *settings, str(path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert 'unused.py:1: error: Unused "type: ignore" comment  [unused-ignore]' in printed


@pytest.mark.processes
@pytest.mark.skipif(not RUFF.exists(), reason="needs ruff, which the extra dev installs")
@pytest.mark.parametrize("place", ["lightlib", "scripts", "tests/core", "benchmarks", "examples"])
def test_ruff_reports_a_noqa_that_is_not_needed(place: str) -> None:
    command = [str(RUFF), "check", "--no-cache", "--stdin-filename", f"{place}/unused.py", "-"]
    printed = subprocess.run(
        command, cwd=ROOT, input='"""A file."""\n\nX = 1  # noqa: S101\n', capture_output=True, text=True, check=False
    ).stdout
    assert "RUF100" in printed
