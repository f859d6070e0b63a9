"""NamedCheckpoints: the files that a callback has saved, and free names for the next ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.callbacks.checkpoint.checkpoint import Checkpoint
from lightlib.callbacks.checkpoint.folder import CheckpointFolder, default_folder
from lightlib.callbacks.checkpoint.ledger import Alias, Ledger, Recorded
from lightlib.callbacks.checkpoint.names import CheckpointNames, fields
from lightlib.callbacks.checkpoint.saves import Saves
from lightlib.checkpoint.storage import filesystem
from lightlib.errors import nearest

if TYPE_CHECKING:
    from torch import Tensor

    from lightlib.core.trainer import Trainer


class NamedCheckpoints(Checkpoint):
    """Base of `ModelCheckpoint`: its files, and their names. It saves nothing by itself."""

    CHECKPOINT_JOIN_CHAR = "-"
    CHECKPOINT_EQUALS_CHAR = "="
    CHECKPOINT_NAME_LAST = "last"
    FILE_EXTENSION = ".ckpt"
    STARTING_VERSION = 1

    best_k_models = Recorded["dict[str, Tensor]"]()
    best_model_path = Recorded[str]()
    best_model_score = Recorded["Tensor | None"]()
    current_score = Recorded["Tensor | None"]()
    kth_best_model_path = Recorded[str]()
    kth_value = Recorded["Tensor"]()
    last_model_path = Recorded[str]()
    _evicted = Recorded["list[str]"]()
    _latest = Recorded[str]()
    _pending = Recorded[str]()
    _saved_at_batch = Recorded[int]()

    _enable_version_counter = Alias("enable_version_counter")
    _every_n_epochs = Alias("every_n_epochs")
    _every_n_train_steps = Alias("every_n_train_steps")
    _save_on_train_epoch_end = Alias("save_on_train_epoch_end")
    _train_time_interval = Alias("train_time_interval")

    dirpath: str | None
    filename: str | None
    auto_insert_metric_name: bool
    enable_version_counter: bool
    _saves: Saves
    _folder: CheckpointFolder
    _once: report.Once

    @property
    def _ledger(self) -> Ledger:
        return self._saves.ledger

    @property
    def names(self) -> CheckpointNames:
        """How the files are named."""
        return CheckpointNames(
            self.dirpath,
            self.filename,
            self.CHECKPOINT_NAME_LAST,
            self.auto_insert_metric_name,
            self.CHECKPOINT_EQUALS_CHAR,
            self.CHECKPOINT_JOIN_CHAR,
            self.FILE_EXTENSION,
        )

    def folder(self, trainer: Trainer) -> str:
        """The folder of the files: `dirpath`, or a default next to the logs."""
        return self.dirpath or default_folder(trainer)

    def file_exists(self, filepath: str | os.PathLike[str], trainer: Trainer) -> bool:
        """Whether rank zero sees a file of this name; all ranks get its answer."""
        there = filesystem.exists(os.fspath(filepath)) if trainer.is_global_zero else False
        return bool(trainer.strategy.broadcast(there))

    def format_checkpoint_name(
        self, metrics: dict[str, Any], filename: str | None = None, ver: int | None = None, prefix: str | None = None
    ) -> str:
        """Return the path of a checkpoint with these metrics.

        Args:
            metrics: Numbers by name, with "epoch" and "step". A missing one is written as "nan".
            filename: A template to use instead of this callback's own.
            ver: A version to append.
            prefix: Something to put in front.

        Raises:
            MisconfigurationException: A number does not fit its format in the template.

        Example:
            >>> from lightlib.callbacks import ModelCheckpoint
            >>> ModelCheckpoint().format_checkpoint_name({"epoch": 0, "step": 10}, ver=1)
            'epoch=0-step=10-v1.ckpt'
        """
        return self.names.path(metrics, filename, ver, prefix)

    def _get_metric_interpolated_filepath_name(
        self, monitor_candidates: dict[str, Tensor], trainer: Trainer, del_filepath: str | None = None
    ) -> str:
        """Return the name of the next file: a new one, or that of `del_filepath`, which it replaces."""
        absent = sorted(set(fields(self.filename or "")) - set(monitor_candidates))
        if absent:
            self._once.warn(
                "absent",
                f"ModelCheckpoint(filename={self.filename!r}): {absent[0]!r} is not logged, so the file name holds nan "
                f"instead.{nearest(absent[0], monitor_candidates)}",
                report.PossibleUserWarning,
            )
        return self._free_name(trainer, partial(self.format_checkpoint_name, monitor_candidates), del_filepath)

    def _last_path(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> str:
        name = partial(self.format_checkpoint_name, monitor_candidates, self.CHECKPOINT_NAME_LAST)
        return self._free_name(trainer, name, self.last_model_path)

    def _free_name(self, trainer: Trainer, name: Callable[..., str], replaced: str | None) -> str:
        """Return the first free name: without a version, or with the lowest one. All processes call this."""
        path, version = trainer.strategy.broadcast(name()), self.STARTING_VERSION
        while self.enable_version_counter and not self._is_free(trainer, replaced, path):
            path = trainer.strategy.broadcast(name(ver=version))
            version += 1
        return path

    def _is_free(self, trainer: Trainer, replaced: str | None, path: str) -> bool:
        if path == replaced and path not in self._folder.foreign:
            return True
        if path == self.last_model_path:
            return False
        savers = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, NamedCheckpoints)]
        being_written = any(path in saver._saves.writing for saver in savers)  # noqa: SLF001  of this class
        known = trainer.strategy.broadcast(False if being_written else True if path in self._folder.future else None)
        return not self.file_exists(path, trainer) if known is None else bool(known)
