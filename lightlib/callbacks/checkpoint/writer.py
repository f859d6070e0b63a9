"""CheckpointWriter: files of checkpoints in one folder: named, written, linked and removed with care."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from lightlib import report
from lightlib.callbacks.checkpoint import folder as folders
from lightlib.callbacks.checkpoint.checkpoint import Checkpoint
from lightlib.callbacks.checkpoint.folder import absolute
from lightlib.callbacks.checkpoint.names import fields, fill, may_be
from lightlib.checkpoint.background import BackgroundWriter
from lightlib.checkpoint.storage import filesystem
from lightlib.errors import CheckpointWriteError, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

__all__ = ["CheckpointWriter"]


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
        format: Literal["file", "directory"] | None = None,  # noqa: A002  as in Trainer.save_checkpoint
        async_save: bool = False,
    ) -> None:
        self.dirpath = absolute(dirpath)
        self.filename = filename
        self.save_weights_only = save_weights_only
        self.auto_insert_metric_name = auto_insert_metric_name
        self.enable_version_counter = enable_version_counter
        self.format = format
        self.async_save = async_save
        self.last_model_path = ""
        self._latest = ""
        self._said: set[str] = set()
        self._claim: folders.FolderClaim | None = None
        self._writer: BackgroundWriter | None = None  # while there is a fit with async_save
        self._writing: set[str] = set()  # names that a save has taken which is not complete yet
        self._evicted: list[str] = []  # to be removed as soon as something newer is complete
        self._outlived: list[str] = []  # as well, but not before the next save, or the end: the run goes on from it
        self._future: set[str] = set()  # of this run, but from after the place where it goes on: it comes there again
        self._foreign: set[str] = set()  # of the run from which this one branched: never removed
        self.shared_out = False  # whether somebody else removes files as well

    # the folder

    def _enter(self, trainer: Trainer) -> None:
        """Claim the folder and see what this run has left there."""
        assert self.dirpath is not None
        self._foreign, self._writing = set(), set()
        self._claim = folders.claimed(trainer, self.dirpath)
        self._future, self._outlived = folders.left_behind(trainer, self.dirpath, self.FILE_EXTENSION, self.depth)
        self._writer = BackgroundWriter() if self.async_save else None

    def _leave(self) -> None:
        """Give the folder back."""
        self._writing = set()
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    @property
    def depth(self) -> int:
        """How many folders the template of the names makes within `dirpath`."""
        return (self.filename or "").count("/")

    def _may_have_written(self, path: str) -> bool:
        """Whether this callback's templates give such a path; that of somebody else's file they do not."""
        return self._is_named(path, self.CHECKPOINT_NAME_LAST) or self.may_have_ranked(path)

    def may_have_ranked(self, path: str) -> bool:
        """Whether the name of `path` is one that this callback gives to a checkpoint, other than the last one."""
        return not self._is_named(path, self.CHECKPOINT_NAME_LAST) and self._is_named(path, self._template)

    def _is_named(self, path: str, template: str) -> bool:
        start = filesystem.join(self.dirpath or "", "")
        return path.startswith(start) and may_be(
            path[len(start) :].removesuffix(self.FILE_EXTENSION),
            template,
            insert_names=self.auto_insert_metric_name,
            equals=self.CHECKPOINT_EQUALS_CHAR,
            join=self.CHECKPOINT_JOIN_CHAR,
        )

    @property
    def _template(self) -> str:
        return self.filename or f"{{epoch}}{self.CHECKPOINT_JOIN_CHAR}{{step}}"

    def on_checkpoint_written(self, trainer: Trainer, pl_module: Module, path: str) -> None:
        """Note that a file, whoever has saved it, is not one of an earlier time any more."""
        self._future.discard(path)

    # writing

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        """Write one file and tell the loggers. Override it to write something else, or more."""
        if not self.save_weights_only:  # so that the file itself says what it makes superfluous
            self._evicted, self._outlived = [*self._evicted, *self._outlived], []
        options: dict[str, Any] = {} if self.format is None else {"format": self.format}
        if self._writer is not None:
            options["writer"] = self._writer
        self._latest = filepath
        trainer.save_checkpoint(filepath, self.save_weights_only, **options)
        self._take_name(trainer, filepath)
        self._in_order(lambda: None, then=partial(self._tell_loggers, trainer))

    def _in_order(self, job: Callable[[], object], then: Callable[[], object] | None = None) -> None:
        """Do `job` after what was written before it: now, or in the writer's thread."""
        if self._writer is not None:
            self._writer.submit(job, then)
            return
        job()
        if then is not None:
            then()

    def _take_name(self, trainer: Trainer, path: str) -> None:
        """Tell all callbacks that from now on `path` is this run's, although its file may not be complete yet."""
        if self._writer is not None:
            self._writing.add(path)
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, CheckpointWriter):
                callback._future.discard(path)  # noqa: SLF001  another one of this kind

    def _tell_loggers(self, trainer: Trainer) -> None:
        for logger in trainer.loggers if trainer.is_global_zero else ():
            try:
                logger.after_save_checkpoint(self)
            except Exception as error:  # noqa: BLE001 - a tracking service must not end the run
                kind = type(logger).__name__
                self._warn_once(kind, f"{kind}.after_save_checkpoint failed, training goes on: {error!r}")

    def _remove_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        """Remove one file. Override it to keep or to move it."""
        if trainer.is_global_zero:
            filesystem.remove(filepath)

    @staticmethod
    def _link_checkpoint(trainer: Trainer, filepath: str, linkpath: str) -> None:
        """Make `linkpath` a link to `filepath`."""
        error: CheckpointWriteError | None = None
        if trainer.is_global_zero:
            try:
                filesystem.link(filepath, linkpath)
            except CheckpointWriteError as raised:
                error = raised
        told = trainer.strategy.broadcast(None if error is None else str(error))
        if told is not None:  # on all processes, none of which waits for the others
            raise error or CheckpointWriteError(told)

    def _write_last(self, trainer: Trainer, path: str, of: str, as_link: bool) -> None:
        """Write `path`; `of` is the file that has just been saved, if there is one: its link or its copy will do."""
        if of and self._writer is not None:
            make = filesystem.link if as_link else filesystem.copy
            self._take_name(trainer, path)
            self._in_order(partial(make, of, path) if trainer.is_global_zero else lambda: None)
        elif of and as_link:
            self._link_checkpoint(trainer, of, path)
            self._take_name(trainer, path)
        else:
            self._save_checkpoint(trainer, path)

    # removing

    def _delete_evicted(self, trainer: Trainer) -> None:
        for path in list(self._evicted):
            if self._may_remove(trainer, path):
                self._in_order(partial(self._delete, trainer, path))
            else:
                self._evicted.remove(path)

    def _delete(self, trainer: Trainer, path: str) -> None:
        try:
            self._remove_checkpoint(trainer, path)
        except OSError as error:
            known = trainer.continues or path.endswith(folders.INTERRUPTED)  # removed before the run was ended
            if not (known and isinstance(error, FileNotFoundError)):
                problem = f"The old checkpoint {path!r} could not be removed, training goes on: {error}"
                if self._writer is None:
                    report.warn(problem)
                else:
                    self._writer.after(partial(report.warn, problem))
        self._evicted.remove(path)

    def _may_remove(self, trainer: Trainer, path: str) -> bool:
        if folders.is_of_the_user(trainer, path):
            return False
        return self._is_inside(path) and path not in self._foreign and path not in self._kept()

    def _is_inside(self, path: str) -> bool:
        """Whether a path, which may come from a forged checkpoint, leads to something in the folder."""
        if self.dirpath is None:
            return False
        separator = "/" if filesystem.is_remote(path) else os.sep
        folder = self.dirpath.rstrip(separator) + separator
        return path.startswith(folder) and ".." not in path.split(separator) and path != folder

    def _kept(self) -> set[str]:
        """The files that are not to be removed."""
        return {self.last_model_path}

    def _clear_up(self, trainer: Trainer) -> None:
        """At a good end, remove what the run has outlived, and what it did not save again on its way here."""
        own = [path for path in sorted(self._future) if self._may_have_written(path)]
        self._future = set()
        for path in (*own, *self._outlived):
            if trainer.is_global_zero and self._may_remove(trainer, path) and filesystem.exists(path):
                self._evicted.append(path)
                self._delete(trainer, path)
        self._outlived = []

    # names

    def folder(self, trainer: Trainer) -> str:
        """The folder of the files: `dirpath`, or a default beside the logs."""
        if self.dirpath is not None:
            return self.dirpath
        root = trainer.log_dir or trainer.default_root_dir
        logger = trainer.loggers[0] if trainer.loggers else None
        if logger is not None and logger.log_dir is None:
            root = logger.run_dir(trainer.default_root_dir) or root
        folder = absolute(filesystem.join(root, "checkpoints"))
        assert folder is not None
        return folder

    def find_last_checkpoints(self, trainer: Trainer) -> set[str]:
        """The files in the folder that `save_last` may have written, in this run or an earlier one."""
        folder, start = self.folder(trainer), self.CHECKPOINT_NAME_LAST.partition("{")[0]
        return {
            filesystem.join(folder, name)
            for name in filesystem.names_in(folder)
            if name.startswith(start) and name.endswith(self.FILE_EXTENSION)
        }

    def file_exists(self, filepath: str | os.PathLike[str], trainer: Trainer) -> bool:
        """Whether rank zero sees a file of this name; all ranks get its answer."""
        there = filesystem.exists(os.fspath(filepath)) if trainer.is_global_zero else False
        return bool(trainer.strategy.broadcast(there))

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
        name = fill(filename or self._template, metrics, insert_names=self.auto_insert_metric_name, equals=equals)
        parts = [*([prefix] if prefix else []), name, *([f"v{ver}"] if ver is not None else [])]
        whole = join.join(parts) + self.FILE_EXTENSION
        return filesystem.join(self.dirpath, whole) if self.dirpath else whole

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
            and (path != own or path in self._foreign)
            and (path == self.last_model_path or self._is_taken(path, trainer))
        ):
            path = trainer.strategy.broadcast(name(ver=version))
            version += 1
        return path

    def _is_taken(self, path: str, trainer: Trainer) -> bool:
        being_written = any(path in getattr(other, "_writing", ()) for other in trainer.checkpoint_callbacks)
        known = trainer.strategy.broadcast(True if being_written else False if path in self._future else None)
        return self.file_exists(path, trainer) if known is None else bool(known)

    def _warn_once(self, key: str, message: str) -> None:
        if key not in self._said:
            self._said.add(key)
            report.warn(message, report.PossibleUserWarning)
