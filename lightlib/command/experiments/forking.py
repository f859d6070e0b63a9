"""`lightlib experiment fork`: an experiment from the settings, code and weights of another one."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from lightlib.command.experiments.trial_names import folder_of, near, trial_or_all, worker_of
from lightlib.errors import MisconfigurationException
from lightlib.experiment.file import ExperimentConfig, read
from lightlib.experiment.machine.slots import Slots
from lightlib.experiment.store import Store
from lightlib.experiment.work import weights
from lightlib.experiment.work.database import Database
from lightlib.experiment.work.folder import FILE, ROOT, ExperimentFolder
from lightlib.experiment.work.open import check

_KEYS = ("source_trial_id", "source_checkpoint_uuid")


def fork(options: argparse.Namespace) -> int:
    """Begin an experiment with the settings of another one, except those that the command line changes."""
    folder, first = _source(options.experiment)
    stored = folder.config
    above = folder.path.parents[2] if stored.workspace and stored.project else folder.path.parent
    changes = [f"searcher.{key}={first.get(key, 'null')}" for key in _KEYS] if first else []
    name = options.name or _free_name(above, stored)
    config = read(folder.path / FILE, [f"name={name}", *changes, *options.config])
    new = ExperimentFolder.of(config, above)
    if new.exists:
        raise MisconfigurationException(
            f"There is an experiment in {str(near(new.path))!r}.",
            expected="the name of a new experiment.",
            fix=f"--name {_free_name(above, config)}",
        )
    check(config, folder.context, Slots.of_machine("auto"), works=False)
    inherited = folder.weights if folder.weights.exists() and not first else None
    database = Database.of(folder.path)
    new.begin(config, folder.context, inherited or weights.find(config), database and database.for_another())
    print(f"{near(new.path)} has begun. {worker_of(new)}")
    return 0


def _source(text: str) -> tuple[ExperimentFolder, dict[str, str]]:
    """Return the experiment that is named by itself, by a trial or by a checkpoint, and where the weights are."""
    path = Path(text).absolute()
    if path.exists() and not (path / FILE).is_file():
        for above in path.parents:
            if (above / FILE).is_file():
                return ExperimentFolder(above), {"source_checkpoint_uuid": str(path)}
    for name in ExperimentFolder.names():  # a checkpoint in a store is below the folder of its experiment there
        if Store.name_in(Path(ROOT, name)) in text.split("/"):
            return ExperimentFolder(Path(ROOT, name)), {"source_checkpoint_uuid": text}
    where, trial = trial_or_all(text)
    folder = folder_of(where)
    return folder, {} if trial is None else {"source_trial_id": f"{folder.path}/{trial}"}


def _free_name(root: Path, config: ExperimentConfig) -> str:
    """Return the name of an experiment with the first number that is free."""
    base, _, number = config.name.rpartition("-")
    base = base if number.isdecimal() else config.name
    above = ExperimentFolder.of(config, root).path.parent
    return next(name for at in itertools.count(2) if not (above / (name := f"{base}-{at}")).exists())
