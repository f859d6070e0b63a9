"""CheckpointWriter: files of checkpoints in one folder: named, written, linked and removed with care."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.callbacks import checkpoint_files as files
from lightlib.callbacks.checkpoint import Checkpoint
from lightlib.callbacks.checkpoint_names import fields, fill
from lightlib.errors import CheckpointWriteError, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from lightlib.core.trainer import Trainer

__all__ = ["CheckpointWriter", "absolute"]


class CheckpointWriter(Checkpoint):
    """Base of `ModelCheckpoint`: everything about its files but which of them are kept."""

    CHECKPOINT_JOIN_CHAR = "-"
    CHECKPOINT_EQUALS_CHAR = "="
    CHECKPOINT_NAME_LAST = "last"
    FILE_EXTENSION = ".ckpt"
    STARTING_VERSION = 1

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None,
        filename: str | None,
        save_weights_only: bool,
        auto_insert_metric_name: bool,
        enable_version_counter: bool,
    ) -> None:
        self.dirpath = absolute(dirpath)
        self.filename = filename
        self.save_weights_only = save_weights_only
        self.auto_insert_metric_name = auto_insert_metric_name
        self.enable_version_counter = enable_version_counter
        self.last_model_path = ""
        self._latest = ""
        self._evicted: list[str] = []
        self._said: set[str] = set()

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        """Write one file and tell the loggers. Override it to write something else, or more."""
        trainer.save_checkpoint(filepath, self.save_weights_only)
        self._latest = filepath
        for logger in trainer.loggers if trainer.is_global_zero else ():
            try:
                logger.after_save_checkpoint(self)
            except Exception as error:  # noqa: BLE001 - a tracking service must not end the run
                kind = type(logger).__name__
                self._warn_once(kind, f"{kind}.after_save_checkpoint failed, training goes on: {error!r}")

    def _remove_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        """Remove one file. Override it to keep or to move it."""
        if trainer.is_global_zero:
            files.remove(filepath)

    @staticmethod
    def _link_checkpoint(trainer: Trainer, filepath: str, linkpath: str) -> None:
        """Make `linkpath` a link to `filepath`."""
        error: CheckpointWriteError | None = None
        if trainer.is_global_zero:
            try:
                files.link(filepath, linkpath)
            except CheckpointWriteError as raised:
                error = raised
        told = trainer.strategy.broadcast(None if error is None else str(error))
        if told is not None:  # on all processes, none of which waits for the others
            raise error or CheckpointWriteError(told)

    def _delete_evicted(self, trainer: Trainer) -> None:
        evicted, self._evicted = self._evicted, []
        for path in evicted:
            if not self._may_remove(trainer, path):
                continue
            try:
                self._remove_checkpoint(trainer, path)
            except OSError as error:
                report.warn(f"The old checkpoint {path!r} could not be removed, training goes on: {error}")

    def _may_remove(self, trainer: Trainer, path: str) -> bool:
        assert self.dirpath is not None
        resumed_from = trainer.ckpt_path
        if resumed_from is not None and absolute(resumed_from) == path:
            return False
        separator = "/" if files.is_remote(path) else os.sep
        return path.startswith(self.dirpath.rstrip(separator) + separator)

    def folder(self, trainer: Trainer) -> str:
        """The folder of the files: `dirpath`, or a default beside the logs."""
        if self.dirpath is not None:
            return self.dirpath
        folder = absolute(os.path.join(trainer.log_dir or trainer.default_root_dir, "checkpoints"))
        assert folder is not None
        return folder

    def find_last_checkpoints(self, trainer: Trainer) -> set[str]:
        """The files in the folder that `save_last` may have written, in this run or an earlier one."""
        return files.listed(
            self.folder(trainer), prefix=self.CHECKPOINT_NAME_LAST.partition("{")[0], ending=self.FILE_EXTENSION
        )

    def file_exists(self, filepath: str | os.PathLike[str], trainer: Trainer) -> bool:
        """Whether rank zero sees a file of this name; all ranks get its answer."""
        return bool(trainer.strategy.broadcast(files.exists(os.fspath(filepath)) if trainer.is_global_zero else False))

    # names

    def format_checkpoint_name(
        self, metrics: dict[str, Any], filename: str | None = None, ver: int | None = None, prefix: str | None = None
    ) -> str:
        """Return the path that a checkpoint with these metrics gets.

        Args:
            metrics: Numbers by name, with "epoch" and "step". One that is not there is written as "nan".
            filename: A template to use instead of this callback's own.
            ver: A version to append.
            prefix: Something to put in front.

        Raises:
            MisconfigurationException: A number cannot be written as the template says.

        Example:
            >>> from lightlib.callbacks import ModelCheckpoint
            >>> ModelCheckpoint().format_checkpoint_name({"epoch": 0, "step": 10}, ver=1)
            'epoch=0-step=10-v1.ckpt'
        """
        join, equals = self.CHECKPOINT_JOIN_CHAR, self.CHECKPOINT_EQUALS_CHAR
        template = filename or self.filename or f"{{epoch}}{join}{{step}}"
        name = fill(template, metrics, insert_names=self.auto_insert_metric_name, equals=equals)
        parts = [*([prefix] if prefix else []), name, *([f"v{ver}"] if ver is not None else [])]
        return os.path.join(self.dirpath or "", join.join(parts) + self.FILE_EXTENSION)

    def _get_metric_interpolated_filepath_name(
        self, monitor_candidates: dict[str, Tensor], trainer: Trainer, del_filepath: str | None = None
    ) -> str:
        """The name of the next file: a new one, or that of `del_filepath`, which it replaces."""
        absent = sorted(set(fields(self.filename or "")) - set(monitor_candidates))
        if absent:
            self._warn_once(
                "absent",
                f"ModelCheckpoint(filename={self.filename!r}): {absent[0]!r} is not logged, the name says nan."
                f"{nearest(absent[0], monitor_candidates)}",
            )
        return self._free_name(trainer, partial(self.format_checkpoint_name, monitor_candidates), del_filepath)

    def _last_path(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> str:
        name = partial(self.format_checkpoint_name, monitor_candidates, self.CHECKPOINT_NAME_LAST)
        return self._free_name(trainer, name, self.last_model_path)

    def _free_name(self, trainer: Trainer, name: Callable[..., str], own: str | None) -> str:
        path: str = trainer.strategy.broadcast(name())
        version = self.STARTING_VERSION
        while (
            self.enable_version_counter
            and path != own
            and (path == self.last_model_path or self.file_exists(path, trainer))
        ):
            path = trainer.strategy.broadcast(name(ver=version))
            version += 1
        return path

    def _warn_once(self, key: str, message: str) -> None:
        if key not in self._said:
            self._said.add(key)
            report.warn(message, report.PossibleUserWarning)


def absolute(path: str | os.PathLike[str] | None) -> str | None:
    """Return a local path made absolute, an address unchanged."""
    if path is None or files.is_remote(os.fspath(path)):
        return None if path is None else os.fspath(path)
    return os.path.realpath(os.path.expanduser(path))
