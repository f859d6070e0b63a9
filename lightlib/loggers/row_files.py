"""RowFiles and RowWriter: loggers that append rows to one file, and that file, which can be truncated."""

from __future__ import annotations

import errno
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from lightlib import safe_files
from lightlib.checkpoint.storage import filesystem as storage
from lightlib.errors import MisconfigurationException
from lightlib.loggers import log_files
from lightlib.loggers.log_files import HPARAMS_FILE, below, filesystem, is_url
from lightlib.loggers.logger import number, prefixed, rank_zero_experiment
from lightlib.loggers.media.items import Media
from lightlib.loggers.version_logger import VersionLogger, check_inside
from lightlib.report import info, rank_zero_only, warn


class RowWriter(ABC):
    """Keeps rows until `save` writes them to a file; a row is dropped only after it has been written.

    Attributes:
        metrics_file_path: The file.
        metrics: The rows that are not written yet.
    """

    NAME_HPARAMS_FILE = HPARAMS_FILE
    NAME_METRICS_FILE: ClassVar[str]

    def __init__(self, log_dir: str) -> None:
        self.metrics_file_path = below(log_dir, self.NAME_METRICS_FILE)
        self.metrics: list[dict[str, float]] = []
        self._rows = self._size = self._sum = 0  # of the file
        self._is_known = False  # whether the three numbers are those of the file

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record one row. Without `step` it is the number of the row."""
        step = self._rows + len(self.metrics) if step is None else step
        row = {name: value if type(value) is float else number(name, value) for name, value in metrics.items()}
        row["step"] = step
        self.metrics.append(row)

    def save(self) -> None:
        """Write the rows that are not written yet."""
        if not self.metrics:
            return
        self._read_position()
        self._write(self.metrics)
        self._rows += len(self.metrics)
        self.metrics.clear()

    def position(self) -> dict[str, Any]:
        """Flush the file to disk and return its number of rows and bytes, and a checksum."""
        self._read_position()
        log_files.flush(self.metrics_file_path)
        return {"rows": self._rows, "bytes": self._size, "crc32": self._sum}

    def begins_with(self, position: dict[str, Any]) -> bool:
        """Whether the file begins with the rows of `position`."""
        return self._as_at(position) is not None

    def cut(self, position: dict[str, Any]) -> None:
        """Restore the file at `position`, without later rows and the columns that they added."""
        text = self._as_at(position)
        assert text is not None, "begins_with returned True"
        log_files.remove(self.metrics_file_path + ".part")
        if not text:
            log_files.remove(self.metrics_file_path)
        elif text != self._read():
            self._replace(text)
        self._is_known = False

    @abstractmethod
    def _write(self, rows: list[dict[str, float]]) -> None:
        """Append rows to the file; its position is known."""

    @abstractmethod
    def _note(self, text: str) -> int:
        """Return the number of rows in the complete lines of the file; a subclass also notes its columns."""

    def _as_at(self, position: dict[str, Any]) -> str | None:
        """Return the file's text at `position`; None when it is another file."""
        data, size = encoded(self._read()), position["bytes"]
        is_same = size <= len(data) and zlib.crc32(data[:size]) == position["crc32"]
        return data[:size].decode() if is_same else None

    def _read_position(self) -> None:
        """Read the rows that another process has left in the file; drop its last line if that is incomplete."""
        if self._is_known:
            return
        text = self._read()
        complete = text[: text.rfind("\n") + 1]
        if complete != text:
            torn = text[len(complete) :]
            warn(f"The last line of {self.metrics_file_path} was never finished and is dropped: {torn!r}")
            self._replace(complete)
        data = encoded(complete)
        self._rows, self._size, self._sum = self._note(complete), len(data), zlib.crc32(data)
        self._is_known = True

    def _read(self) -> str:
        path = self.metrics_file_path
        if is_url(path):
            files, key = filesystem(path)
            return files.cat_file(key).decode() if files.exists(key) else ""
        if not os.path.lexists(path):
            return ""
        with open(safe_files.descriptor(path, os.O_RDONLY), encoding="utf-8", newline="") as file:
            return file.read()

    def _append(self, text: str) -> None:
        if is_url(self.metrics_file_path):
            self._replace(self._read() + text)
            return
        data = encoded(text)
        handle = safe_files.descriptor(self.metrics_file_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with open(handle, "ab", buffering=0) as file:
            end = file.tell()
            if file.write(data) != len(data):
                file.truncate(end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.metrics_file_path)
        self._size, self._sum = self._size + len(data), zlib.crc32(data, self._sum)

    def _replace(self, text: str) -> None:
        data = encoded(text)
        log_files.replace(self.metrics_file_path, data)
        self._size, self._sum = len(data), zlib.crc32(data)


W = TypeVar("W", bound=RowWriter)


class RowFiles(VersionLogger, ABC, Generic[W]):
    """A logger that appends rows to one file in the directory of its version.

    A run that resumes from its checkpoint continues the file as it was at the checkpoint.
    """

    _writer: type[W]

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None,
        version: int | str | None,
        prefix: str,
        flush_logs_every_n_steps: int,
    ) -> None:
        if flush_logs_every_n_steps < 1:
            raise MisconfigurationException(
                f"flush_logs_every_n_steps is {flush_logs_every_n_steps}.",
                expected="a number of steps, 1 or more.",
                fix=f"{type(self).__name__}(..., flush_logs_every_n_steps=1) writes every row at once.",
            )
        super().__init__(save_dir, name, version, prefix)
        self._flush_every = flush_logs_every_n_steps
        self._flushed_step: int | None = None
        self._experiment: W | None = None

    @property
    @rank_zero_experiment
    def experiment(self) -> W:
        if self._experiment is None:
            path = self._make_directory(self.log_dir)
            assert path is not None, "rank zero knows the version"
            self._experiment = self._writer(path)
        return self._experiment

    def prepare(self) -> None:
        self._make_directory(self.log_dir)
        self._settled = True

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record one row. Without `step` it is the step after the last one."""
        step = self._next_step if step is None else int(step)
        self._next_step = step + 1
        self.experiment.log_metrics(prefixed(metrics, self._prefix), step)
        every_row = self._flush_every == 1  # also a second one of the same step
        if every_row or self._flushed_step is None or abs(step - self._flushed_step) >= self._flush_every:
            self.save()
            self._flushed_step = step

    @rank_zero_only
    def log_media(self, name: str, media: Media, step: int | None = None) -> None:
        """Write a file ``media/<name>/<step>.png`` (or .json, .txt, .csv, .wav) into the directory of the run."""
        folder = self._make_directory(below(self.log_dir or "", "media", check_inside("name", name)))
        assert folder is not None, "rank zero knows the version"
        log_files.replace(below(folder, f"{self._step_of_media(step):08d}{media.extension}"), media.encoded())

    @rank_zero_only
    def save(self) -> None:
        """Write the rows that are in memory, and an ``hparams.yaml`` if there is none yet."""
        if self._experiment is not None:
            self._experiment.save()
        if not self._has_hparams and (self._experiment is not None or self._settled):
            self._write_hparams(only_if_absent=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the version, the hyperparameters, and the present length of the file."""
        if rank_zero_only.rank != 0 or self._known_version is None:
            return {}
        return {**self._place(), "file": self.experiment.position()}

    @rank_zero_only
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the version of the checkpoint, and drop the rows that were written after it.

        If the file is not the one that the checkpoint describes, warn and leave it unchanged.
        """
        path = self._directory_in(state_dict)
        if path is None:
            return
        writer = self._writer(path)
        here, file = state_dict["root"] == self._place()["root"], state_dict["file"]
        is_same = writer.begins_with(file)
        if not is_same:
            warn(
                f"{writer.metrics_file_path} does not match the checkpoint: its first {file['rows']} rows are "
                "missing or were changed. "
                + ("It is continued unchanged." if here else "It stays unchanged, and the run logs to a new version.")
            )
        if not here and not (is_same and file["rows"]):  # without rows, another run's file cannot be identified
            return
        self._continue_in(state_dict)
        self._experiment = self._flushed_step = None
        if is_same:
            writer.cut(file)

    @rank_zero_only
    def start_anew(self) -> None:
        """Rename the file of an earlier start; needed only when the version was given, so is the same."""
        folder = None if self._automatic or self._settled else self.log_dir
        if folder is None:
            return
        path = below(folder, self._writer.NAME_METRICS_FILE)
        if log_files.size_of(path):
            name = log_files.free_name(folder, *os.path.splitext(self._writer.NAME_METRICS_FILE))
            info(f"No checkpoint was found, so the rows of an earlier start in {folder!r} are moved to {name}.")
            storage.rename(path, below(folder, name))
            self._experiment = None

    def __getstate__(self) -> dict[str, Any]:
        self.save()
        return {**self.__dict__, "_experiment": None}


def encoded(text: str) -> bytes:
    """Return `text` as UTF-8; a row is written even if a name in it is not valid text."""
    return text.encode(errors="backslashreplace")
