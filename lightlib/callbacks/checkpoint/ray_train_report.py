"""RayTrainReport: reports metrics and complete checkpoints to Ray Train."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from lightlib import optional
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.monitored import new_metrics
from lightlib.checkpoint.storage import filesystem
from lightlib.errors import MisconfigurationException

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class RayTrainReport(Callback):
    """Reports each checkpoint to Ray Train once it is complete, with the metrics at its save.

    `ModelCheckpoint` has the schedule; files with weights alone are left out. Ray Train copies the checkpoint, as
    ``checkpoint.ckpt``, and gives it to workers that it starts again; training waits for the copy. A checkpoint of
    ``async_save=True`` is reported at the next save. `epoch` and `step` are added to the metrics.

    Raises:
        MisconfigurationException: When `fit` begins, or in `latest`: Ray is not installed, or this is no worker of it.

    Example:
        >>> from lightlib.callbacks import ModelCheckpoint
        >>> callbacks = [ModelCheckpoint(every_n_train_steps=100), RayTrainReport()]
    """

    CHECKPOINT_NAME = "checkpoint.ckpt"
    not_in_checkpoint = ("_metrics", "_position", "_reported", "_path", "_opened")

    def __init__(self) -> None:
        super().__init__()
        self._metrics: dict[str, float] = {}  # at the last save that a run can be resumed from
        self._position = self._reported = (-1, -1)
        self._path = ""  # on rank 0: a complete checkpoint to report
        self._opened = ExitStack()

    def latest(self) -> str | None:
        """Return the checkpoint to resume from, for `ckpt_path`; None if there is none yet."""
        checkpoint = _ray_train().get_checkpoint()
        if checkpoint is None:
            return None
        return os.path.join(self._opened.enter_context(checkpoint.as_directory()), self.CHECKPOINT_NAME)

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage == "fit":
            _ray_train()

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._opened.close()  # removes what was downloaded

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        self._report(trainer)
        if "optimizer_states" in checkpoint:
            metrics = {name: value.item() for name, value in new_metrics(trainer).items()}
            self._metrics = {**metrics, "epoch": checkpoint["epoch"], "step": checkpoint["global_step"]}
            self._position = trainer.progress.batch, trainer.progress.validated

    def on_checkpoint_written(self, trainer: Trainer, pl_module: Module, path: str) -> None:
        if self._position != self._reported:  # else under another name, such as last.ckpt, or with weights alone
            self._path, self._reported = path, self._position
        if not any(getattr(saver, "async_save", False) for saver in trainer.checkpoint_callbacks):
            self._report(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._report(trainer)

    def _report(self, trainer: Trainer) -> None:
        """Report with all ranks, which learn from rank 0 alone that a checkpoint is complete."""
        path, self._path = trainer.strategy.broadcast(self._path), ""
        if not path:
            return
        train, checkpoint = _ray_train(), None
        with tempfile.TemporaryDirectory() as folder:
            if trainer.is_global_zero:
                filesystem.link(path, os.path.join(os.path.realpath(folder), self.CHECKPOINT_NAME))
                checkpoint = train.Checkpoint.from_directory(folder)
            train.report(self._metrics, checkpoint=checkpoint)


def _ray_train() -> Any:
    """Return `ray.train` in a worker of it."""
    train = optional.load("ray.train", "RayTrainReport", otherwise="pip install 'ray[train]' if a part is missing")
    try:
        train.get_checkpoint()
    except RuntimeError as error:
        raise MisconfigurationException(
            f"RayTrainReport in a process that Ray Train has not started: {error}",
            expected="a worker of Ray Train.",
            fix="TorchTrainer(function, scaling_config=ScalingConfig(num_workers=2)).fit(), or leave the callback out.",
        ) from error
    return train
