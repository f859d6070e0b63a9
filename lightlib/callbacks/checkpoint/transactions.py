"""SaveTransactions: one save after the other, so that nothing is lost; a failed one is rolled back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.checkpoint.files import CheckpointFiles
from lightlib.callbacks.checkpoint.folder import CheckpointFolder
from lightlib.checkpoint.background import BackgroundWriter
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.content import INTERRUPTED
from lightlib.errors import CheckpointWriteError, MisconfigurationException

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer


class SaveTransactions:
    """Saves of one callback, each complete or rolled back before the next one begins, now or in the background.

    A save is rolled back by a copy of the files from before it. The copy is also the state that is saved after a
    background save has failed and before all ranks know it.

    Args:
        owner: Name of the callback, for messages.
        files: The files of the callback.

    Attributes:
        writer: Writes in the background while a fit with `async_save` runs.
        writing: Names that a save has taken and not completed yet.
        is_open: Whether a save is being written, or handed to the writer, now.
        in_flight: Whether the outcome of a background save is unknown. Read in each batch: a plain attribute.
    """

    def __init__(self, owner: str, files: CheckpointFiles) -> None:
        self.writer: BackgroundWriter | None = None
        self.writing: set[str] = set()
        self._owner, self._files = owner, files
        self._fallback: CheckpointFiles | None = None  # the files if the current save fails
        self.is_open = self.in_flight = False
        self._raises = True
        self._failure: Exception | None = None  # reported here; the other ranks do not know it yet

    def settled_files(self) -> CheckpointFiles:
        """Wait for the current save, and return the files: those from before it if it failed."""
        if self.writer is not None:
            self.writer.join()
            if self.writer.failed is not None and self._fallback is not None:
                return self._fallback
        return self._files

    def __eq__(self, other: object) -> bool:  # a pickled copy of an object that has one is equal to it
        return isinstance(other, SaveTransactions) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def start(self, in_background: bool, raises: bool) -> None:
        """Start a fit; `raises`: the failure of a background save ends it, and is not only a warning."""
        self.writing, self._raises = set(), raises
        self.writer = BackgroundWriter() if in_background else None

    # one save
    @contextmanager
    def transaction(self) -> Iterator[CheckpointFiles]:
        """Make a save in the block; if it fails, the files are again those that this yields.

        Each file holds the state of its callback as of its completion, so everything is noted before it is written.
        """
        self._fallback = self._files.copy(pending="")
        self.in_flight, self.is_open = self.writer is not None, True
        try:
            yield self._fallback
            if self.writer is None:
                self._fallback = None
            else:
                self.writer.submit(self._complete)
        except BaseException:
            if self.writer is not None:
                self.writer.join()
            self.in_flight = False
            self._roll_back()
            raise
        finally:
            self.is_open = False

    def keep_first_file(self, before: CheckpointFiles) -> None:
        """Roll back to the first file of a save, which is written, if the last checkpoint after it fails."""
        first = self._files.copy(
            last_model_path=before.last_model_path,
            saved_at_batch=before.saved_at_batch,
            pending=before.pending,
            evicted=list(filter(before.last_model_path.__ne__, self._files.evicted)),
        )
        if self.writer is None:
            self._fallback = first
        else:
            self.writer.submit(partial(self._fall_back_to, first))
        self._files.record(pending="")

    def save_extra(self, batch: int, path: str, last_path: str | None, save: Callable[[str], None]) -> None:
        """Save a file that is not among the best, for a run that ends; a run resumed from it removes it.

        The last checkpoint is saved as well if `last_path` is not None.
        """
        files = self._files
        before, evicted = files.copy(), list(files.evicted)
        if last_path is not None:
            evicted += {before.last_model_path} - {"", last_path}
        last = before.last_model_path if last_path is None else last_path
        try:
            files.record(last_model_path=last, evicted=[*evicted, path])
            for file in (path, *([] if last_path is None else [last_path])):
                save(file)
        except BaseException:
            files.restore(before)
            raise
        files.record(saved_at_batch=batch, latest=path, evicted=evicted)

    def in_order(self, job: Callable[[], object], then: Callable[[], object] | None = None) -> None:
        """Do `job` after everything written before it: now, or in the writer's thread."""
        if self.writer is not None:
            self.writer.submit(job, then)
            return
        job()
        if then is not None:
            then()

    def agree(self, trainer: Trainer) -> None:
        """Give all ranks the files of rank zero."""
        self._files.restore(trainer.strategy.broadcast(self._files))

    def _fall_back_to(self, files: CheckpointFiles) -> None:
        self._fallback = files

    def _complete(self) -> None:
        self._fallback, self.writing = None, set()

    def _roll_back(self) -> None:
        if self._fallback is not None:
            self._files.restore(self._fallback)
        self._complete()

    # the outcome of a background save
    def look(self, trainer: Trainer) -> None:
        """See, without waiting, whether the background save has failed."""
        error = self.writer.look() if self.in_flight and self.writer is not None else None
        if error is None:
            return
        if self._raises or trainer.world_size == 1:
            self.in_flight = False
            self._roll_back()
        else:
            self._failure = error  # the other ranks learn it at the next save
        if self._raises:
            raise error
        self.warn(error)

    def settle(self, trainer: Trainer) -> None:
        """Wait for the background save; all ranks learn whether it is complete, and roll it back together if not."""
        if not self.in_flight or self.writer is None:
            return
        self.in_flight, reported, self._failure = False, self._failure, None
        self.writer.join()
        error = self.writer.look() or reported
        if trainer.strategy.reduce_boolean_decision(error is None):
            return
        self._roll_back()
        self.agree(trainer)
        error = error or CheckpointWriteError("Another process could not write a checkpoint; see its output.")
        if self._raises:
            raise error
        if error is not reported:
            self.warn(error)

    def stop(self) -> None:
        """Wait for the background save, and write while training waits from here on: the run ends."""
        if self.writer is None:
            return
        self.writer.join()
        error, self.writer, self.in_flight = self.writer.look(), None, False
        if error is not None:
            self._roll_back()
            report.warn(f"{self._owner}: the last save failed; earlier checkpoints are complete. {error}")

    def warn(self, error: Exception) -> None:
        """Warn of a failed save after which training continues."""
        report.warn(f"{self._owner}: a save failed; training continues with the earlier checkpoints. {error}")

    # removing
    def remove_evicted(
        self, trainer: Trainer, folder: CheckpointFolder, remove: Callable[[Trainer, str], None]
    ) -> None:
        """Remove the evicted files after everything written before; a failure to do so is a warning."""
        evicted = self._files.evicted
        kept = self._files.kept if evicted else ()
        for path in list(evicted):
            if path in kept or not folder.may_remove(trainer, path):
                evicted.remove(path)
            elif self.writer is None:
                self._remove(trainer, path, remove)
            else:
                self.writer.submit(partial(self._remove, trainer, path, remove))

    def clear_up(
        self, trainer: Trainer, folder: CheckpointFolder, stale: Sequence[str], remove: Callable[[Trainer, str], None]
    ) -> None:
        """Remove `stale` files, and those that the run has outlived, immediately; as in `remove_evicted`."""
        for path in (*stale, *self._files.outlived) if trainer.is_global_zero else ():
            if path not in self._files.kept and folder.may_remove(trainer, path) and filesystem.exists(path):
                self._files.evicted.append(path)
                self._remove(trainer, path, remove)
        self._files.record(outlived=[])

    def _remove(self, trainer: Trainer, path: str, remove: Callable[[Trainer, str], None]) -> None:
        try:
            remove(trainer, path)
        except OSError as error:
            may_be_gone = trainer.continues or path.endswith(INTERRUPTED)  # removed before the run was ended
            if not (isinstance(error, FileNotFoundError) and may_be_gone):
                problem = f"The old checkpoint {path!r} could not be removed, training continues: {error}"
                if self.writer is None:
                    report.warn(problem)
                else:
                    self.writer.after(partial(report.warn, problem))
        self._files.evicted.remove(path)


def writes_in_background(trainer: Trainer, async_save: bool, kind: str | None) -> bool:
    """Whether a callback with `async_save` may write while training continues.

    It may not if the Trainer overrides `save_checkpoint`: after `super().save_checkpoint(path)` the override may use
    the file, which must be complete then.

    Raises:
        MisconfigurationException: The callback has a format that the override does not accept.
    """
    if not trainer.overrides_save_checkpoint:
        return async_save
    owner = type(trainer).__name__
    accepted = inspect.signature(trainer.save_checkpoint).parameters.values()
    if kind is not None and not any(
        parameter.name == "format" or parameter.kind is parameter.VAR_KEYWORD for parameter in accepted
    ):
        raise MisconfigurationException(
            f"ModelCheckpoint(format={kind!r}): {owner}.save_checkpoint, by which it saves, has no argument 'format'.",
            expected="an override with the arguments of Trainer.save_checkpoint.",
            fix="def save_checkpoint(self, filepath, weights_only=None, storage_options=None, **options)",
        )
    if async_save:
        report.warn(
            f"ModelCheckpoint(async_save=True): {owner} overrides save_checkpoint and may use the file right after it "
            "was saved, so training waits for each save.\n  Expected: a Trainer whose save_checkpoint is lightlib's.\n"
            "  Fix: use the file in the hook on_checkpoint_written, which is called when it is complete; or leave out "
            "async_save."
        )
    return False


def notify_loggers(trainer: Trainer, callback: Callback, once: report.Once) -> None:
    """Notify all loggers that `callback` has saved a checkpoint; one that fails does not end the run."""
    for logger in trainer.loggers if trainer.is_global_zero else ():
        try:
            logger.after_save_checkpoint(callback)
        except Exception as error:  # noqa: BLE001 - a tracking service must not end the run
            kind = type(logger).__name__
            problem = f"{kind}.after_save_checkpoint failed, training continues: {error!r}"
            once.warn(kind, problem, report.PossibleUserWarning)
