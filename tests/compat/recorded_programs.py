"""Runs programs with Lightning, to record their results, and with lightlib, to compare them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from tests.processes import programs

TOLERANCE = 1e-5  # two processors may add up in another order
MARK = "RESULT "  # begins the line of the result, in JSON


def recorded(folder: Path) -> dict[str, Any]:
    """Return the results in recorded.json, by case and number of processes."""
    file = folder / "recorded.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def record(folder: Path, cases: Iterable[tuple[str, int]]) -> None:
    """Run programs/main.py of a folder with the Lightning of this Python, and write recorded.json.

    Args:
        folder: The folder.
        cases: The names of the cases with their numbers of processes; those given on the command line are run.
    """
    results, wanted = recorded(folder), sys.argv[1:]
    for name, devices in cases:
        if wanted and name not in wanted:
            continue
        with tempfile.TemporaryDirectory() as place:
            command = [sys.executable, str(folder / "programs" / "main.py"), name, str(devices)]
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=300, check=False)
        results[f"{name} {devices}"] = _result(done)
        text = json.dumps(results, indent=1, sort_keys=True) + "\n"
        (folder / "recorded.json").write_text(text, encoding="utf-8")


def run(folder: Path, case: str) -> Any:
    """Return the result of a case of a folder's programs/main.py with lightlib."""
    name, devices = case.split()
    words = ("-m", "lightlib", "compat", "run", folder / "programs" / "main.py", name, devices)
    return _result(programs.run(*words, starts=int(devices) - 1))


def _result(done: subprocess.CompletedProcess[str]) -> Any:
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not lines:
        raise AssertionError(f"{done.args}:\n{done.stdout}\n{done.stderr}")
    return json.loads(lines[0].removeprefix(MARK))


def differences(
    expected: object, found: object, tolerance: float = TOLERANCE, place: str = ""
) -> list[tuple[str, str]]:
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
