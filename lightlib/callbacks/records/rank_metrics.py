"""RankMetricFiles: the metrics of each rank, or of chosen ones, as JSON lines in a folder of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightlib.callbacks.callback import Callback
from lightlib.errors import wrong_type
from lightlib.loggers import log_files
from lightlib.loggers.jsonl import JSONLWriter

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class RankMetricFiles(Callback):
    """Writes the metrics of each rank to a file of its own, ``rank_N/metrics.jsonl``.

    Loggers record the values of rank zero only. Values of a step are those of the rank's shard of the data, unless they
    are logged with ``sync_dist=True``; values of an epoch are those of all ranks. A resumed run continues its files as
    they were at the checkpoint; a new callback begins new ones.

    Args:
        folder: Where the folders of the ranks are made. Default: that of the first logger's run, else the Trainer's
            `default_root_dir`.
        ranks: The ranks that write a file. None: all. Default: None.

    Raises:
        ArgumentTypeError: `folder` is no local path, or `ranks` no list of ranks.

    Example:
        >>> import lightlib as L
        >>> trainer = L.Trainer(callbacks=[RankMetricFiles("logs", ranks=[0, 1])])
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, ranks: Sequence[int] | None = None) -> None:
        super().__init__()
        if folder is not None and not _is_local(folder):
            raise wrong_type("RankMetricFiles", "folder", folder, "a local path", "'logs'")
        if ranks is not None and not _are_ranks(ranks):
            raise wrong_type("RankMetricFiles", "ranks", ranks, "a list of ranks", "[0]")
        self.folder, self.ranks = folder, ranks
        self._writer: JSONLWriter | None = None
        self._rows = 0

    def on_log(self, trainer: Trainer, pl_module: Module, metrics: Mapping[str, float]) -> None:
        if self.ranks is None or trainer.global_rank in self.ranks:
            self._writer = self._writer or self._opened(trainer)
            self._writer.log_metrics(metrics, trainer.global_step)
            self._writer.save()
        self._rows += 1  # on every rank: the state that is saved is that of rank 0

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        self._writer = None

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._rows = state_dict["rows"]

    def _opened(self, trainer: Trainer) -> JSONLWriter:
        """Return the file of this rank, without the rows after those that this callback knows of."""
        folder = Path(self.folder or trainer.log_dir or trainer.default_root_dir) / f"rank_{trainer.global_rank}"
        folder.mkdir(parents=True, exist_ok=True)
        writer = JSONLWriter(str(folder))
        file = Path(writer.metrics_file_path)
        lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        if len(lines) > self._rows:
            log_files.replace(str(file), b"".join(lines[: self._rows]))
        return writer


def _are_ranks(values: Any) -> bool:
    is_sequence = isinstance(values, (list, tuple, range, set))
    return is_sequence and all(type(value) is int and value >= 0 for value in values)


def _is_local(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike)) and "://" not in os.fspath(value)
