"""Saver: queues the saves that a run requests until its state is complete, and writes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.checkpoint import formats
from lightlib.checkpoint.background import BackgroundWriter
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.label import Label
from lightlib.checkpoint.storage.options import remember
from lightlib.conventions import active
from lightlib.core.progress.progress import Progress
from lightlib.core.resume.extra import checked_extra
from lightlib.core.resume.state import dump
from lightlib.errors import (
    ArgumentTypeError,
    CheckpointWriteError,
    MisconfigurationException,
    UnknownNameError,
    shown,
)
from lightlib.profilers.step_times import SAVE
from lightlib.strategies.strategy import Strategy

if TYPE_CHECKING:
    from lightlib.core.run.run import Run
    from lightlib.core.trainer import Trainer


@dataclass(slots=True)
class RunIdentity:
    """Which run this is.

    Attributes:
        run_id: The same for a run and those that continue it; empty before the first fit.
        continues: Whether it continues the run that wrote a checkpoint, and is no new one that begins there.
        by_path: Whether the user named that checkpoint by its path.
    """

    run_id: str = ""
    serial: int = 0
    continues: bool = False
    label: Label | None = None
    by_path: bool = False

    def next_label(self, at: Progress, weights_only: bool) -> Label:
        self.serial += 1
        return Label(self.run_id, self.serial, at.epoch, at.batch, at.step, weights_only)


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """A checkpoint to write.

    Attributes:
        weights_only: Leave out what only a resume needs.
        kind: ``"file"``: gathered and written by rank zero. ``"directory"``: each rank writes its shard. Default: as
            the strategy does.
        writer: Writes a copy of the state in the background; a failure is then in `writer.failed`.
        storage_options: For the strategy's store of checkpoints, if it has one.
        extra: Entries that the user adds.
    """

    path: str
    weights_only: bool = False
    kind: str | None = None
    writer: BackgroundWriter | None = None
    storage_options: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)


class Saver:
    """Writes the checkpoints of one run, now or at its next save point.

    A checkpoint holds the full state only at an optimizer-step boundary. While a run trains, requests wait for the
    next one; everywhere else they are served immediately.

    Args:
        identity: Which run this is; it numbers the checkpoints.

    Attributes:
        waiting: Saves, and calls to make at the save point, in the order of the requests.
        deferring: Whether requests wait.
    """

    __slots__ = ("_identity", "_run", "deferring", "waiting")

    def __init__(self, run: Run, identity: RunIdentity) -> None:
        self._run, self._identity = run, identity
        self.waiting: list[SaveRequest | Callable[[], object]] = []
        self.deferring = False

    # requests
    def save(
        self,
        filepath: str | Path,
        weights_only: bool | None = None,
        storage_options: object = None,
        *,
        format: str | None = None,  # noqa: A002  as in Trainer.save_checkpoint
        writer: BackgroundWriter | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Check the arguments of `Trainer.save_checkpoint`, and request the save."""
        store = self._run.strategy.extension.store
        path: object = filepath
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise ArgumentTypeError(
                f"save_checkpoint got the path {shown(filepath)}.",
                expected="a path or a URL.",
                fix="trainer.save_checkpoint('model.ckpt')",
            )
        if storage_options is not None and store is None:
            _remember_options(os.fspath(path), storage_options)
        given: object = format
        if given is not None and not isinstance(given, str):
            raise ArgumentTypeError(
                f"format is {shown(given)}.", expected="'file' or 'directory'.", fix="format='file'"
            )
        if given is not None and given not in formats.FORMATS:
            raise UnknownNameError("format of a checkpoint", given, formats.FORMATS)
        if store is not None and given == "directory":
            raise refuse_directories(store)
        added = checked_extra(extra)
        self.request(SaveRequest(os.fspath(path), bool(weights_only), format, writer, storage_options, added))

    def request(self, wanted: SaveRequest | Callable[[], object]) -> None:
        """Save, or make a call, at the next save point: now, unless the run trains."""
        if self.deferring:
            self.waiting.append(wanted)
        else:
            self._serve(wanted)

    def request_again(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Queue the saves that waited when a checkpoint was written; all processes call this.

        The paths come from the checkpoint, which may be forged. A save is left out, with a warning, if it leads out of
        the folders of this run or would replace anything but a checkpoint.
        """
        self.waiting = []
        if not saved:
            return
        trainer = self._run.trainer
        allowed = trainer.strategy.broadcast([_may_write(trainer, str(one["path"])) for one in saved])
        for one, may in zip(saved, allowed, strict=True):
            if may:
                extra = checked_extra(one.get("extra"))
                self.waiting.append(SaveRequest(str(one["path"]), bool(one["weights_only"]), one["kind"], extra=extra))
            else:
                report.warn(
                    f"A save to {one['path']!r} was due when the checkpoint was written. It is left out: it leads out "
                    "of the folders of this run or would replace something other than a checkpoint. If it was yours, "
                    f"call trainer.save_checkpoint({one['path']!r}) after fit."
                )

    def saves_waiting(self) -> list[dict[str, Any]]:
        """Return the saves that wait, for a checkpoint; callbacks request their calls again after a resume."""
        saves = [one for one in self.waiting if isinstance(one, SaveRequest)]
        return [
            {"path": one.path, "weights_only": one.weights_only, "kind": one.kind, "extra": dict(one.extra)}
            for one in saves
        ]

    # the save point
    def defer(self, wait: bool = True) -> None:
        """Let requests wait from here on, or serve them immediately again."""
        self.deferring = wait

    def serve_requests(self) -> None:
        """Serve the requests that wait, and those that they make, if a checkpoint can hold the full state here."""
        if not self.waiting or not self._run.between_windows():
            return
        self.deferring = False
        with self._run.progress.before_epoch_end() if active().counts_left else nullcontext():
            while self.waiting:
                self._serve(self.waiting.pop(0))
        self.deferring = True

    def _serve(self, wanted: SaveRequest | Callable[[], object]) -> None:
        if isinstance(wanted, SaveRequest):
            self.write(wanted)
        else:
            wanted()

    # writing
    def write(self, request: SaveRequest) -> None:
        """Write the state of the run immediately. All processes call this.

        Raises:
            CheckpointWriteError: It could not be written: on every process.
        """
        with self._run.trainer.profiler.profile(SAVE):
            self._write(request)

    def _write(self, request: SaveRequest) -> None:
        run, strategy, path, writer = self._run, self._run.strategy, request.path, request.writer
        kind = request.kind or strategy.checkpoint_format
        run.loggers.save()  # anything logged before a checkpoint is on disk when the checkpoint is
        label = self._identity.next_label(run.progress, request.weights_only)
        content = dump(run, label, request.weights_only, sharded=kind == "directory", extra=request.extra)
        run.user_state.warn_of_missing()
        alone = strategy.world_size == 1
        store = strategy.extension.store
        writes = kind == "directory" or strategy.is_global_zero
        if writer is not None:
            group = strategy.background_group() if kind == "directory" else None
            then = partial(_announce, run, path)
            by_lightlib = partial(formats.save, path=path, label=label, kind=kind, group=group, alone=alone)
            if store is not None:
                writer.save(content, partial(store.save, path=path, storage_options=request.storage_options), then)
            elif writes:
                writer.save(content, by_lightlib, then)
            else:
                writer.after(then)
            return
        write(content, path, label, kind, strategy, request.storage_options)
        _announce(run, path)


def _remember_options(path: str, options: object) -> None:
    if not filesystem.is_remote(path):
        raise MisconfigurationException(
            f"save_checkpoint got storage_options for the local path {path!r}.",
            expected="None: only a store that fsspec opens has options.",
            fix="leave it out.",
        )
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise ArgumentTypeError(
            f"save_checkpoint got storage_options of the type {type(options).__name__}.",
            expected="a dict of fsspec's options for the store.",
            fix='storage_options={"endpoint_url": "http://localhost:9000"}',
        )
    remember(path, options)


def refuse_directories(store: object) -> MisconfigurationException:
    """Return the error for a checkpoint that is a directory, where the user's own object writes checkpoints."""
    name = type(getattr(store, "plugin", store)).__name__
    return MisconfigurationException(
        f"{name} is to write a checkpoint directory, of which each process writes its own shard.",
        expected="checkpoints that are one file, gathered on the first process.",
        fix=f"FSDPStrategy(state_dict_type='full'), or leave out {name}.",
    )


def write(
    content: Mapping[str, Any], path: str, label: Label, kind: str, strategy: Strategy, storage_options: Any = None
) -> None:
    """Write a checkpoint with the processes of `strategy`, all of which call this.

    Args:
        content: Of rank 0 for a file; of each process for a directory.
        path: A local path or a URL.
        label: The run that writes it, and its position.
        kind: ``"file"`` or ``"directory"``.
        strategy: The strategy.
        storage_options: For its store of checkpoints, if it has one.

    Raises:
        CheckpointWriteError: It could not be written: on every process.
    """
    error: Exception | None = None
    store = strategy.extension.store
    try:
        if store is not None:
            store.save(dict(content), path, storage_options)
        elif kind == "directory" or strategy.is_global_zero:
            formats.save(content, path, label, kind, alone=strategy.world_size == 1)
    except Exception as raised:  # noqa: BLE001  the other ranks wait for the outcome
        error = raised
    if strategy.world_size > 1 and kind == "file":
        failure = strategy.broadcast(None if error is None else str(error))
        if failure is not None and error is None:
            raise CheckpointWriteError(failure)
    if error is not None:
        raise error


def _announce(run: Run, path: str) -> None:
    """Call the hooks after a save; no checkpoint holds their random numbers and changes."""
    names = ["on_checkpoint_written", *(["on_checkpoint_uploaded"] if filesystem.is_remote(path) else [])]
    for name in filter(run.hooks.defines, names):
        with run.user_state.unsaved(name):
            getattr(run.hooks, name)(path)


def _may_write(trainer: Trainer, path: str) -> bool:
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
