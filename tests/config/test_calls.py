"""From a YAML file to the Trainer: counted calls of lightlib."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

import lightlib
from lightlib import errors
from lightlib.cli import LightningCLI
from tests.processes.warm import ROOT

FOLDERS = tuple(errors.FOLDERS)
YAML = "trainer:\n  max_epochs: 3\nmodel:\n  width: 4\n"
BUDGET = 870  # with about 370 questions of jsonargparse for names that lightlib has not: 12 for each argument


class Net(lightlib.Module):
    def __init__(self, width: int = 8):
        super().__init__()
        self.layer = torch.nn.Linear(width, 1)


def calls_of(function):
    """Return how often each function of lightlib was called; expressions within functions are left out."""
    counts = Counter()

    def profile(frame, event, _):
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        if event == "call" and not code.co_name.startswith("<") and code.co_filename.startswith(FOLDERS):
            counts[code.co_filename, name] += 1

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return counts


def calls_from_yaml():
    """Return the calls of lightlib from ``config.yaml`` in the working folder to the Trainer, without imports."""
    Path("config.yaml").write_text(YAML)
    made = []

    def run():
        made.append(LightningCLI(Net, args=["--config", "config.yaml"], run=False))

    run()  # imports
    counts = calls_of(run)
    assert (made[-1].trainer.max_epochs, made[-1].model.layer.in_features) == (3, 4)
    return counts


@pytest.mark.processes
def test_a_key_of_a_file_reaches_the_trainer_in_few_calls(tmp_path):
    program = "from tests.config import test_calls as calls; print(*calls.calls_from_yaml().items(), sep='\\n')"
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "PYTHONPYCACHEPREFIX")}
    ran = subprocess.run(  # alone: what a test or the terminal leaves behind would be counted
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**kept, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    counts = [int(line.rstrip(")").rpartition(", ")[2]) for line in ran.stdout.splitlines()]
    assert len(counts) > 100
    assert sum(counts) <= BUDGET, ran.stdout


@pytest.mark.parametrize("package", [lightlib, lightlib.strategies])
def test_a_question_for_an_absent_name_costs_one_call(package):
    assert not hasattr(package, "NoSuchName")
    counts = calls_of(lambda: hasattr(package, "NoSuchName"))
    assert sum(counts.values()) == 1, counts


def test_an_import_of_an_absent_name_names_the_nearest_also_after_questions():
    assert not hasattr(lightlib, "Trainr")
    with pytest.raises(ImportError, match="Did you mean 'Trainer'"):
        from lightlib import Trainr  # noqa: F401
    with pytest.raises(AttributeError, match=r"^module 'lightlib' has no attribute 'Trainr'$"):
        _ = lightlib.Trainr
