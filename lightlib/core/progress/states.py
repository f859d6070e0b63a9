"""Enumerations of the states of a Trainer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class _Word(str, Enum):
    def __str__(self) -> str:
        return str(self.value)


class TrainerFn(_Word):
    """The Trainer method that was called."""

    FITTING = "fit"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"


class RunningStage(_Word):
    """The stage that is running."""

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
        """The prefix of loader names: ``"val"`` also in the sanity check; else the stage's name."""
        return "val" if self in (RunningStage.VALIDATING, RunningStage.SANITY_CHECKING) else str(self.value)


class TrainerStatus(_Word):
    """The status of the last call: a signal has `INTERRUPTED` it, or an exception has ended it as `FAILED`."""

    INITIALIZING = "initializing"
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True)
class TrainerState:
    """A snapshot of the call, the running stage and the status. The members compare equal to plain strings."""

    fn: TrainerFn | None = None
    stage: RunningStage | None = None
    status: TrainerStatus = TrainerStatus.INITIALIZING

    @property
    def finished(self) -> bool:
        return self.status is TrainerStatus.FINISHED

    @property
    def stopped(self) -> bool:
        return self.status in (TrainerStatus.FINISHED, TrainerStatus.INTERRUPTED, TrainerStatus.FAILED)
