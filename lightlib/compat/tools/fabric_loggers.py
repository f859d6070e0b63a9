"""The loggers of Lightning's Fabric, which call the folder `root_dir`."""

from __future__ import annotations

import os
from typing import Any

from lightlib.loggers import csv, tensorboard

__all__ = ["CSVLogger", "TensorBoardLogger"]


class CSVLogger(csv.CSVLogger):
    """Writes metrics to ``metrics.csv``: lightlib's logger with the arguments of Fabric's.

    Args:
        root_dir: The folder of all experiments; `save_dir` of lightlib's logger.
        name: Of the experiment.
        version: Of the run; default: the next free number.
        prefix: Put before the names of metrics.
        flush_logs_every_n_steps: How often the file is written.

    Example:
        >>> CSVLogger("logs", name="mine", version=3).log_dir
        'logs/mine/version_3'
    """

    def __init__(
        self,
        root_dir: str | os.PathLike[str],
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ) -> None:
        super().__init__(root_dir, name, version, prefix, flush_logs_every_n_steps)


class TensorBoardLogger(tensorboard.TensorBoardLogger):
    """Writes event files for TensorBoard: lightlib's logger with the arguments of Fabric's.

    Args:
        root_dir: The folder of all experiments; `save_dir` of lightlib's logger.
        name: Of the experiment.
        version: Of the run; default: the next free number.
        default_hp_metric: Log ``hp_metric`` with the hyperparameters.
        prefix: Put before the names of metrics.
        sub_dir: A folder within that of the run.
        kwargs: Of the ``SummaryWriter``.
    """

    def __init__(
        self,
        root_dir: str | os.PathLike[str],
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        options: dict[str, Any] = {"default_hp_metric": default_hp_metric, "prefix": prefix, "sub_dir": sub_dir}
        super().__init__(root_dir, name, version, **options, **kwargs)
