"""Runs an attempt as a program, once per process: ``python -m lightlib.experiment.trial JOB``."""

from __future__ import annotations

import sys
from pathlib import Path

from lightlib.experiment.job import Job
from lightlib.experiment.trial.program import run

if __name__ == "__main__":
    run(Job.from_json(Path(sys.argv[1]).read_text()))
