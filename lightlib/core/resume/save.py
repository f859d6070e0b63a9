"""Saver: writes the checkpoints of a run, and makes the calls that wait for its next save point."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightlib.checkpoint import formats
from lightlib.checkpoint.background import BackgroundWriter
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.label import Label
from lightlib.checkpoint.storage.options import remember
from lightlib.core.progress.progress import Progress
from lightlib.core.resume.extra import checked_extra
from lightlib.core.resume.run_state import dump
from lightlib.errors import (
    ArgumentTypeError,
    CheckpointWriteError,
    MisconfigurationException,
    UnknownNameError,
    check_type,
    wrong_type,
)
from lightlib.profilers.step_times import SAVE
from lightlib.strategies.strategy import Strategy

if TYPE_CHECKING:
    from lightlib.core.run.run import Run


@dataclass(slots=True)
class RunIdentity:
    """Which run this is.

    Attributes:
        run_id: The same for a run and those that continue it; empty before the first fit.
        serial: The number of its last checkpoint.
        continues: Whether it continues the run that wrote a checkpoint, and is no new one that begins there.
        label: Of that checkpoint; None without one.
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
    """Writes the checkpoints of one run, and makes calls at its next save point.

    A save point is an optimizer-step boundary after the validation that is due there, and the end of an epoch after its
    hooks; for the choice of a validation, the end of that validation. While a run trains, calls wait for the next one;
    everywhere else they are made immediately. A checkpoint is always written immediately.

    Args:
        identity: Which run this is; it numbers the checkpoints.

    Attributes:
        waiting: Calls to make at the save point, in the order of the requests.
        deferring: Whether calls wait.
    """

    __slots__ = ("_held", "_identity", "_run", "_urgent", "_writing", "deferring", "waiting")

    def __init__(self, run: Run, identity: RunIdentity) -> None:
        self._run, self._identity = run, identity
        self.waiting: list[Callable[[], object]] = []
        self.deferring = self._held = self._writing = False
        self._urgent = 0  # of the waiting calls, how many need no optimizer-step boundary: the first ones

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
        """Check the arguments of `Trainer.save_checkpoint`, and write the checkpoint."""
        store = self._run.strategy.extension.store
        path: object = filepath
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise wrong_type("trainer.save_checkpoint", "filepath", filepath, "a path or a URL", "'model.ckpt'")
        if storage_options is not None and store is None:
            _remember_options(os.fspath(path), storage_options)
        format_argument: object = format
        check_type("trainer.save_checkpoint", "format", format_argument, str | None, "'file' or 'directory'", "'file'")
        if format_argument is not None and format_argument not in formats.FORMATS:
            raise UnknownNameError("format of a checkpoint", format_argument, formats.FORMATS)
        if store is not None and format_argument == "directory":
            raise refuse_directories(store)
        added = checked_extra(extra)
        self.write(SaveRequest(os.fspath(path), bool(weights_only), format, writer, storage_options, added))

    def request(self, call: Callable[[], object], of_validation: bool = False) -> None:
        """Make a call at the next save point: now, unless the run trains.

        Args:
            call: The call.
            of_validation: After the validation that runs, even within an accumulation window: the next step would
                change the weights that were validated.
        """
        if not self.deferring:
            call()
        elif of_validation and not self._run.between_windows():
            self.waiting.insert(self._urgent, call)
            self._urgent += 1
        else:
            self.waiting.append(call)

    # the save point
    def defer(self, wait: bool = True) -> None:
        """Let calls wait from here on, or make them immediately again."""
        self.deferring = wait

    def hold(self) -> None:
        """Let calls wait, also at a save point: a resumed run has yet to complete the hook before it."""
        self._held = True

    def release(self) -> None:
        self._held = False

    def serve_requests(self) -> None:
        """Make the calls that wait, and those that they request, if this is a save point."""
        everything = self._run.between_windows()
        if self._held or not (self.waiting if everything else self._urgent):
            return
        self.deferring = False
        with self._run.progress.before_epoch_end() if self._run.order.counts_left else nullcontext():
            while self.waiting if everything else self._urgent:
                self._urgent = max(self._urgent - 1, 0)
                self.waiting.pop(0)()
        self.deferring = True

    # writing
    def write(self, request: SaveRequest) -> None:
        """Write the state of the run immediately. All processes call this.

        Raises:
            CheckpointWriteError: It could not be written: on every process.
            MisconfigurationException: It was called while the state for another checkpoint is collected.
        """
        if self._writing:
            raise MisconfigurationException(
                f"save_checkpoint({request.path!r}) was called within another save, whose state is being collected.",
                expected="on_save_checkpoint, state_dict and the like to return what the running save is to hold.",
                fix="call it in on_checkpoint_written, or in the hook that saves the other checkpoint.",
            )
        with self._run.trainer.profiler.profile(SAVE):
            self._write(request)

    def _write(self, request: SaveRequest) -> None:
        run, strategy, path, writer = self._run, self._run.strategy, request.path, request.writer
        checkpoint_format = request.kind or strategy.checkpoint_format
        run.loggers.save()  # anything logged before a checkpoint is on disk when the checkpoint is
        content, label = self._collected(request, checkpoint_format)
        alone = strategy.world_size == 1
        store = strategy.extension.store
        writes = checkpoint_format == "directory" or strategy.is_global_zero
        if writer is not None:
            group = strategy.background_group() if checkpoint_format == "directory" else None
            then = partial(_announce, run, path)
            by_lightlib = partial(
                formats.save, path=path, label=label, kind=checkpoint_format, group=group, alone=alone
            )
            if store is not None:
                writer.save(content, partial(store.save, path=path, storage_options=request.storage_options), then)
            elif writes:
                writer.save(content, by_lightlib, then)
            else:
                writer.after(then)
            return
        write(content, path, label, checkpoint_format, strategy, request.storage_options)
        _announce(run, path)

    def _collected(self, request: SaveRequest, kind: str) -> tuple[dict[str, Any], Label]:
        """Return the content of a checkpoint, and its label."""
        run, self._writing = self._run, True
        try:
            with run.unfinished.position():
                label = self._identity.next_label(run.progress, request.weights_only)
                content = dump(run, label, request.weights_only, sharded=kind == "directory", extra=request.extra)
        finally:
            self._writing = False
        run.user_state.warn_of_missing()
        return content, label


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
