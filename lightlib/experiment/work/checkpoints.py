"""Checkpoints of trials: those that there are, and those that the experiment does not keep."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightlib.callbacks.checkpoint.policy import Saved, retained
from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.messages import Messages
from lightlib.experiment.work.folder import ExperimentFolder


@dataclass(frozen=True)
class TrialCheckpoint:
    """A checkpoint of a trial.

    Attributes:
        trial: The number of the trial.
        path: A file or a folder.
        step: The batches after which it was saved.
        metric: The metric of a validation after as many; None if there was none.
    """

    trial: int
    path: Path
    step: int
    metric: float | None

    @property
    def bytes(self) -> int:
        """Its size."""
        files = self.path.rglob("*") if self.path.is_dir() else [self.path]
        return sum(one.stat().st_size for one in files if one.is_file())


def messages_of(folder: ExperimentFolder, trial: int, kind: str) -> list[dict[str, Any]]:
    """Return the messages of a kind that a trial has sent, over all its attempts; paths are absolute."""
    written = ((path, one) for path in folder.attempts(trial) for one in Messages(path).new() if one["kind"] == kind)
    return [{**one, "path": str(path / one["path"])} if "path" in one else one for path, one in written]


def checkpoints_of(folder: ExperimentFolder, trial: int, metric: str) -> list[TrialCheckpoint]:
    """Return the checkpoints of a trial that there are, oldest first.

    Args:
        folder: Of the experiment.
        trial: The number of the trial.
        metric: Of the searcher.
    """
    values = {one["step"]: one["metrics"].get(metric) for one in messages_of(folder, trial, "validated")}
    steps: dict[str, int] = {}
    for one in messages_of(folder, trial, "checkpoint"):
        steps.pop(one["path"], None)  # it was replaced
        steps[one["path"]] = one["step"]
    found = [TrialCheckpoint(trial, Path(path), step, values.get(step)) for path, step in steps.items()]
    return [one for one in found if one.path.exists()]


def collect(folder: ExperimentFolder, config: ExperimentConfig, ended: Collection[int], *, at_end: bool) -> list[Path]:
    """Delete the checkpoints of ended trials that no rule of `checkpoint_storage` keeps.

    Args:
        folder: Of the experiment.
        config: It.
        ended: The numbers of trials that will not continue.
        at_end: Whether the experiment has ended, and these are all its trials. Else the best ones of the experiment are
            not known yet, and with `save_experiment_best` each checkpoint that may be one of them stays.

    Returns:
        The deleted files and folders.
    """
    rules = config.checkpoint_storage
    found = [one for trial in ended for one in checkpoints_of(folder, trial, config.searcher.metrics[0])]
    saved = {one.path: Saved(str(one.trial), (age,), one.metric) for age, one in enumerate(found)}
    best = rules.save_experiment_best if at_end else len(saved) * bool(rules.save_experiment_best)
    mode = "min" if config.searcher.directions[0] else "max"
    garbage = sorted(saved.keys() - retained(saved, best, rules.save_trial_best, rules.save_trial_latest, mode))
    for path in garbage:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return garbage
