"""JSONLLogger: metrics and hyperparameters of a run as JSON lines."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightlib.loggers import Logger, plain
from lightlib.report import rank_zero_only

__all__ = ["JSONLLogger"]


class JSONLLogger(Logger):
    """Writes one JSON object per call of `log_metrics` and `log_hyperparams`.

    The lines go to ``save_dir/name/version/metrics.jsonl``. NaN and infinite values, which JSON does not have, are
    written as the strings ``"nan"``, ``"inf"`` and ``"-inf"``.

    Args:
        save_dir: The folder of all experiments.
        name: The folder of this experiment.
        version: The folder of this run.
    """

    def __init__(self, save_dir: str | os.PathLike[str], name: str = "lightning_logs", version: str = "run") -> None:
        self._save_dir, self._name, self._version = os.fspath(save_dir), name, version
        self._lines: list[str] = []

    @property
    def name(self) -> str:
        return self._name

    @property
    def version(self) -> str:
        return self._version

    @property
    def save_dir(self) -> str:
        return self._save_dir

    @property
    def log_dir(self) -> str:
        return os.path.join(self._save_dir, self._name, self._version)

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.log_dir, "metrics.jsonl")

    @rank_zero_only
    def prepare(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self._lines.append(_line({"step": step, **metrics}))

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self._lines.append(_line({"hyperparameters": plain(params)}))

    @rank_zero_only
    def save(self) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(self._lines)
        self._lines.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"bytes": self.path.stat().st_size} if self.path.exists() else {}

    @rank_zero_only
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.path.exists() and self.path.stat().st_size > state_dict["bytes"]:
            os.truncate(self.path, state_dict["bytes"])

    @rank_zero_only
    def start_anew(self) -> None:
        if self.path.exists():
            self.path.replace(self.path.with_suffix(".jsonl.earlier"))


def _line(values: dict[str, Any]) -> str:
    return json.dumps(_finite(values), default=str, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """Return `value` with a string in place of each number that JSON cannot write."""
    if isinstance(value, Mapping):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
