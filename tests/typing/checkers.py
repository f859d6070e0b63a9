"""Runs the type checkers on programs that use lightlib."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import programs

ROOT = Path(__file__).parents[2]
PYRIGHT = Path(sys.executable).with_name("basedpyright")
# Of names and paths that do not exist.
RULES = ("reportAttributeAccessIssue", "reportMissingImports", "reportMissingModuleSource")


def mypy(files, strict=True):
    """Return the errors of mypy: the file, the line and the message of each."""
    cache = ROOT / ".mypy_cache" / "programs"
    options = ["--config-file", os.devnull, "--cache-dir", cache, *["--strict"] * strict]
    text = output_of([sys.executable, "-m", "mypy", *options], files)
    found = re.findall(r"^(.+?):(\d+): error: (.*)$", text, re.MULTILINE)
    return [(file, int(line), what) for file, line, what in found]


def pyright(files, strict=True):
    """Return the errors of basedpyright: the file, the line and the message of each."""
    rules = dict.fromkeys(["reportUnnecessaryTypeIgnoreComment"] if strict else RULES, "error")
    settings = json.dumps({"typeCheckingMode": "strict" if strict else "off", **rules})
    Path("settings.json").write_text(settings, encoding="utf-8")
    text = output_of([PYRIGHT, "--pythonpath", sys.executable, "-p", "settings.json", "--outputjson"], files)
    return [
        (one["file"], one["range"]["start"]["line"] + 1, one["message"])
        for one in json.loads(text)["generalDiagnostics"]
        if one["severity"] == "error"
    ]


def output_of(command, files):
    """Return the output of a checker, which finds lightlib as an installed package with py.typed."""
    done = subprocess.run(
        [*map(str, command), *map(str, files)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=programs.HANGS_AFTER,
    )
    assert done.returncode == 1, done.stdout + done.stderr  # it has found errors
    return done.stdout


CHECKERS = [
    pytest.param(mypy, id="mypy"),
    pytest.param(
        pyright,
        id="pyright",
        marks=pytest.mark.skipif(not PYRIGHT.exists(), reason="needs basedpyright, which the extra dev installs"),
    ),
]
