"""Left: what remains of a Trainer's calls, for its copies and for a process that started others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightlib.core.metrics.results import Results
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from lightlib.core.progress.states import TrainerState
from lightlib.core.resume.identity import RunIdentity

__all__ = ["Left", "Metrics", "results_of"]

Metrics = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]


@dataclass(frozen=True)
class Left:
    """What pickle and deepcopy keep of a Trainer's calls.

    Loaders, optimizers and all that belongs to a process stay behind: a further fit makes them again.

    Attributes:
        module, datamodule: Of the last call.
        asked_path, loaded_path: The checkpoint that the user named for all calls, and the one that was loaded.
        state, interrupted: How the last call ended.
        identity: Which run it was.
        callbacks: The Trainer's.
        metrics: What was logged, as three dictionaries.
    """

    module: Module | None
    datamodule: DataModule | None
    asked_path: str | Path | None
    loaded_path: str | Path | None
    state: TrainerState
    interrupted: bool
    identity: RunIdentity
    callbacks: list[Any]
    metrics: Metrics


def results_of(metrics: Metrics) -> Results:
    """Return the results of a run that was not run here, of which the metrics alone are known."""
    results = Results()
    results.adopt(metrics)
    return results
