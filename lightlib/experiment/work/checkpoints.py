"""Checkpoints of trials: those that there are, and those that the experiment does not keep."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from lightlib.callbacks.checkpoint.policy import Saved, retained
from lightlib.checkpoint.storage import filesystem
from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.messages import Messages
from lightlib.experiment.store import Location, Store
from lightlib.experiment.work.folder import ExperimentFolder


@dataclass(frozen=True)
class TrialCheckpoint:
    """A checkpoint of a trial.

    Attributes:
        trial: The number of the trial.
        path: A file or a folder, or the URL of one in a store.
        step: The batches after which it was saved.
        metric: The metric of a validation after as many; None if there was none.
    """

    trial: int
    path: Location
    step: int
    metric: float | None

    @property
    def bytes(self) -> int:
        """Its size."""
        return filesystem.size_of(self.path)


def messages_of(folder: ExperimentFolder, trial: int, kind: str) -> list[dict[str, Any]]:
    """Return the messages of a kind that a trial has sent, over all its attempts."""
    return [message for path in folder.attempts(trial) for message in Messages(path).new() if message["kind"] == kind]


def saved_of(folder: ExperimentFolder, store: Store, trial: int) -> list[tuple[int, Location]]:
    """Return the step and the place of each checkpoint that a trial has saved, also of those that were deleted."""
    return [
        (message["step"], store.saved(path, message["path"], stored=message.get("stored", False)))
        for path in folder.attempts(trial)
        for message in Messages(path).new()
        if message["kind"] == "checkpoint"
    ]


def checkpoints_of(folder: ExperimentFolder, store: Store, trial: int, metric: str) -> list[TrialCheckpoint]:
    """Return the checkpoints of a trial that there are, oldest first.

    Args:
        folder: Of the experiment.
        store: Of its checkpoints.
        trial: The number of the trial.
        metric: Of the searcher.
    """
    values = {message["step"]: message["metrics"].get(metric) for message in messages_of(folder, trial, "validated")}
    steps: dict[Location, int] = {}
    for step, path in saved_of(folder, store, trial):
        steps.pop(path, None)  # it was replaced
        steps[path] = step
    return [TrialCheckpoint(trial, path, steps[path], values.get(steps[path])) for path in store.existing(steps)]


def collect(
    folder: ExperimentFolder, config: ExperimentConfig, ended: Collection[int], *, at_end: bool
) -> list[Location]:
    """Delete the checkpoints of ended trials that no rule of `checkpoint_storage` keeps.

    Args:
        folder: Of the experiment.
        config: It.
        ended: The numbers of trials that will not continue.
        at_end: Whether the experiment has ended, and these are all its trials. Else the best ones of the experiment are
            not known yet, and with `save_experiment_best` each checkpoint that may be one of them stays.

    Returns:
        The deleted files and folders.

    Raises:
        LightlibError: The store does not answer.
    """
    rules, store = config.checkpoint_storage, Store(folder.path, config)
    checkpoints = [
        checkpoint for trial in ended for checkpoint in checkpoints_of(folder, store, trial, config.searcher.metrics[0])
    ]
    saved = {
        checkpoint.path: Saved(str(checkpoint.trial), (age,), checkpoint.metric)
        for age, checkpoint in enumerate(checkpoints)
    }
    best = rules.save_experiment_best if at_end else len(saved) * bool(rules.save_experiment_best)
    mode = "min" if config.searcher.directions[0] else "max"
    kept = retained(saved, best, rules.save_trial_best, rules.save_trial_latest, mode)
    garbage = sorted(saved.keys() - kept, key=str)
    for path in garbage:
        store.remove(path)
    return garbage
