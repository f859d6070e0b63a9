"""CSVLogger: metrics.csv and hparams.yaml in a directory of the run."""

from __future__ import annotations

import csv
import io
import os
import zlib
from abc import ABC
from typing import Any

from lightlib.loggers.logger import Logger
from lightlib.loggers.row_files import RowFiles, RowWriter, encoded


class ExperimentWriter(RowWriter):
    """Keeps rows until `save` writes them to ``metrics.csv``; a row is dropped only after it has been written.

    Attributes:
        metrics_file_path: The file.
        metrics: The rows that are not written yet.
    """

    NAME_METRICS_FILE = "metrics.csv"

    def __init__(self, log_dir: str) -> None:
        super().__init__(log_dir)
        self._columns: list[str] = []

    def position(self) -> dict[str, Any]:
        """Flush the file to disk and return its number of rows, columns, bytes, and a checksum."""
        return {**super().position(), "columns": list(self._columns)}

    def _write(self, rows: list[dict[str, float]]) -> None:
        names = dict.fromkeys(self._columns or ["step"])
        for row in rows:
            names.update(dict.fromkeys(row))
        columns = list(names)
        text = _text([[row.get(name, "") for name in columns] for row in rows])
        if columns == self._columns:
            self._append(text)
        else:
            old = _rows(self._read())[1:]
            padded = [[*row, *[""] * (len(columns) - len(row))] for row in old]
            self._replace(_text([columns, *padded]) + text)
        self._columns = columns

    def _note(self, text: str) -> int:
        rows = _rows(text)
        self._columns = rows[0] if rows else []
        return max(0, len(rows) - 1)

    def _as_at(self, position: dict[str, Any]) -> str | None:
        """Return the file's text at `position`, also if later rows have added columns; None when it is another file."""
        text = super()._as_at(position)
        if text is not None:
            return text
        columns, kept = position["columns"], _rows(self._read())[: position["rows"] + 1]
        before = _text([row[: len(columns)] for row in kept])
        return before if zlib.crc32(encoded(before)) == position["crc32"] else None


class CSVFiles(RowFiles[ExperimentWriter], ABC):
    """Base of the CSV loggers of the Trainer and of Fabric; see :class:`CSVLogger`."""

    _writer = ExperimentWriter

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ) -> None:
        super().__init__(save_dir, name, version, prefix, flush_logs_every_n_steps)


class CSVLogger(CSVFiles, Logger):
    """Writes one row per `log_metrics` into ``save_dir/name/version_N/metrics.csv``, next to ``hparams.yaml``.

    New columns may appear at any time: the file is then atomically replaced by one with the wider header, so no row is
    ever lost. An existing version is continued: its rows stay and new ones are appended.

    A run that resumes from its checkpoint (``ckpt_path="last"`` or ``"auto"``) continues its version. Rows written
    after the checkpoint are dropped, because the run writes them again: the file ends up identical to that of an
    uninterrupted run, byte for byte.

    Args:
        save_dir: A path (``~`` is expanded) or a URL for fsspec, such as ``s3://bucket/logs``; at a URL every flush
            writes the entire file.
        name: The directory of all versions; an empty string leaves this level out.
        version: A number n gives ``version_n``, a string is taken unchanged. Default: the next free number.
        prefix: Put before every metric's name, with a ``-``.
        flush_logs_every_n_steps: Rows are written at the first step, every so many steps, and at the end of the run.

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


def _rows(text: str) -> list[list[str]]:
    return [row for row in csv.reader(io.StringIO(text, newline="")) if row]


class _Lines(list[str]):
    """Lines of `csv.writer` that end in a plain newline; with that lineterminator, csv would leave a CR unquoted."""

    def write(self, line: str) -> None:
        self.append(line.removesuffix("\r\n") + "\n")


def _text(rows: list[list[Any]]) -> str:
    lines = _Lines()
    csv.writer(lines).writerows(rows)
    return "".join(lines)
