"""First weights: the checkpoint of another trial that every trial of an experiment begins with."""

from __future__ import annotations

from pathlib import Path

from lightlib.checkpoint.storage import filesystem
from lightlib.errors import nearest
from lightlib.experiment.file import ExperimentConfig
from lightlib.experiment.store import Location, Store, location
from lightlib.experiment.work.checkpoints import checkpoints_of
from lightlib.experiment.work.folder import ExperimentFolder


def find(config: ExperimentConfig) -> Location | None:
    """Return the checkpoint that `source_trial_id` or `source_checkpoint_uuid` names; None if neither is given.

    Raises:
        ConfigError: There is no such trial or checkpoint, or the trials are programs, which load no weights.
    """
    searcher, places = config.searcher, config.places.below("searcher")
    name = "source_trial_id" if searcher.source_trial_id is not None else "source_checkpoint_uuid"
    value, place = getattr(searcher, name), places.below(name)
    if value is None:
        return None
    if config.entrypoint is not None and config.entrypoint.command:
        place.refuse(
            f"is {value!r}, and the trials are a program, which loads its weights itself.",
            "an entrypoint that is a fit, or no first weights.",
            "give the program the path as a hyperparameter.",
        )
    if name == "source_checkpoint_uuid":
        if not filesystem.exists(value):
            place.refuse(
                f"is {value!r}, and there is no such file or folder, seen from {Path.cwd()}.",
                "the path or URL of a checkpoint.",
                "`lightlib experiment checkpoints EXPERIMENT` lists those of an experiment.",
            )
        return location(value)
    where, _, number = str(value).rpartition("/")
    folder = ExperimentFolder.named(where) if where else None
    if folder is None or not number.isdecimal():
        names = ExperimentFolder.names()
        place.refuse(
            f"is {value!r}, which is no trial of an experiment here.{nearest(where, names)}",
            "EXPERIMENT/TRIAL, with the number of the trial.",
            f"searcher.{name}: {names[0] if names else 'NAME'}/0",
        )
    return _latest(folder, int(number)) or place.refuse(
        f"is {value!r}, and this trial has no checkpoint.",
        "a trial with a checkpoint.",
        f"`lightlib experiment checkpoints {where}` lists those that there are.",
    )


def _latest(folder: ExperimentFolder, trial: int) -> Location | None:
    """Return the newest checkpoint of a trial, or None."""
    config = folder.config
    checkpoints = checkpoints_of(folder, Store(folder.path, config), trial, config.searcher.metrics[0])
    return max(checkpoints, key=lambda checkpoint: checkpoint.step).path if checkpoints else None
