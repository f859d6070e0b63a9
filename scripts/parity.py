"""Writes docs/parity.md from docs/parity.json: features, their objects, and the tests that prove them.

python scripts/parity.py --write    write the page
python scripts/parity.py            fail if an object or a test is missing, or the page is out of date
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if not __package__:
    sys.path.insert(0, str(ROOT))
DATA, PAGE = ROOT / "docs" / "parity.json", ROOT / "docs" / "parity.md"
HEAD = """# Features of other trainers, and where they are here

Features of ColossalAI, LiBai, detectron2, MMEngine, pytorch-accelerated and Determined, and the wants of users of
today's trainers (B14), with the object that serves each and the files of the tests that prove it, with the number of
tests in each. A row stands here only with both.
`scripts/parity.py` writes this page from [parity.json](parity.json), which has the names of the tests. A test checks
that every object and every test exists.
"""
GROUPS = {
    "B1": "Module", "B2": "Trainer and loops", "B3": "Callbacks", "B4": "Metrics and evaluation",
    "B5": "Optimizers and schedules", "B6": "Data", "B7": "Precision", "B8": "Strategies, launchers, devices",
    "B9": "Checkpoints", "B10": "Experiments and search", "B11": "Logging and visualization",
    "B12": "Command line and configuration", "B13": "Randomness, debugging, memory, compilation",
    "B14": "Models and training of today",
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or check it; return the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    rows = read()
    wrong = [problem for row in rows for problem in problems(row)]
    if not wrong and "--write" in words:
        PAGE.write_text(page(rows), "utf-8")
    elif not wrong and (not PAGE.exists() or PAGE.read_text("utf-8") != page(rows)):
        wrong = ["docs/parity.md is out of date: run `python scripts/parity.py --write`"]
    for problem in wrong:
        print(problem, file=sys.stderr)
    return int(bool(wrong))


def read() -> list[dict[str, Any]]:
    """Return the rows, in the order of their numbers."""
    rows: list[dict[str, Any]] = json.loads(DATA.read_text("utf-8"))
    return sorted(rows, key=lambda row: tuple(map(int, re.findall(r"\d+", row["row"]))))


def problems(row: dict[str, Any]) -> list[str]:
    """Return the objects and tests of a row that do not exist, or that it lacks."""
    found = [f"{row['row']}: no {kind}" for kind in ("objects", "tests") if not row[kind]]
    found += [f"{row['row']}: there is no object {name}" for name in row["objects"] if not _is_object(name)]
    found += [f"{row['row']}: {name} is there twice" for name, count in Counter(row["tests"]).items() if count > 1]
    return found + [f"{row['row']}: there is no test {name}" for name in row["tests"] if not _is_test(name)]


def _is_object(path: str) -> bool:
    """Whether an object can be imported: a module, or an attribute of one."""
    names = path.split(".")
    for length in range(len(names), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(names[:length]))
        except ModuleNotFoundError:
            continue
        for name in names[length:]:
            value = getattr(value, name, None)
        return value is not None
    return False


def _is_test(path: str) -> bool:
    """Whether a test function exists: ``tests/a/test_b.py::test_c`` or ``…::TestC::test_d``."""
    file, _, name = path.partition("::")
    return name in _tests_of(file)


@cache
def _tests_of(file: str) -> frozenset[str]:
    if not (ROOT / file).is_file():
        return frozenset()
    names = set()
    for node in ast.parse((ROOT / file).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return frozenset(name for name in names if name.rpartition("::")[2].startswith("test_"))


def page(rows: list[dict[str, Any]]) -> str:
    """Return the text of docs/parity.md."""
    lines = [HEAD]
    for group, title in GROUPS.items():
        of_group = [row for row in rows if row["row"].partition(".")[0] == group]
        if of_group:
            lines += [f"## {title}", "", "| | feature | objects | tests |", "|---|---|---|---|"]
            lines += [_line(row) for row in of_group] + [""]
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    objects = ", ".join(f"`{name.removeprefix('lightlib.')}`" for name in row["objects"])
    files = Counter(name.partition("::")[0] for name in row["tests"])
    tests = ", ".join(f"[{Path(file).stem.removeprefix('test_')}](../{file}) {count}" for file, count in files.items())
    return f"| {row['row']} | {row['feature']} | {objects} | {tests} |"


if __name__ == "__main__":
    sys.exit(main())
