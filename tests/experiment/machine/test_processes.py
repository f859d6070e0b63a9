"""Which attempts are forked from the warm process, and which start as programs or containers."""

from __future__ import annotations

import multiprocessing

import pytest

pytest.importorskip("optuna")

from lightlib.experiment.job import FUNCTION, Job
from lightlib.experiment.machine import processes

CALL = ("python3", "-m", FUNCTION, "tune:parabola")


@pytest.mark.skipif("forkserver" not in multiprocessing.get_all_start_methods(), reason="needs forks")
@pytest.mark.parametrize(
    ("count", "job", "expected"),
    [
        (1, {}, "Forked"),
        (1, {"command": CALL}, "Forked"),
        (1, {"preload": False}, "Program"),
        (1, {"preload": False, "command": CALL}, "Program"),
        (2, {}, "Program"),
        (1, {"command": ("python3", "train.py")}, "Program"),
        (1, {"container": ("docker", "run")}, "Contained"),
    ],
)
def test_how_an_attempt_starts(monkeypatch, count, job, expected):
    for name in ("Forked", "Program", "Contained"):
        monkeypatch.setattr(processes, name, lambda _, name=name: name)
    assert processes.start(Job(0, 0, "", "", {}, "val_loss", **job), count) == expected
