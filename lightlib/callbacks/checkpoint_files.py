"""The files of checkpoints: what a callback asks of a folder, local or remote."""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
import tempfile
from typing import TYPE_CHECKING

from lightlib import report
from lightlib.errors import CheckpointWriteError, MisconfigurationException

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

__all__ = [
    "check_writable",
    "check_writable_together",
    "exists",
    "is_remote",
    "link",
    "listed",
    "others_take_part",
    "remove",
]


def is_remote(path: str) -> bool:
    """Whether `path` is an address such as "s3://bucket/folder".

    Example:
        >>> is_remote("s3://bucket/folder"), is_remote("folder")
        (True, False)
    """
    return "://" in path and not path.startswith("file://")


def exists(path: str) -> bool:
    """Whether there is a file, a folder or a link, also a broken one, of this name."""
    if not is_remote(path):
        return os.path.lexists(path)
    import fsspec  # optional: fsspec

    files, name = fsspec.core.url_to_fs(path)
    return bool(files.exists(name))


def listed(folder: str, prefix: str, ending: str) -> set[str]:
    """Return the paths in `folder` whose names begin and end so; none when there is no such folder."""
    if is_remote(folder):
        import fsspec  # optional: fsspec

        files, name = fsspec.core.url_to_fs(folder)
        found = [posixpath.basename(path) for path in files.ls(name, detail=False)] if files.isdir(name) else []
    else:
        found = os.listdir(folder) if os.path.isdir(folder) else []
    return {os.path.join(folder, name) for name in found if name.startswith(prefix) and name.endswith(ending)}


def check_writable(folder: str, owner: str) -> None:
    """Refuse a local folder in which nothing can be written; it is left as it was found.

    Raises:
        MisconfigurationException: It cannot be made, or no file can be made in it.
    """
    if is_remote(folder):
        return
    absent = folder
    made: list[str] = []
    while absent and not os.path.lexists(absent):
        made.append(absent)
        absent = os.path.dirname(absent)
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=".part"):
            pass
    except OSError as error:
        raise MisconfigurationException(
            f"{owner} cannot write into {folder!r}: {error}.",
            expected="a folder that exists or can be made, and into which this user may write.",
            fix=f"{owner}(dirpath='another/folder'), or another default_root_dir of the Trainer.",
        ) from error
    finally:
        for one in made:
            with contextlib.suppress(OSError):
                os.rmdir(one)


def check_writable_together(trainer: Trainer, folder: str, owner: str) -> None:
    """As `check_writable`, on rank zero; all processes call this, and what is wrong is an error on all.

    Raises:
        MisconfigurationException: No file can be made there.
    """
    error: MisconfigurationException | None = None
    if trainer.is_global_zero:
        try:
            check_writable(folder, owner)
        except MisconfigurationException as raised:
            error = raised
    told = trainer.strategy.broadcast(None if error is None else str(error))
    if told is not None:
        raise error or MisconfigurationException(told)


def remove(path: str) -> None:
    """Remove a checkpoint: a file, a link or a folder."""
    if is_remote(path):
        import fsspec  # optional: fsspec

        files, name = fsspec.core.url_to_fs(path)
        files.rm(name, recursive=True)
    elif os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.remove(path)


def link(target: str, path: str) -> None:
    """Make `path` a link to `target`, relative to its folder and in one step; a copy where links are not allowed.

    Raises:
        CheckpointWriteError: Neither can be made.
    """
    beside = f"{path}.link-{os.getpid()}"
    try:
        try:
            os.symlink(os.path.relpath(target, os.path.dirname(path)), beside)
        except OSError:
            (shutil.copytree if os.path.isdir(target) else shutil.copy2)(target, beside)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        os.replace(beside, path)
    except OSError as error:
        if os.path.lexists(beside):
            remove(beside)
        raise CheckpointWriteError(
            f"The checkpoint {path!r} could neither be linked to {target!r} nor copied: {error}.",
            expected="a writable folder with enough room.",
            fix="ModelCheckpoint(save_last=True), another dirpath, or more space; earlier files are as they were.",
        ) from error


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
