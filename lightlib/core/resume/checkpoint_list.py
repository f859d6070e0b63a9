"""Checkpoints in the folders of a run, with their labels, from the newest to the oldest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from lightlib.checkpoint import formats
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.content import INTERRUPTED
from lightlib.checkpoint.storage.store import each, file_system

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

ENDING = ".ckpt"
_DEPTH = 2  # a file name's template may make folders


class ListedCheckpoint:
    """A checkpoint in a folder, its label, and when it was written, which is looked up when it is needed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.label = formats.label_of(path)

    @cached_property
    def written(self) -> float:
        """When it was written, in seconds since 1970; 0 when that cannot be known."""
        path = self.path
        if not filesystem.is_remote(path):
            try:
                return os.lstat(filesystem.local_path(path)).st_mtime
            except FileNotFoundError:
                return 0.0
        index = filesystem.join(path, filesystem.INDEX)
        files, name = file_system(index if filesystem.exists(index) else path)
        try:
            return float(filesystem.with_retries(path, lambda: files.modified(name)).timestamp())
        except (FileNotFoundError, NotImplementedError):
            return 0.0

    @property
    def is_resumable(self) -> bool:
        """Whether a run can resume from it, by its label."""
        return self.label is None or not self.label.weights_only

    def is_last(self, prefixes: Sequence[str]) -> bool:
        """Whether its name is that of a last checkpoint."""
        name = self.path.replace(os.sep, "/").rsplit("/", 1)[-1]
        return name == INTERRUPTED or any(name.startswith(prefix) for prefix in prefixes)


def folders_of(trainer: Trainer) -> list[str]:
    """Return the folders of the checkpoint callbacks.

    A folder next to the logs differs in every run if the logger counts versions. Then the folders of all versions are
    returned, because the chosen checkpoint determines the version that the run continues.
    """
    folders: list[str] = []
    places = trainer.logger.earlier_run_dirs(trainer.default_root_dir) if trainer.logger else []
    earlier = [filesystem.join(place, "checkpoints") for place in places]
    for callback in trainer.checkpoint_callbacks:
        folder = getattr(callback, "dirpath", None)
        if folder is not None:
            folders.append(os.fspath(folder))
        elif hasattr(callback, "folder"):
            folders += earlier or [callback.folder(trainer)]
    return list(dict.fromkeys(folders))


def checkpoints_in(folders: Sequence[str], trainer: Trainer) -> list[ListedCheckpoint]:
    """Return the checkpoints in folders."""
    endings = tuple({getattr(callback, "FILE_EXTENSION", ENDING) for callback in trainer.checkpoint_callbacks})

    def paths_of(folder: str) -> list[str]:
        return paths_in(folder, endings, _DEPTH) if formats.exists(folder) else []

    paths = each(paths_of, folders, "listing the folders of checkpoints")
    return each(ListedCheckpoint, dict.fromkeys(chain.from_iterable(paths)), "reading the labels of checkpoints")


def paths_in(folder: str, endings: tuple[str, ...], depth: int) -> list[str]:
    """Return the paths of the checkpoints in a folder, and in those down to a depth."""
    paths: list[str] = []
    for name in filesystem.names_in(folder):
        path = filesystem.join(folder, name)
        if name.startswith("."):  # being written
            continue
        if name.endswith(endings):
            paths.append(path)
        elif depth and filesystem.is_folder(path):
            whole = filesystem.exists(filesystem.join(path, filesystem.INDEX))
            paths += [path] if whole else paths_in(path, endings, depth - 1)
    return paths


def newest_first(seen: Sequence[ListedCheckpoint]) -> list[ListedCheckpoint]:
    """Return checkpoints by run, the newest run first, and of each run the newest first; those without label last."""
    runs: dict[str, list[ListedCheckpoint]] = {}
    for checkpoint in seen:
        if checkpoint.label is not None:
            runs.setdefault(checkpoint.label.run, []).append(checkpoint)
    groups = list(runs.values())
    for group in groups:
        group.sort(key=lambda checkpoint: checkpoint.label.age if checkpoint.label else (), reverse=True)
    if len(groups) > 1:
        groups.sort(key=lambda group: group[0].written, reverse=True)
    without = sorted(
        (checkpoint for checkpoint in seen if checkpoint.label is None),
        key=lambda checkpoint: checkpoint.written,
        reverse=True,
    )
    return [*(checkpoint for group in groups for checkpoint in group), *without]
