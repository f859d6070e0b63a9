"""Checkpoints of a trial: those that its worker continues from, and the best ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightlib.callbacks.checkpoint.checkpoint import Checkpoint
from lightlib.callbacks.checkpoint.model_checkpoint import ModelCheckpoint
from lightlib.experiment.job import Job

if TYPE_CHECKING:
    from torch import Tensor

    from lightlib.core.trainer import Trainer

FOLDER = "checkpoints"


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
            os.path.join(job.folder, FOLDER),
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
    """Return the folders below those of the earlier attempts that have checkpoints."""
    found = [path.parent for folder in job.earlier for path in sorted(Path(folder).rglob("*.ckpt"))]
    return list(map(str, dict.fromkeys(found)))


def callbacks(job: Job) -> list[Checkpoint]:
    """Return the callbacks that save and find the checkpoints of a trial."""
    found: list[Checkpoint] = [TrialCheckpoint(job)]
    if job.min_checkpoint_period:
        ((unit, number),) = job.min_checkpoint_period.items()
        every: dict[str, Any] = {"every_n_epochs" if unit == "epochs" else "every_n_train_steps": number}
        found.append(
            ModelCheckpoint(
                os.path.join(job.folder, FOLDER), "newest-{epoch}-{step}", **every, enable_version_counter=False
            )
        )
    return found + [EarlierCheckpoints(folder) for folder in earlier_folders(job)]
