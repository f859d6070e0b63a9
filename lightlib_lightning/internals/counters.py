"""Counters of Lightning's loops, read from the progress of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Counts", "Tracker", "batches_of", "counted", "epochs_of", "steps_before_hook", "steps_of"]

# The hooks and steps in which the running training batch is not counted yet.
_IN_BATCH = frozenset({
    "training_step", "on_train_batch_start", "backward", "on_before_backward", "on_after_backward",
    "on_before_optimizer_step", "optimizer_step", "optimizer_zero_grad", "on_before_zero_grad",
    "configure_gradient_clipping", "lr_scheduler_step",
})  # fmt: skip


@dataclass(frozen=True)
class Counts:
    """How many were begun and ended; they are equal between two batches."""

    ready: int = 0
    started: int = 0
    processed: int = 0
    completed: int = 0


@dataclass(frozen=True)
class Tracker:
    """Counts since the beginning of the run, and since that of the epoch."""

    total: Counts
    current: Counts
    is_last_batch: bool = False


def epochs_of(trainer: Any) -> Tracker:
    """Return the epochs of a Trainer's training."""
    progress = trainer.progress
    begun = progress.epoch + bool(progress.begun or progress.epoch_batch)
    counts = Counts(begun, begun, begun if trainer.is_last_batch else progress.epoch, progress.epoch)
    return Tracker(counts, counts)


def _hook(trainer: Any) -> str:
    """Return the hook that runs."""
    return str(trainer._results.scope.hook)  # noqa: SLF001  as Lightning's own name for it


def counted(trainer: Any, done: int) -> int:
    """Return the number of the batch that runs, or ran last, where `done` batches are counted."""
    return done if trainer.training and _hook(trainer) in _IN_BATCH else max(0, done - 1)


def steps_before_hook(trainer: Any) -> int:
    """Return the batches that stepped, without the running one in its `on_train_batch_end`."""
    running = trainer.training and _hook(trainer) == "on_train_batch_end"
    return int(trainer.progress.step - bool(running and trainer.run.optimization.window.stepped))


def batches_of(trainer: Any) -> Tracker:
    """Return the training batches."""
    in_batch, in_end = _hook(trainer) in _IN_BATCH, _hook(trainer) == "on_train_batch_end"

    def counts(done: int) -> Counts:
        return Counts(done + in_batch, done + in_batch, done, done - in_end)

    progress = trainer.progress
    return Tracker(counts(progress.batch), counts(progress.epoch_batch), bool(trainer.is_last_batch))


def steps_of(trainer: Any) -> Tracker:
    """Return the steps of the optimizers."""
    counts = Counts(*[trainer.global_step] * 4)
    return Tracker(counts, counts)
