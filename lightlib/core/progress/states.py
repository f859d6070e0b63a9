"""The words for what a Trainer is doing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["RunningStage", "TrainerFn", "TrainerState", "TrainerStatus"]


class _Word(str, Enum):
    def __str__(self) -> str:
        return str(self.value)


class TrainerFn(_Word):
    """What was called."""

    FITTING = "fit"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"


class RunningStage(_Word):
    """What is running at this moment."""

    TRAINING = "train"
    SANITY_CHECKING = "sanity_check"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"

    @property
    def evaluating(self) -> bool:
        """Whether it is a validation, a test or the sanity check."""
        return self in (RunningStage.VALIDATING, RunningStage.TESTING, RunningStage.SANITY_CHECKING)

    @property
    def dataloader_prefix(self) -> str:
        """How the loaders are called: ``"val"`` also in the sanity check; else the stage's own name."""
        return "val" if self in (RunningStage.VALIDATING, RunningStage.SANITY_CHECKING) else str(self.value)


class TrainerStatus(_Word):
    """How the last call stands."""

    INITIALIZING = "initializing"
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class TrainerState:
    """A snapshot: what was called, what is running, how it stands. The members compare equal to plain strings."""

    fn: TrainerFn | None = None
    stage: RunningStage | None = None
    status: TrainerStatus = TrainerStatus.INITIALIZING

    @property
    def finished(self) -> bool:
        return self.status is TrainerStatus.FINISHED

    @property
    def stopped(self) -> bool:
        return self.status in (TrainerStatus.FINISHED, TrainerStatus.INTERRUPTED)
