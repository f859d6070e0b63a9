"""The repository holds only files that people wrote, none that a run, a test or a tool left."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.architecture.rules import ROOT

LEFT_BY_RUNS = {".ckpt", ".pt", ".log", ".prof", ".pid", ".lock", ".pyc", ".tmp"}
FOLDERS_OF_RUNS = {"checkpoints", "lightning_logs", "mlruns", "wandb", "__pycache__"}


@pytest.mark.processes
def test_git_holds_no_output_of_a_run() -> None:
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git repository (a source archive)")
    files = [Path(name) for name in listed.stdout.splitlines()]
    left = [str(path) for path in files if path.suffix in LEFT_BY_RUNS or FOLDERS_OF_RUNS & set(path.parts[:-1])]
    assert not left, f"these are outputs of a run: git rm {' '.join(left)}"
