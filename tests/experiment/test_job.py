"""A job is the same after JSON."""

from __future__ import annotations

import pytest

pytest.importorskip("optuna")

from lightlib.experiment.job import Job


def test_a_job_is_the_same_after_json():
    job = Job(1, 2, "a", "b", {"lr": 0.1}, "val_loss", command=("x",), earlier=("c",), best=0.5)
    assert Job.from_json(job.as_json()) == job
