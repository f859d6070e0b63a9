"""CheckpointFolder: the claim of a run on its folder of checkpoints, and the files found there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lightlib import report
from lightlib.checkpoint import formats
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.content import INTERRUPTED
from lightlib.checkpoint.storage.label import Label
from lightlib.checkpoint.storage.store import each
from lightlib.errors import CheckpointError, LightlibError, MisconfigurationException

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

T = TypeVar("T")


def absolute(path: str | os.PathLike[str] | None) -> str | None:
    """Return a local path made absolute, an address unchanged."""
    if path is None or filesystem.is_remote(os.fspath(path)):
        return None if path is None else os.fspath(path)
    return os.path.realpath(os.path.expanduser(filesystem.local_path(path)))


def is_of_the_user(trainer: Trainer, path: str) -> bool:
    """Whether the run was resumed from `path`, and this file is not the run's to remove.

    That is so when it is the file of another run, and when the user named it by its path: it may be wanted once more.
    """
    if trainer.ckpt_path is None or absolute(trainer.ckpt_path) != path:
        return False
    return not trainer.continues or (trainer.resumed_by_path and not path.endswith(INTERRUPTED))


def default_folder(trainer: Trainer) -> str:
    """Return the folder for the checkpoints of a run: next to its logs, or in `default_root_dir`."""
    root = trainer.log_dir or trainer.default_root_dir
    logger = trainer.loggers[0] if trainer.loggers else None
    if logger is not None and logger.log_dir is None:
        root = logger.run_dir(trainer.default_root_dir) or root
    folder = absolute(filesystem.join(root, "checkpoints"))
    assert folder is not None
    return folder


def is_inside(path: str, folder: str | None) -> bool:
    """Whether a path, which may come from a forged checkpoint, leads to something in `folder`.

    Example:
        >>> is_inside("/runs/last.ckpt", "/runs"), is_inside("/runs/../last.ckpt", "/runs")
        (True, False)
    """
    if folder is None:
        return False
    separator = "/" if filesystem.is_remote(path) else os.sep
    start = folder.rstrip(separator) + separator
    return path.startswith(start) and ".." not in path.split(separator) and path != start


def check_writable(trainer: Trainer, folder: str, owner: str) -> None:
    """Check on rank zero that `folder` is writable; all processes call this, and all get the error.

    Raises:
        MisconfigurationException: No file can be made there.
    """
    on_rank_zero(trainer, lambda: filesystem.check_writable(folder, owner), MisconfigurationException)


@dataclass
class CheckpointFolder:
    """The folder of one callback while a run trains.

    Attributes:
        path: The folder; None before a fit.
        future: Files of this run from after the position at which it was resumed: it will write them again.
        foreign: Files of the run from which this one branched, which are never removed.
    """

    path: str | None = None
    future: set[str] = field(default_factory=set)
    foreign: set[str] = field(default_factory=set)
    _claim: ExitStack | None = None

    def enter(self, trainer: Trainer, folder: str, ending: str, depth: int) -> list[str]:
        """Claim `folder` and return the files to remove once the run has outlived them; all processes call this.

        Raises:
            MisconfigurationException: Another run writes into it.
        """
        self.path, self.foreign = folder, set()
        self._claim = on_rank_zero(trainer, lambda: _claimed(folder), MisconfigurationException)
        self.future, outlived = _left_behind(trainer, folder, ending, depth)
        return outlived

    def leave(self) -> None:
        """Release the claim."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def branch_off(self, files: set[str]) -> None:
        """Never remove these files of the run from which this one branches."""
        self.foreign = files

    def may_remove(self, trainer: Trainer, path: str) -> bool:
        """Whether the run may remove `path`: it is in this folder, not of another run, and not the user's."""
        of_user = trainer.ckpt_path is not None and is_of_the_user(trainer, path)
        return is_inside(path, self.path) and path not in self.foreign and not of_user

    def end(self) -> list[str]:
        """Return the files that the run has not written again by its end."""
        stale, self.future = sorted(self.future), set()
        return stale


def _claimed(folder: str) -> ExitStack:
    """Claim a folder for this process, and create it; closing releases it and removes new folders that are empty."""
    with ExitStack() as stack:
        if not filesystem.is_remote(folder):
            for path in reversed([Path(folder), *Path(folder).parents]):
                if not os.path.lexists(path):
                    stack.callback(_remove_if_empty, path)
            filesystem.make_folder(folder)
        stack.enter_context(filesystem.claim(folder))
        filesystem.remove_leftovers(folder)
        return stack.pop_all()


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def on_rank_zero(trainer: Trainer, call: Callable[[], T], kind: type[LightlibError]) -> T | None:
    """Make a call on rank zero alone, and return its result there; if it raises `kind`, all ranks raise."""
    result: T | None = None
    error: LightlibError | None = None
    if trainer.is_global_zero:
        try:
            result = call()
        except kind as raised:
            error = raised
    failure = trainer.strategy.broadcast(None if error is None else str(error))
    if failure is not None:
        raise error or kind(failure)
    return result


def label_at(path: str) -> Label | None:
    """Return which run wrote the checkpoint at `path`, and when; None when that cannot be read."""
    try:
        return formats.label_of(path)
    except (OSError, CheckpointError):
        return None


def labels_in(folder: str, ending: str, depth: int = 0) -> dict[str, Label]:
    """Return the labels of the checkpoints in `folder`, by path.

    Args:
        folder: A local path or a URL.
        ending: Of their names.
        depth: In how many folders within that one to look as well.
    """
    labels: dict[str, Label] = {}
    paths = [filesystem.join(folder, name) for name in filesystem.names_in(folder) if not name.startswith(".")]
    read_labels = each(
        lambda path: label_at(path) if path.endswith(ending) else None, paths, "reading labels of checkpoints"
    )
    for path, label in zip(paths, read_labels, strict=True):
        if label is not None:
            labels[path] = label
        elif depth > 0 and filesystem.is_folder(path):
            labels |= labels_in(path, ending, depth - 1)
    return labels


def _left_behind(trainer: Trainer, folder: str, ending: str, depth: int) -> tuple[set[str], list[str]]:
    """Return the files that this run left in `folder` when it was ended; all processes call this.

    Returns:
        The files from after the position at which it resumes, which it will write again; and those that were saved
        because it was ended.
    """
    future: set[str] = set()
    outlived: list[str] = []
    if trainer.is_global_zero:
        interrupted = filesystem.join(folder, INTERRUPTED)
        resumed = trainer.resumed_label
        if trainer.continues and resumed is not None:
            labels = labels_in(folder, ending, depth)
            future = {path for path, label in labels.items() if label.run == trainer.run_id and label > resumed}
            paths = _paths(folder, ending) if filesystem.is_remote(folder) else []
            halves = each(_is_half, paths, "looking for incomplete checkpoints")
            future |= {path for path, is_half in zip(paths, halves, strict=True) if is_half}
        label = label_at(interrupted)
        if label is not None and label.run == trainer.run_id:
            outlived = [interrupted]
        future.discard(interrupted)
    files: tuple[set[str], list[str]] = trainer.strategy.broadcast((future, outlived))
    return files


def _paths(folder: str, ending: str) -> list[str]:
    return [filesystem.join(folder, name) for name in filesystem.names_in(folder) if name.endswith(ending)]


def _is_half(path: str) -> bool:
    """Whether a directory on a store is incomplete: it has no index. On a disk these have hidden names."""
    names = filesystem.names_in(path) if filesystem.is_folder(path) else []
    return bool(names) and all(name.startswith("shard-") for name in names)


def all_ranks_can_save(trainer: Trainer, exception: BaseException) -> bool:
    """Whether all ranks can save together after `exception`.

    The first signal ends all of them at one step. An error leaves the other ranks in theirs.
    """
    if trainer.world_size == 1 or exception is trainer.stop_signal:
        return True
    report.warn(
        f"No checkpoint was saved after {type(exception).__name__}: with {trainer.world_size} processes, the other "
        "ranks wait in their step and cannot take part. Save regularly with ModelCheckpoint(every_n_train_steps=…)."
    )
    return False
