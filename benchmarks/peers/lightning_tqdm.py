"""Lightning with tqdm's bar, which costs less than the one of rich that is its default."""

from __future__ import annotations

import lightning.pytorch
from lightning.pytorch.callbacks import TQDMProgressBar

from benchmarks.peers import lightning_style
from benchmarks.task import Task

__all__ = ["train"]


def train(task: Task) -> None:
    lightning_style.train(lightning.pytorch, task, [TQDMProgressBar()] if task.switches.bar else [])
