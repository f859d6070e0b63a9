"""The folder of a run's checkpoints: claimed while it lives, and what it left there when killed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from lightlib import report
from lightlib.checkpoint import formats
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.label import Label
from lightlib.errors import CheckpointError, MisconfigurationException

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

__all__ = [
    "INTERRUPTED",
    "FolderClaim",
    "absolute",
    "check_writable",
    "claimed",
    "is_of_the_user",
    "label_at",
    "labels_in",
    "left_behind",
    "others_take_part",
]

INTERRUPTED = "interrupted.ckpt"  # what the Trainer saves when it is asked to end

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


def check_writable(trainer: Trainer, folder: str, owner: str) -> None:
    """See on rank zero whether files can be made in `folder`; all processes call this, and all get the error.

    Raises:
        MisconfigurationException: No file can be made there.
    """
    _on_rank_zero(trainer, lambda: filesystem.check_writable(folder, owner))


class FolderClaim:
    """A folder that this process has for itself, which is made when it is not there."""

    def __init__(self, folder: str) -> None:
        self._made: list[str] = []
        local = not filesystem.is_remote(folder)
        absent = folder
        while local and absent and not os.path.lexists(absent):
            self._made.append(absent)
            absent = os.path.dirname(absent)
        try:
            if local:
                filesystem.make_folder(folder)
            self._claim = filesystem.claim(folder)
        except BaseException:
            self._remove_what_was_made()
            raise
        filesystem.remove_leftovers(folder)

    def release(self) -> None:
        """Let others have it; what was made for the claim, and is empty, goes."""
        self._claim.release()
        self._remove_what_was_made()

    def _remove_what_was_made(self) -> None:
        for folder in self._made:
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def claimed(trainer: Trainer, folder: str) -> FolderClaim | None:
    """Claim `folder` on rank zero; all processes call this, and all get the error.

    Raises:
        MisconfigurationException: Another run writes into it.
    """
    return _on_rank_zero(trainer, lambda: FolderClaim(folder))


def _on_rank_zero(trainer: Trainer, call: Callable[[], T]) -> T | None:
    result: T | None = None
    error: MisconfigurationException | None = None
    if trainer.is_global_zero:
        try:
            result = call()
        except MisconfigurationException as raised:
            error = raised
    told = trainer.strategy.broadcast(None if error is None else str(error))
    if told is not None:
        raise error or MisconfigurationException(told)
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
    found: dict[str, Label] = {}
    for name in filesystem.names_in(folder):
        path = filesystem.join(folder, name)
        if name.startswith("."):
            continue
        label = label_at(path) if name.endswith(ending) else None
        if label is not None:
            found[path] = label
        elif depth > 0 and filesystem.is_folder(path):
            found |= labels_in(path, ending, depth - 1)
    return found


def left_behind(trainer: Trainer, folder: str, ending: str, depth: int) -> tuple[set[str], list[str]]:
    """Return what this run, when it was ended, left in `folder`; all processes call this and get the same answer.

    Returns:
        The files from after the place where it goes on, which it will come to again; and those that were saved because
        it was ended, of which nothing is left when it was not.
    """
    future: set[str] = set()
    outlived: list[str] = []
    if trainer.is_global_zero:
        interrupted = filesystem.join(folder, INTERRUPTED)
        resumed = trainer.resumed_label
        if trainer.continues and resumed is not None:
            labels = labels_in(folder, ending, depth)
            future = {path for path, label in labels.items() if label.run == trainer.run_id and label > resumed}
            future |= _half_stored(folder, ending)
        label = label_at(interrupted)
        if label is not None and label.run == trainer.run_id:
            outlived = [interrupted]
        future.discard(interrupted)
    found: tuple[set[str], list[str]] = trainer.strategy.broadcast((future, outlived))
    return found


def _half_stored(folder: str, ending: str) -> set[str]:
    """Return the directories on a store whose index was not written any more; on a disk they have hidden names."""
    paths = [filesystem.join(folder, name) for name in filesystem.names_in(folder) if name.endswith(ending)]
    return {path for path in paths if filesystem.is_remote(path) and _is_half(path)}


def _is_half(path: str) -> bool:
    names = filesystem.names_in(path) if filesystem.is_folder(path) else []
    return bool(names) and all(name.startswith("shard-") for name in names)


def others_take_part(trainer: Trainer, exception: BaseException) -> bool:
    """Whether all ranks can save together after `exception`.

    The first signal ends all of them at one step. An error leaves the others in theirs.
    """
    if trainer.world_size == 1 or exception is trainer.stop_signal:
        return True
    report.warn(
        f"No checkpoint was saved after {type(exception).__name__}: with {trainer.world_size} processes, the others "
        "wait in their step and cannot take part. Save regularly with ModelCheckpoint(every_n_train_steps=…)."
    )
    return False
