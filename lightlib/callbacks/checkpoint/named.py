"""NamedCheckpoints: the files that a callback has saved, and free names for the next ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.callbacks.checkpoint.checkpoint import Checkpoint
from lightlib.callbacks.checkpoint.checkpoint_names import CheckpointNames, fields
from lightlib.callbacks.checkpoint.files import CheckpointFiles
from lightlib.callbacks.checkpoint.folder import CheckpointFolder, default_folder
from lightlib.callbacks.checkpoint.transactions import SaveTransactions
from lightlib.checkpoint.storage import filesystem
from lightlib.errors import MisconfigurationException, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from lightlib.core.trainer import Trainer

Share = Callable[[Any], Any]  # gives all ranks the value of rank zero
NextFile = Callable[[dict[str, "Tensor"]], "tuple[bool, str | None]"]


@dataclass(frozen=True)
class SaveDecision:
    """Rank zero's decision about a save, which all ranks follow.

    Attributes:
        candidates: The metrics for names and comparisons. They may differ between ranks before.
        files: The files of the callback before the save.
        path: The name of the file; empty if none is due.
        replaced: The file that it replaces.
        last_path: The name of the last checkpoint; None if none is due.
    """

    candidates: dict[str, Tensor]
    files: CheckpointFiles
    path: str
    replaced: str | None
    last_path: str | None


class Alias:
    """Another name of an attribute: a private one of Lightning's, which subclasses read and set."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, callback: Any, owner: type) -> Any:
        return self if callback is None else getattr(callback, self._name)

    def __set__(self, callback: Any, value: Any) -> None:
        vars(callback)[self._name] = value


class NamedCheckpoints(Checkpoint):
    """Base of `ModelCheckpoint`: its files, and their names. It saves nothing by itself."""

    CHECKPOINT_JOIN_CHAR = "-"
    CHECKPOINT_EQUALS_CHAR = "="
    CHECKPOINT_NAME_LAST = "last"
    FILE_EXTENSION = ".ckpt"
    STARTING_VERSION = 1

    _enable_version_counter = Alias("enable_version_counter")
    _every_n_epochs = Alias("every_n_epochs")
    _every_n_train_steps = Alias("every_n_train_steps")
    _save_on_train_epoch_end = Alias("save_on_train_epoch_end")
    _train_time_interval = Alias("train_time_interval")

    dirpath: str | None
    filename: str | None
    auto_insert_metric_name: bool
    enable_version_counter: bool
    _files: CheckpointFiles
    _transactions: SaveTransactions
    _decision: SaveDecision | None = None  # while a save is made
    _folder: CheckpointFolder
    _once: report.Once
    shared_out = False  # whether a CheckpointGC removes files as well

    def share_files(self) -> None:
        """Expect that another object removes files as well."""
        self.shared_out = True

    @property
    def best_k_models(self) -> dict[str, Tensor]:
        return self._files.best_k_models

    @best_k_models.setter
    def best_k_models(self, metrics: dict[str, Tensor]) -> None:
        self._files.record(best_k_models=metrics)

    @property
    def best_model_path(self) -> str:
        return self._files.best_model_path

    @best_model_path.setter
    def best_model_path(self, path: str) -> None:
        self._files.record(best_model_path=path)

    @property
    def best_model_score(self) -> Tensor | None:
        return self._files.best_model_score

    @best_model_score.setter
    def best_model_score(self, score: Tensor | None) -> None:
        self._files.record(best_model_score=score)

    @property
    def current_score(self) -> Tensor | None:
        return self._files.current_score

    @current_score.setter
    def current_score(self, score: Tensor | None) -> None:
        self._files.record(current_score=score)

    @property
    def kth_best_model_path(self) -> str:
        return self._files.kth_best_model_path

    @kth_best_model_path.setter
    def kth_best_model_path(self, path: str) -> None:
        self._files.record(kth_best_model_path=path)

    @property
    def kth_value(self) -> Tensor:
        return self._files.kth_value

    @kth_value.setter
    def kth_value(self, value: Tensor) -> None:
        self._files.record(kth_value=value)

    @property
    def last_model_path(self) -> str:
        return self._files.last_model_path

    @last_model_path.setter
    def last_model_path(self, path: str) -> None:
        self._files.record(last_model_path=path)

    @property
    def names(self) -> CheckpointNames:
        """How the files are named."""
        return CheckpointNames(
            self.dirpath,
            self.filename or f"{{epoch}}{self.CHECKPOINT_JOIN_CHAR}{{step}}",
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
        absent = sorted(set(fields(self.filename)) - set(monitor_candidates)) if self.filename else []
        if absent:
            self._once.warn(
                "absent",
                f"ModelCheckpoint(filename={self.filename!r}): {absent[0]!r} is not logged, so the file name holds nan "
                f"instead.{nearest(absent[0], monitor_candidates)}",
                report.PossibleUserWarning,
            )
        decision = self._decision
        as_decided = decision is not None and decision.path and decision.replaced == del_filepath
        if decision is None or not as_decided or decision.candidates is not monitor_candidates:
            decision = self._agree(trainer, monitor_candidates, lambda _: (True, del_filepath), with_last=False)
        return decision.path

    def _agree(
        self, trainer: Trainer, candidates: dict[str, Tensor], next_file: NextFile, with_last: bool
    ) -> SaveDecision:
        """Return rank zero's decision about a save; all processes call this.

        Args:
            trainer: The trainer.
            candidates: The metrics of this rank.
            next_file: Returns, for metrics, whether a file is due, and the file that it replaces.
            with_last: Whether the last checkpoint is due.

        Raises:
            MisconfigurationException: A number does not fit its format in the name.
        """
        broadcast, share = trainer.strategy.broadcast, None
        decision: SaveDecision | None = None
        error: Exception | None = None
        if getattr(self.file_exists, "__func__", None) is not NamedCheckpoints.file_exists:
            share = broadcast  # the override may communicate, so all ranks call it for the same names
            candidates, files = broadcast((candidates, self._files))
            self._files.restore(files)
        if trainer.is_global_zero or share is not None:
            last, last_path, path = self._files.last_model_path, None, ""
            try:
                if with_last:
                    name = partial(self.format_checkpoint_name, candidates, self.CHECKPOINT_NAME_LAST)
                    last = last_path = self._free_name(trainer, name, last, last, share)
                is_due, replaced = next_file(candidates)
                if is_due:
                    name = partial(self.format_checkpoint_name, candidates)
                    path = self._free_name(trainer, name, replaced, last, share)
                decision = SaveDecision(candidates, self._files, path, replaced, last_path)
            except Exception as raised:  # noqa: BLE001  the other ranks wait for the decision
                error = raised
        decision, failure = broadcast((decision, None if error is None else str(error)))
        if decision is None:
            raise error or MisconfigurationException(str(failure))
        if decision.files is not self._files:
            self._files.restore(decision.files)
        return decision

    def _free_name(
        self, trainer: Trainer, name: Callable[..., str], replaced: str | None, last: str, share: Share | None
    ) -> str:
        """Return the first free name: without a version, or with the lowest one."""
        path, version = name() if share is None else share(name()), self.STARTING_VERSION
        exists: Callable[[str], bool] = filesystem.exists
        while self.enable_version_counter and (path != replaced or path in self._folder.foreign):
            if path != last and self._is_new(trainer, path, share, exists):
                break
            if exists is filesystem.exists and share is None:  # one listing in place of a request for each version
                folder = path.rpartition("/" if filesystem.is_remote(path) else os.sep)[0]
                exists = {filesystem.join(folder, entry) for entry in filesystem.names_in(folder)}.__contains__
            path = name(ver=version) if share is None else share(name(ver=version))
            version += 1
        return path

    def _is_new(self, trainer: Trainer, path: str, share: Share | None, exists: Callable[[str], bool]) -> bool:
        """Whether there is no file of this name; one that the resumed run will write again does not count."""
        new = True if path in self._folder.future else None
        for saver in trainer.checkpoint_callbacks:
            if isinstance(saver, NamedCheckpoints) and path in saver._transactions.writing:  # noqa: SLF001  of this class
                new = False
        if share is not None:
            new = share(new)
            return not self.file_exists(path, trainer) if new is None else new
        return not exists(path) if new is None else new
