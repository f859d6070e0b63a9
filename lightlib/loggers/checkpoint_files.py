"""Which of a ModelCheckpoint's files a logger has not uploaded yet."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from lightlib.report import warn

__all__ = ["CheckpointFile", "new_checkpoints", "runs_with_checkpoints", "settings", "uploads_at_once"]


@dataclass(frozen=True)
class CheckpointFile:
    """A checkpoint on this machine: a file, or a directory for a sharded one."""

    path: str
    score: float | None
    aliases: tuple[str, ...]


def new_checkpoints(callback: Any, uploaded: dict[str, float]) -> list[CheckpointFile]:
    """Return the callback's checkpoints that are new or have changed, oldest first, and note them in `uploaded`.

    Args:
        callback: A `ModelCheckpoint`.
        uploaded: Path to the time of change, of what was returned before; updated by this call.
    """
    best, last = callback.best_model_path, callback.last_model_path
    scores: dict[str, Any] = {last: getattr(callback, "current_score", None), best: callback.best_model_score}
    scores.update(callback.best_k_models)
    remote = [path for path in scores if "://" in path]
    if remote:
        warn(f"The checkpoints {', '.join(remote)} are not on this machine and are not uploaded by the logger.")
    changed = {path: os.path.getmtime(path) for path in scores if path and os.path.exists(path)}
    new = sorted((path for path, time in changed.items() if uploaded.get(path) != time), key=changed.__getitem__)
    uploaded.update({path: changed[path] for path in new})
    return [
        CheckpointFile(
            path,
            None if scores[path] is None else float(scores[path]),
            ("latest", "best") if path == best else ("latest",),
        )
        for path in new
    ]


def runs_with_checkpoints(folder: str) -> list[str]:
    """Return the folders in `folder` that hold checkpoints, one for each run; the one that changed last comes first."""
    if "://" in folder or not os.path.isdir(folder):
        return []
    with os.scandir(folder) as entries:
        inside = ((entry.path, os.path.join(entry.path, "checkpoints")) for entry in entries if entry.is_dir())
        times = {run: os.path.getmtime(place) for run, place in inside if os.path.isdir(place)}
    return sorted(times, key=times.__getitem__, reverse=True)


def settings(callback: Any) -> dict[str, Any]:
    """Return how the `ModelCheckpoint` was set up, for the description of an upload."""
    names = ("monitor", "mode", "save_last", "save_top_k", "save_weights_only")
    return {name: getattr(callback, name) for name in names if hasattr(callback, name)}


def uploads_at_once(log_model: bool | str, callback: Any) -> bool:
    """Return whether every checkpoint is uploaded when it is written: ``"all"``, or True and all are kept anyway."""
    return log_model == "all" or (log_model is True and getattr(callback, "save_top_k", None) == -1)
