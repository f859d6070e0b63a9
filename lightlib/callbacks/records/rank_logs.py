"""RankLogFiles: the messages of `logging` and warnings in a file for each rank."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.checkpoint.storage import filesystem as storage
from lightlib.errors import check_int, check_type, wrong_type, wrong_value

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class RankLogFiles(Callback):
    """Writes the messages of `logging`, and warnings, to ``log.rank0``, ``log.rank1``, … during a run.

    Each line has the time, the rank, the level and the name of the logger. Lines are appended, so a resumed run
    continues its files. Handlers that exist already still get all messages, and no logger changes its level: to record
    INFO of a logger of your own, set its level.

    Args:
        folder: Where the files are written. Default: the folder of the first logger's run, else the Trainer's
            `default_root_dir`.
        level: The least level that is written, a name or a number. Default: ``"INFO"``.
        ranks: The ranks that write a file. None: all. Default: None.
        upload_to: A folder or URL for fsspec, to which each file is copied after every epoch and at the end. A copy
            that fails is a warning. Default: none.
        name_every_n_lines: How often a line with the folder of the run is written between them. Default: 1000.

    Raises:
        ArgumentTypeError: An argument of another type.
        MisconfigurationException: An unknown `level`, or a number out of range.

    Example:
        >>> import lightlib as L
        >>> trainer = L.Trainer(callbacks=[RankLogFiles("logs", level="DEBUG", ranks=[0])])
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        level: str | int = "INFO",
        ranks: Sequence[int] | None = None,
        upload_to: str | os.PathLike[str] | None = None,
        name_every_n_lines: int = 1000,
    ) -> None:
        super().__init__()
        for name, value in (("folder", folder), ("upload_to", upload_to)):
            check_type("RankLogFiles", name, value, str | os.PathLike | None, "a path, or None", "'logs'")
        if folder is not None and "://" in os.fspath(folder):
            expected = "a local path: files at a URL cannot grow by lines"
            fix = f"RankLogFiles(upload_to={os.fspath(folder)!r}) copies the local files there."
            raise wrong_value("RankLogFiles", "folder", os.fspath(folder), expected, fix=fix)
        if ranks is not None and not _are_ranks(ranks):
            raise wrong_type("RankLogFiles", "ranks", ranks, "a list of ranks", "[0]")
        check_int("RankLogFiles", "name_every_n_lines", name_every_n_lines, 1, example=1000)
        self.folder, self.level, self.ranks, self.upload_to = folder, level, ranks, upload_to
        self._level = _number_of(level)
        self.name_every_n_lines = name_every_n_lines
        self._handler: _RankHandler | None = None
        self._show_warning: Any = None

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if self.ranks is not None and trainer.global_rank not in self.ranks:
            return
        folder = os.fspath(self.folder or self._folder_of_run(trainer))
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"log.rank{trainer.global_rank}")
        self._handler = _RankHandler(path, trainer.global_rank, self._level, folder, self.name_every_n_lines)
        for logger in _receivers():
            logger.addHandler(self._handler)
        self._show_warning = warnings.showwarning
        warnings.showwarning = self._warning  # as logging.captureWarnings does

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._copy()

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if self._handler is None:
            return
        handler, self._handler = self._handler, None
        for logger in _receivers():
            logger.removeHandler(handler)
        handler.close()
        if warnings.showwarning == self._warning:
            warnings.showwarning = self._show_warning
        self._show_warning = None
        self._copy(handler.baseFilename)

    def _folder_of_run(self, trainer: Trainer) -> str:
        run = trainer.loggers[0].run_dir(trainer.default_root_dir) if trainer.loggers else None
        return trainer.default_root_dir if run is None or "://" in run else run

    def _warning(self, message: Any, category: Any, filename: str, lineno: int, *more: Any, **others: Any) -> None:
        if self._handler is not None:
            text = warnings.formatwarning(message, category, filename, lineno).rstrip()
            record = logging.LogRecord("py.warnings", logging.WARNING, filename, lineno, text, None, None)
            self._handler.handle(record)
        self._show_warning(message, category, filename, lineno, *more, **others)

    def _copy(self, path: str | None = None) -> None:
        path = path or (None if self._handler is None else self._handler.baseFilename)
        if self.upload_to is None or path is None:
            return
        target = storage.join(self.upload_to, os.path.basename(path))
        try:
            storage.copy(path, target)
        except Exception as error:  # noqa: BLE001  a store may raise anything
            report.warn_once(
                ("RankLogFiles", target), f"{path} could not be copied to {target}: {type(error).__name__}: {error}"
            )


class _RankHandler(logging.FileHandler):
    """Writes lines with the rank, and now and then one with the folder of the run."""

    def __init__(self, path: str, rank: int, level: int, name: str, every: int) -> None:
        super().__init__(path, encoding="utf-8")
        self.setLevel(level)
        self.setFormatter(logging.Formatter(f"%(asctime)s [rank {rank}] %(levelname)s %(name)s: %(message)s"))
        self._name_of_run, self._every, self._lines = name, every, 0

    def emit(self, record: logging.LogRecord) -> None:
        if self._lines % self._every == 0:
            text = f"the run of {self._name_of_run}"
            super().emit(logging.LogRecord("lightlib", record.levelno, "", 0, text, None, None))
        self._lines += 1
        super().emit(record)


def _receivers() -> list[logging.Logger]:
    """Return the root, and the loggers that do not pass their messages on to it but have handlers."""
    loggers = [each for each in logging.Logger.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    return [logging.getLogger(), *(each for each in loggers if each.handlers and not each.propagate)]


def _are_ranks(values: Any) -> bool:
    is_sequence = isinstance(values, (list, tuple, range, set))
    return is_sequence and all(type(value) is int and value >= 0 for value in values)


def _number_of(level: str | int) -> int:
    number = logging.getLevelName(level.upper()) if isinstance(level, str) else level
    if type(number) is not int:
        expected = "a level of logging: DEBUG, INFO, WARNING, ERROR, CRITICAL, or a number"
        raise wrong_value("RankLogFiles", "level", level, expected, "'INFO'")
    return number
