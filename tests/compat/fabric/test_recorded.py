"""Loops with strategies of Fabric's kind, compared with Lightning 2.6.6 (recorded.json)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RECORDED = json.loads((HERE / "recorded.json").read_text(encoding="utf-8"))


def run(case, devices):
    """Return the result that a program prints with lightlib."""
    program = HERE / "programs" / "main.py"
    command = [sys.executable, "-m", "lightlib", "compat", "run", str(program), case, devices]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert results, done.stdout + done.stderr
    return json.loads(results[0].removeprefix("RESULT "))


@pytest.mark.processes
@pytest.mark.parametrize("case", sorted(RECORDED))
def test_a_program_makes_lightnings_calls_and_gets_its_numbers(case):
    assert run(*case.split()) == RECORDED[case]
