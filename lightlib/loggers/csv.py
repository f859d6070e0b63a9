"""CSVLogger: metrics.csv and hparams.yaml in a directory of the run."""

from __future__ import annotations

import csv
import errno
import io
import os
from collections.abc import Callable, Mapping
from typing import Any

from lightlib.errors import MisconfigurationException
from lightlib.loggers.hyperparameters import plain
from lightlib.loggers.logger import Logger, number, prefixed, rank_zero_experiment
from lightlib.loggers.run_directory import RunDirectory, filesystem, is_url
from lightlib.report import rank_zero_only, warn

__all__ = ["CSVLogger", "ExperimentWriter"]


class CSVLogger(Logger):
    """Writes one row per `log_metrics` into ``save_dir/name/version_N/metrics.csv``, and ``hparams.yaml`` beside it.

    New columns may appear at any time: the file is then written anew with the wider header, in one step, so that no row
    is ever lost. A version that exists is continued: its rows stay and new ones are appended.

    Args:
        save_dir: A path (``~`` is expanded) or a URL for fsspec, such as ``s3://bucket/logs``; at a URL every flush
            writes the whole file.
        name: The directory of all versions; an empty string leaves this level out.
        version: A number n gives ``version_n``, a string is taken as it is. Default: the next free number.
        prefix: Put before every metric's name, with a ``-``.
        flush_logs_every_n_steps: Rows are written at the first step and whenever so many steps have passed, and at the
            end of the run.

    Raises:
        MisconfigurationException: `name` or `version` leads out of `save_dir`, `flush_logs_every_n_steps` is below 1;
            and, when the run starts, the directory cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> logger = CSVLogger(tempfile.mkdtemp())
        >>> logger.log_metrics({"loss": 0.5}, step=0)
        >>> logger.log_metrics({"loss": 0.25, "accuracy": 1.0}, step=1)
        >>> logger.save()
        >>> print(pathlib.Path(logger.experiment.metrics_file_path).read_text().rstrip())
        step,loss,accuracy
        0,0.5,
        1,0.25,1.0
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ) -> None:
        if flush_logs_every_n_steps < 1:
            raise MisconfigurationException(
                f"flush_logs_every_n_steps is {flush_logs_every_n_steps}.",
                expected="a number of steps, 1 or more.",
                fix="CSVLogger(..., flush_logs_every_n_steps=1) writes every row at once.",
            )
        self._directory = RunDirectory(save_dir, name, version)
        self._prefix = prefix
        self._flush_every = flush_logs_every_n_steps
        self._flushed_step: int | None = None
        self._next_step = 0
        self._experiment: ExperimentWriter | None = None
        self.hparams: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """The directory of all versions, below `save_dir`."""
        return self._directory.name

    @property
    def version(self) -> int | str | None:
        """The version of this run. Reading it on rank zero takes the next free one, if none was given."""
        return self._directory.version

    @property
    def save_dir(self) -> str:
        """The directory of all experiments."""
        return self._directory.save_dir

    @property
    def root_dir(self) -> str:
        """``save_dir/name``."""
        return self._directory.root

    @property
    def log_dir(self) -> str | None:
        """``save_dir/name/version_N``; None on other processes than rank zero while the version is not shared."""
        return self._directory.path

    @property
    @rank_zero_experiment
    def experiment(self) -> ExperimentWriter:
        """The writer of ``metrics.csv``."""
        if self._experiment is None:
            path = self._directory.prepare()
            assert path is not None, "rank zero knows the version"
            self._experiment = ExperimentWriter(path)
        return self._experiment

    def prepare(self) -> None:
        """Create the directory of this run.

        Raises:
            MisconfigurationException: It cannot be created or written to.
        """
        self._directory.prepare()

    def share(self, broadcast: Callable[[Any], Any]) -> None:
        """Take over the version that rank zero chose."""
        self._directory.version = broadcast(self._directory.version)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record one row. Without `step` it is the step after the last one."""
        step = self._next_step if step is None else int(step)
        self._next_step = step + 1
        self.experiment.log_metrics(prefixed(metrics, self._prefix), step)
        if self._flushed_step is None or abs(step - self._flushed_step) >= self._flush_every:
            self.save()
            self._flushed_step = step

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Add `params` to ``hparams.yaml``, nested as they are, with secrets masked."""
        self.hparams.update(plain(params))
        self._directory.write_hparams(self.hparams)

    @rank_zero_only
    def save(self) -> None:
        """Write all rows that are still in memory."""
        if self._experiment is not None:
            self._experiment.save()

    def __getstate__(self) -> dict[str, Any]:
        self.save()
        return {**self.__dict__, "_experiment": None}


class ExperimentWriter:
    """Keeps rows until `save` writes them to ``metrics.csv``; a row is forgotten only after it has been written.

    Attributes:
        metrics_file_path: The file.
        metrics: The rows that are not written yet.
    """

    def __init__(self, log_dir: str) -> None:
        self.metrics_file_path = f"{log_dir.rstrip('/')}/metrics.csv" if is_url(log_dir) else f"{log_dir}/metrics.csv"
        self.metrics: list[dict[str, float]] = []
        self._columns: list[str] | None = None

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Record one row."""
        row = {name: value if type(value) is float else number(name, value) for name, value in metrics.items()}
        row["step"] = step
        self.metrics.append(row)

    def save(self) -> None:
        """Write the rows that are not written yet."""
        if not self.metrics:
            return
        if self._columns is None:
            self._columns = self._found_columns()
        names = dict.fromkeys(self._columns or ["step"])
        for row in self.metrics:
            names.update(dict.fromkeys(row))
        columns = list(names)
        rows = _text([[row.get(name, "") for name in columns] for row in self.metrics])
        if columns == self._columns:
            self._append(rows)
        else:
            old = list(csv.reader(io.StringIO(self._read(), newline="")))[1:]
            padded = [[*row, *[""] * (len(columns) - len(row))] for row in old if row]
            self._replace(_text([columns, *padded]) + rows)
        self._columns = columns
        self.metrics.clear()

    def _found_columns(self) -> list[str]:
        """The header of a file that another run left. Its last line is dropped if that run died while writing it."""
        text = self._read()
        complete = text[: text.rfind("\n") + 1]
        if complete != text:
            torn = text[len(complete) :]
            warn(f"The last line of {self.metrics_file_path} was never finished and is dropped: {torn!r}")
            self._replace(complete)
        return next(csv.reader(io.StringIO(complete, newline="")), [])

    def _read(self) -> str:
        path = self.metrics_file_path
        if is_url(path):
            files, key = filesystem(path)
            return files.cat_file(key).decode() if files.exists(key) else ""
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()

    def _append(self, text: str) -> None:
        if is_url(self.metrics_file_path):
            self._replace(self._read() + text)
            return
        data = _encoded(text)
        with open(self.metrics_file_path, "ab", buffering=0) as file:
            end = file.tell()
            if file.write(data) != len(data):
                file.truncate(end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.metrics_file_path)

    def _replace(self, text: str) -> None:
        path = self.metrics_file_path
        if is_url(path):
            files, key = filesystem(path)
            files.pipe_file(key, _encoded(text))
            return
        with open(path + ".part", "wb") as file:
            file.write(_encoded(text))
        os.replace(path + ".part", path)


def _encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace")  # a name that is no valid text must not keep its row from the file


class _Lines(list[str]):
    """Takes lines from `csv.writer` and ends them in a plain newline; asked for one, csv leaves a CR unquoted."""

    def write(self, line: str) -> None:
        self.append(line.removesuffix("\r\n") + "\n")


def _text(rows: list[list[Any]]) -> str:
    lines = _Lines()
    csv.writer(lines).writerows(rows)
    return "".join(lines)
