"""GuardedSaves: one save after the other, in an order that loses nothing; a failed one is undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.callbacks.checkpoint.best import KEPT, BestCheckpoints
from lightlib.errors import CheckpointWriteError

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

__all__ = ["GuardedSaves"]


class GuardedSaves(BestCheckpoints):
    """Base of `ModelCheckpoint`: what it takes for a save, now or in the background, to be done or not to be."""

    save_errors: str
    _in_flight = False  # whether the writer has a save of which nobody has seen the end yet
    _failure: Exception | None = None  # one that was said, but that other processes do not know yet

    def _save_and_remove(self, trainer: Trainer, save: Callable[[], None]) -> None:
        self._in_flight = self._writer is not None
        try:
            save()
            self._in_order(self._complete)
        except BaseException:
            if self._writer is not None:
                self._writer.join()
            self._in_flight = False
            self._take_back()
            raise
        finally:
            self._candidates, self._asked_of = {}, None
        self._delete_evicted(trainer)

    def _set_undo(self, undo: dict[str, Any]) -> None:
        self._undo = undo

    def _complete(self) -> None:
        self._undo, self._writing = None, set()

    def _bookkeeping(self) -> dict[str, Any]:
        """What one save changes."""
        names = [name for name in KEPT if name not in ("monitor", "dirpath")]
        own = {name: getattr(self, name) for name in (*names, "_saved_at_batch", "_pending", "_latest")}
        lists = {"_evicted": list(self._evicted), "_outlived": list(self._outlived)}
        return {**own, **lists, "best_k_models": dict(self.best_k_models)}

    def _take_back(self) -> None:
        """After a failure, hold for true what was before the save, as far as it was not written."""
        if self._undo is not None:
            vars(self).update(self._undo)
        self._undo, self._writing = None, set()

    def _agree(self, trainer: Trainer) -> None:
        """Let all processes know what rank zero knows."""
        vars(self).update(trainer.strategy.broadcast(self._bookkeeping()))

    def _look(self, trainer: Trainer) -> None:
        """See, without waiting, whether the save that is being written has failed."""
        error = self._writer.look() if self._in_flight and self._writer is not None else None
        if error is None:
            return
        if self.save_errors == "raise" or trainer.world_size == 1:
            self._in_flight = False
            self._take_back()
        else:
            self._failure = error  # the others hear of it at the next save
        if self.save_errors == "raise":
            raise error
        self._say(error)

    def _settle(self, trainer: Trainer) -> None:
        """Wait for the save before; all processes learn whether it is complete, and what is kept if it is not."""
        if not self._in_flight or self._writer is None:
            return
        self._in_flight, said, self._failure = False, self._failure, None
        self._writer.join()
        error = self._writer.look() or said
        if trainer.strategy.reduce_boolean_decision(error is None):
            return
        self._take_back()
        self._agree(trainer)
        error = error or CheckpointWriteError("A checkpoint could not be written by another process, which says why.")
        if self.save_errors == "raise":
            raise error
        if error is not said:
            self._say(error)

    def _stop_writing(self) -> None:
        """Wait for what is being written, and from now on write while training waits: the run ends."""
        if self._writer is None:
            return
        self._writer.join()
        error, self._writer, self._in_flight = self._writer.look(), None, False
        if error is not None:
            self._take_back()
            report.warn(f"{type(self).__name__}: the last save failed; what was saved before is there. {error}")

    def _say(self, error: Exception) -> None:
        report.warn(f"{type(self).__name__}: a save failed, training goes on with what was saved before. {error}")
