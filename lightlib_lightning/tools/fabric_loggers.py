"""The loggers of Lightning's Fabric, which call the folder `root_dir`; they also write hparams.yaml."""

from __future__ import annotations

import os
from abc import ABC
from importlib.util import find_spec
from typing import Any

from lightlib.loggers import csv, tensorboard
from lightlib.loggers.log_files import below
from lightlib.loggers.version_logger import VersionLogger

__all__ = ["HAS_TENSORBOARD", "HAS_TENSORBOARDX", "CSVLogger", "TensorBoardLogger"]

HAS_TENSORBOARD, HAS_TENSORBOARDX = find_spec("tensorboard") is not None, find_spec("tensorboardX") is not None


class _ByRootDir(VersionLogger, ABC):
    """Versions in ``root_dir/name``: here `root_dir` is the folder of all experiments."""

    @property
    def root_dir(self) -> str:
        """The folder of all experiments."""
        return self._save_dir

    @property
    def _versions_dir(self) -> str:
        return below(self.root_dir, self.name)


class CSVLogger(_ByRootDir, csv.CSVFiles):
    """Writes metrics to ``metrics.csv``, as lightlib's logger does, with the arguments of Fabric's.

    The logger of the same name for the Trainer counts as an instance of this class.

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


class TensorBoardLogger(_ByRootDir, tensorboard.EventFiles):
    """Writes event files for TensorBoard, as lightlib's logger does, with the arguments of Fabric's.

    The logger of the same name for the Trainer counts as an instance of this class.

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


CSVLogger.register(csv.CSVLogger)
TensorBoardLogger.register(tensorboard.TensorBoardLogger)
