"""CheckpointUploads: the files of a ModelCheckpoint that a logger has yet to upload."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lightlib.report import warn


@dataclass(frozen=True)
class CheckpointFile:
    """A checkpoint on this machine: a file, or a directory for a sharded one.

    Attributes:
        settings: The arguments of the `ModelCheckpoint`, for the description of the upload.
    """

    path: str
    score: float | None
    aliases: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)


class CheckpointUploads:
    """Chooses the checkpoints to upload when one is written, and at the end of a run.

    Args:
        log_model: ``"all"``: upload each checkpoint when it is written. True: at the end of the run; at once if
            ``save_top_k=-1``, which keeps all of them. False: never.
    """

    def __init__(self, log_model: bool | str) -> None:
        self._log_model = log_model
        self._uploaded: dict[str, float] = {}
        self._waiting: Any = None

    def after_save(self, callback: Any) -> list[CheckpointFile]:
        """Return the checkpoints of a `ModelCheckpoint` to upload now; with True the rest waits for the end."""
        if self._log_model == "all" or (self._log_model is True and getattr(callback, "save_top_k", None) == -1):
            return self._new(callback)
        if self._log_model is True:
            self._waiting = callback
        return []

    def at_end(self) -> list[CheckpointFile]:
        """Return the checkpoints that waited for the end of the run."""
        return [] if self._waiting is None else self._new(self._waiting)

    def _new(self, callback: Any) -> list[CheckpointFile]:
        """Return the checkpoints that are new or have changed since the last upload, oldest first."""
        best, last = callback.best_model_path, callback.last_model_path
        scores: dict[str, Any] = {last: getattr(callback, "current_score", None), best: callback.best_model_score}
        scores.update(callback.best_k_models)
        remote = [path for path in scores if "://" in path]
        if remote:
            warn(f"The checkpoints {', '.join(remote)} are not on this machine and are not uploaded by the logger.")
        changed = {path: os.path.getmtime(path) for path in scores if path and os.path.exists(path)}
        new = sorted(
            (path for path, time in changed.items() if self._uploaded.get(path) != time), key=changed.__getitem__
        )
        self._uploaded.update({path: changed[path] for path in new})
        names = ("monitor", "mode", "save_last", "save_top_k", "save_weights_only")
        settings = {name: getattr(callback, name) for name in names if hasattr(callback, name)}
        return [
            CheckpointFile(
                path,
                scores[path].item() if isinstance(scores[path], Tensor) else scores[path],
                ("latest", "best") if path == best else ("latest",),
                settings,
            )
            for path in new
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_waiting": None}


def runs_with_checkpoints(folder: str) -> list[str]:
    """Return the folders in `folder` that hold checkpoints, one for each run, the most recently changed first."""
    if "://" in folder or not os.path.isdir(folder):
        return []
    with os.scandir(folder) as entries:
        inside = ((entry.path, os.path.join(entry.path, "checkpoints")) for entry in entries if entry.is_dir())
        times = {run: os.path.getmtime(place) for run, place in inside if os.path.isdir(place)}
    return sorted(times, key=times.__getitem__, reverse=True)
