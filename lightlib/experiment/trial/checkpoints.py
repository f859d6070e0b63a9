"""Checkpoints of a trial: those that its worker continues from, and the best ones."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightlib.callbacks.checkpoint.checkpoint import Checkpoint
from lightlib.callbacks.checkpoint.model_checkpoint import ModelCheckpoint
from lightlib.checkpoint.storage.filesystem import is_remote, names_in
from lightlib.checkpoint.storage.options import StorageOptions
from lightlib.experiment.job import CHECKPOINT_STORAGE, Job

if TYPE_CHECKING:
    from torch import Tensor

    from lightlib.core.trainer import Trainer


class TrialCheckpoint(ModelCheckpoint):
    """Saves ``last.ckpt`` and the best checkpoints of a trial, as its experiment's `checkpoint_policy` asks.

    Args:
        job: ``"best"`` saves after a validation that is better than all of the experiment so far, ``"all"`` after each
            one. Both also replace ``last.ckpt`` there, from which a failed trial continues. ``"none"`` saves at the
            end, and where the trial is interrupted.
    """

    def __init__(self, job: Job) -> None:
        policy = job.checkpoint_policy
        super().__init__(
            job.checkpoints,
            filename="best-{epoch}-{step}" if policy == "best" else "{epoch}-{step}",
            monitor=None if policy == "none" else job.metric,
            mode="min" if job.smaller_is_better else "max",
            save_last=True,
            save_top_k={"best": job.save_trial_best, "all": -1, "none": 0}[policy],
            every_n_epochs=0 if policy == "none" else 1,
        )
        self._best = None if policy == "all" else job.best
        self._smaller = job.smaller_is_better

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        if current is not None and self._best is not None:
            value = float(current)
            if not (value < self._best if self._smaller else value > self._best):
                return False
        return super().check_monitor_top_k(trainer, current)


class EarlierCheckpoints(Checkpoint):
    """Makes ``ckpt_path="auto"`` look also in a folder of an earlier attempt; saves nothing.

    Args:
        dirpath: The folder.
    """

    def __init__(self, dirpath: str) -> None:
        self.dirpath = dirpath

    @property
    def state_key(self) -> str:
        return f"EarlierCheckpoints{{'dirpath': {self.dirpath!r}}}"


def earlier_folders(job: Job) -> list[str]:
    """Return the folders of the earlier attempts that have checkpoints, also those in a store."""
    folders: list[str] = []
    for folder in job.earlier:
        if is_remote(folder):
            folders += [folder] if any(name.endswith(".ckpt") for name in names_in(folder)) else []
        else:
            folders += (str(path.parent) for path in sorted(Path(folder).rglob("*.ckpt")))
    return list(dict.fromkeys(folders))


def open_store() -> None:
    """Open the store of the checkpoints with the keys that the worker has put into the environment, if any."""
    if CHECKPOINT_STORAGE in os.environ:
        StorageOptions(**json.loads(os.environ[CHECKPOINT_STORAGE]))


def callbacks(job: Job, earlier: Iterable[str]) -> list[Checkpoint]:
    """Return the callbacks that save and find the checkpoints of a trial.

    Args:
        job: The attempt.
        earlier: The folders with the checkpoints of earlier attempts.
    """
    checkpoints: list[Checkpoint] = [TrialCheckpoint(job)]
    if job.min_checkpoint_period:
        ((unit, number),) = job.min_checkpoint_period.items()
        every: dict[str, Any] = {"every_n_train_steps": number}
        if unit == "epochs":  # at their ends, also where validations are more frequent
            every = {"every_n_epochs": number, "save_on_train_epoch_end": True}
        checkpoints.append(
            ModelCheckpoint(job.checkpoints, "newest-{epoch}-{step}", **every, enable_version_counter=False)
        )
    return checkpoints + [EarlierCheckpoints(folder) for folder in earlier]
