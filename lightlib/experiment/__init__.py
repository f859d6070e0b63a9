"""Experiments: hyperparameter searches in which each trial is a fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy
from lightlib.experiment import custom
from lightlib.experiment.current import CurrentTrial, current
from lightlib.experiment.custom import Action, Continue, Create, Pause, Searcher, SearchTrial, Shutdown, Stop

if TYPE_CHECKING:
    from lightlib.experiment.parameters import Categorical
    from lightlib.experiment.ranges import Double, Int, Log, LogInt
    from lightlib.experiment.work.function import search
    from lightlib.experiment.work.handle import Experiment, open, run  # noqa: A004  experiment.open reads as it is meant
else:
    __getattr__, __dir__ = lazy.attributes(
        __name__,
        {
            "Experiment": "work.handle",
            "open": "work.handle",
            "run": "work.handle",
            "search": "work.function",
            "Categorical": "parameters",
            **dict.fromkeys(("Double", "Int", "Log", "LogInt"), "ranges"),
            "CurrentTrial": "current",
            "current": "current",
            **dict.fromkeys(custom.__all__, "custom"),
        },
    )

__all__ = [
    "Action",
    "Categorical",
    "Continue",
    "Create",
    "CurrentTrial",
    "Double",
    "Experiment",
    "Int",
    "Log",
    "LogInt",
    "Pause",
    "SearchTrial",
    "Searcher",
    "Shutdown",
    "Stop",
    "current",
    "open",
    "run",
    "search",
]
