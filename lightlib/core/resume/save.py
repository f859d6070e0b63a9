"""Saving: the parts of a checkpoint are brought together and written, now or in the background."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.checkpoint import formats
from lightlib.checkpoint.storage import filesystem
from lightlib.core.resume.state import dump
from lightlib.errors import ArgumentTypeError, CheckpointWriteError, UnknownNameError, shown

if TYPE_CHECKING:
    from lightlib.core.run.run import Run
    from lightlib.core.trainer import Trainer

__all__ = ["AskedSave", "asked_again", "check_format", "write_checkpoint"]


class AskedSave:
    """A save that was asked for in a hook, and is made when the loop comes to a point where it can be."""

    def __init__(self, trainer: Trainer, path: str, weights_only: bool, kind: str | None, writer: Any) -> None:
        self.trainer, self.path, self.weights_only, self.kind, self.writer = trainer, path, weights_only, kind, writer

    def __call__(self) -> None:
        self.trainer._write(self.path, self.weights_only, self.kind, self.writer)  # noqa: SLF001  its other half

    def as_dict(self) -> dict[str, Any]:
        """Return what makes it again in a run that is resumed before it was made."""
        return {"path": self.path, "weights_only": self.weights_only, "kind": self.kind}


def asked_again(trainer: Trainer, saved: Sequence[dict[str, Any]]) -> list[AskedSave]:
    """Return the saves that were still to be made when a checkpoint was written; all processes call this.

    The paths come from the checkpoint, which anybody may have made. A save is left out, with a warning, where it leads
    out of the folders of this run or would replace something other than a checkpoint.
    """
    if not saved:
        return []
    allowed = trainer.strategy.broadcast([_may_be_made(trainer, str(one["path"])) for one in saved])
    again = []
    for one, may in zip(saved, allowed, strict=True):
        if may:
            again.append(AskedSave(trainer, str(one["path"]), bool(one["weights_only"]), one["kind"], None))
        else:
            report.warn(
                f"A save to {one['path']!r} was due when the checkpoint was written. It is left out: it leads out of "
                "the folders of this run or would replace something other than a checkpoint. If it was yours, call "
                f"trainer.save_checkpoint({one['path']!r}) after fit."
            )
    return again


def _may_be_made(trainer: Trainer, path: str) -> bool:
    folders = [trainer.default_root_dir, *(logger.save_dir for logger in trainer.loggers)]
    folders += [getattr(callback, "dirpath", None) for callback in trainer.checkpoint_callbacks]
    folders += [os.path.dirname(trainer.ckpt_path)] if isinstance(trainer.ckpt_path, (str, os.PathLike)) else []
    try:
        if not any(_is_below(path, os.fspath(folder)) for folder in folders if folder is not None):
            return False
        return not filesystem.exists(path) or formats.label_of(path) is not None
    except (OSError, ValueError):
        return False


def _is_below(path: str, folder: str) -> bool:
    if filesystem.is_remote(path) or filesystem.is_remote(folder):
        return path.startswith(folder.rstrip("/") + "/") and ".." not in path.split("/")
    real, above = (Path(filesystem.local_path(one)).resolve() for one in (path, folder))
    return above in real.parents


def check_format(given: Any) -> None:
    """Refuse a format that does not exist.

    Raises:
        ArgumentTypeError: It is no string.
        UnknownNameError: It is none of "file" and "directory".
    """
    if given is not None and not isinstance(given, str):
        raise ArgumentTypeError(f"format is {shown(given)}.", expected="'file' or 'directory'.", fix="format='file'")
    if given is not None and given not in formats.FORMATS:
        raise UnknownNameError("format of a checkpoint", given, formats.FORMATS)


def write_checkpoint(
    run: Run, path: str, weights_only: bool = False, kind: str | None = None, writer: Any = None
) -> None:
    """Write the state of `run`. All processes call this.

    Args:
        run: The run.
        path: A local path or a URL.
        weights_only: Leave out what only a resume needs.
        kind: ``"file"``: gathered and written by the first process. ``"directory"``: each writes its part. Default:
            the strategy's.
        writer: A BackgroundWriter. The state is copied, and the call returns; what goes wrong is in `writer.failed`.

    The hook `on_checkpoint_written` is called when it is complete: by the thread that looks after `writer`, if any.

    Raises:
        CheckpointWriteError: It could not be written: on every process.
    """
    strategy = run.strategy
    kind = kind or strategy.checkpoint_format
    run.loggers.save()  # what was logged before a checkpoint is on disk when the checkpoint is
    label = run.trainer.next_label(weights_only)
    content = dump(run, label, weights_only, spread=kind == "directory")
    run.user_state.warn_of_missing()
    alone = strategy.world_size == 1
    writes = kind == "directory" or strategy.is_global_zero
    if writer is not None:
        group = strategy.background_group() if kind == "directory" else None
        then = partial(_announce, run, path)
        if writes:
            writer.save(
                content, partial(formats.save, path=path, label=label, kind=kind, group=group, alone=alone), then
            )
        else:
            writer.after(then)
        return
    error: Exception | None = None
    try:
        if writes:
            formats.save(content, path, label, kind, alone=alone)
    except Exception as raised:  # noqa: BLE001  the others wait to hear of it
        error = raised
    if strategy.world_size > 1 and kind == "file":
        told = strategy.broadcast(None if error is None else str(error))
        if told is not None and error is None:
            raise CheckpointWriteError(told)
    if error is not None:
        raise error
    _announce(run, path)


def _announce(run: Run, path: str) -> None:
    """Call `on_checkpoint_written`, whose random numbers and changes are in no checkpoint."""
    if run.hooks.defines("on_checkpoint_written"):
        with run.user_state.unsaved("on_checkpoint_written"):
            run.hooks.on_checkpoint_written(path)
