"""Experiments: hyperparameter searches in which each trial is a fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy
from lightlib.experiment.current import CurrentTrial, current

if TYPE_CHECKING:
    from lightlib.experiment.work.handle import Experiment, open, run  # noqa: A004  experiment.open reads as it is meant
else:
    __getattr__, __dir__ = lazy.attributes(
        __name__,
        {
            "Experiment": "work.handle",
            "open": "work.handle",
            "run": "work.handle",
            "CurrentTrial": "current",
            "current": "current",
        },
    )

__all__ = ["CurrentTrial", "Experiment", "current", "open", "run"]
