"""JSONLLogger: metrics.jsonl, with one JSON object a line, and hparams.yaml in a directory of the run."""

from __future__ import annotations

import json
import math
import os
from typing import Any

from lightlib.loggers.logger import Logger
from lightlib.loggers.row_files import RowFiles, RowWriter


class JSONLWriter(RowWriter):
    """Keeps rows until `save` writes them to ``metrics.jsonl``; a row is dropped only after it has been written.

    Attributes:
        metrics_file_path: The file.
        metrics: The rows that are not written yet.
    """

    NAME_METRICS_FILE = "metrics.jsonl"

    def _write(self, rows: list[dict[str, float]]) -> None:
        self._append("".join(map(_line, rows)))

    def _note(self, text: str) -> int:
        return text.count("\n")


class JSONLLogger(RowFiles[JSONLWriter], Logger):
    """Writes each `log_metrics` as a JSON object into ``save_dir/name/version_N/metrics.jsonl``.

    Each object is one line, which begins with the step and is written at once: a process that is killed leaves every
    line that it has logged. Metrics that are not logged at a step are not in its line. NaN and infinite values, which
    JSON does not have, are the strings ``"nan"``, ``"inf"`` and ``"-inf"``, from which ``float`` makes numbers again.

    A run that resumes from its checkpoint (``ckpt_path="last"`` or ``"auto"``) continues its version. Lines that were
    written after the checkpoint are dropped, because the run writes them again: the file ends up identical to that of
    an uninterrupted run, byte for byte.

    Args:
        save_dir: A path (``~`` is expanded) or a URL for fsspec, such as ``s3://bucket/logs``; at a URL every flush
            writes the entire file.
        name: The directory of all versions; an empty string leaves this level out.
        version: A number n gives ``version_n``, a string is taken unchanged. Default: the next free number.
        prefix: Put before every metric's name, with a ``-``.
        flush_logs_every_n_steps: Lines are written at the first step, every so many steps, and at the end of the run.
            Default: 1, each line at once.

    Raises:
        MisconfigurationException: `name` or `version` leads out of `save_dir`, `flush_logs_every_n_steps` is below 1;
            and, when the run starts, the directory cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> logger = JSONLLogger(tempfile.mkdtemp())
        >>> logger.log_metrics({"loss": 0.5}, step=0)
        >>> logger.log_metrics({"loss": float("nan"), "val/accuracy": 1.0}, step=1)
        >>> print(pathlib.Path(logger.experiment.metrics_file_path).read_text().rstrip())
        {"step": 0, "loss": 0.5}
        {"step": 1, "loss": "nan", "val/accuracy": 1.0}
    """

    _writer = JSONLWriter

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 1,
    ) -> None:
        super().__init__(save_dir, name, version, prefix, flush_logs_every_n_steps)


def _line(row: dict[str, float]) -> str:
    values: dict[str, Any] = {"step": row["step"]}
    for name, value in row.items():
        values[name] = value if math.isfinite(value) else str(value)
    return json.dumps(values) + "\n"
