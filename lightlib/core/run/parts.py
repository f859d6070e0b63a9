"""Stateful parts of a run: stop requests, evaluation data, clocks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

from lightlib.callbacks.shared_clock import SharedClock
from lightlib.core.run.agreement import Agreement
from lightlib.core.run.hooks import Hooks
from lightlib.data.evaluation import EvalData
from lightlib.strategies.strategy import Strategy

__all__ = [
    "PREDICT",
    "SANITY_CHECK",
    "TEST",
    "VALIDATION",
    "Clocks",
    "Evaluations",
    "Stage",
    "StopRequests",
]


class Calls(NamedTuple):
    """The calls of one kind of evaluation, in order."""

    start: Callable[..., Any]
    epoch_start: Callable[..., Any]
    batch_start: Callable[..., Any]
    step: Callable[..., Any]
    batch_end: Callable[..., Any]
    epoch_end: Callable[..., Any]
    end: Callable[..., Any]


@dataclass(frozen=True)
class Stage:
    """One kind of evaluation.

    Attributes:
        name: As in the names of its hooks.
        state: As in `trainer.state.stage`.
        calls: Returns its hooks and its step.
        model_eval, model_train: Names of the module's hooks that set its mode before and after.
    """

    name: str
    state: str
    calls: Callable[[Hooks, Strategy], Calls]
    model_eval: str
    model_train: str


def _validation(hooks: Hooks, strategy: Strategy) -> Calls:
    return Calls(
        hooks.on_validation_start,
        hooks.on_validation_epoch_start,
        hooks.on_validation_batch_start,
        strategy.validation_step,
        hooks.on_validation_batch_end,
        hooks.on_validation_epoch_end,
        hooks.on_validation_end,
    )


def _test(hooks: Hooks, strategy: Strategy) -> Calls:
    return Calls(
        hooks.on_test_start,
        hooks.on_test_epoch_start,
        hooks.on_test_batch_start,
        strategy.test_step,
        hooks.on_test_batch_end,
        hooks.on_test_epoch_end,
        hooks.on_test_end,
    )


def _predict(hooks: Hooks, strategy: Strategy) -> Calls:
    return Calls(
        hooks.on_predict_start,
        hooks.on_predict_epoch_start,
        hooks.on_predict_batch_start,
        strategy.predict_step,
        hooks.on_predict_batch_end,
        hooks.on_predict_epoch_end,
        hooks.on_predict_end,
    )


_MODES = ("on_validation_model_eval", "on_validation_model_train")
SANITY_CHECK = Stage("validation", "sanity_check", _validation, *_MODES)
VALIDATION = Stage("validation", "validate", _validation, *_MODES)
TEST = Stage("test", "test", _test, "on_test_model_eval", "on_test_model_train")
PREDICT = Stage("predict", "predict", _predict, "on_predict_model_eval", "on_predict_model_train")
_AFTER_ALL = sys.maxsize


@dataclass(slots=True)
class StopRequests:
    """Requests to end the run early, and whether it can be left here.

    Attributes:
        asked: Whether an early stop was requested.
        agreement: Finds the step at which all ranks leave; None with one process.
        phase: The number of evaluations begun plus the number ended.
        evaluated: Batches done in the running evaluation.
        leavable: Whether the run may be left within the running evaluation.
        weights: A fingerprint of the weights before it.
    """

    asked: bool = False
    agreement: Agreement | None = None
    phase: int = 0
    evaluated: int = 0
    leavable: bool = True
    weights: list[Any] = field(default_factory=list)

    def request(self, wanted: bool = True) -> None:
        """Request an early stop, or withdraw the request."""
        self.asked = wanted

    def agree_by(self, agreement: Agreement) -> None:
        """Leave together with the other ranks, as `agreement` decides."""
        self.agreement = agreement

    def begin_evaluation(self, leavable: bool, weights: list[Any]) -> None:
        self.phase, self.evaluated = self.phase + 1, 0
        self.leavable, self.weights = leavable, weights

    def count_batch(self) -> None:
        """Count a batch, if the run may be left within this evaluation."""
        self.evaluated += self.leavable

    def end_batches(self) -> None:
        """Move to the end of the evaluation, the same position on ranks with different numbers of batches."""
        self.evaluated = _AFTER_ALL * self.leavable

    def end_evaluation(self) -> None:
        self.begin_evaluation(True, [])


@dataclass(slots=True)
class Evaluations:
    """Data of evaluations.

    Attributes:
        of: Returns the data of a stage, built once or every n epochs.
        loaded: The data built so far, by "val", "test" and "predict".
        inference: Whether `torch.inference_mode` may be used.
        rng: States of the generators when the running validation began.
    """

    of: Callable[[Stage], EvalData]
    loaded: dict[str, EvalData]
    inference: bool = True
    rng: dict[str, Any] | None = None

    def hold(self, rng: dict[str, Any]) -> None:
        """Keep these states for checkpoints taken within the validation that begins."""
        self.rng = rng

    def release(self) -> None:
        """Drop the states when the validation ends."""
        self.rng = None


@dataclass(slots=True)
class Clocks:
    """Times when training began and was last validated.

    Attributes:
        shared: The clock of rank 0, used with several processes.
    """

    shared: SharedClock = field(default_factory=SharedClock)
    started: float = field(init=False)
    validated: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.validated = monotonic()

    def start(self, batch: int) -> None:
        """Start the clocks at this batch, where training begins."""
        self.started = monotonic()
        self.note_validation(batch)

    def note_validation(self, batch: int) -> None:
        """Note that a validation ended at this batch."""
        self.validated = monotonic()
        self.shared.start(batch)

    def since_start(self) -> float:
        """Return the seconds since training began."""
        return monotonic() - self.started

    def since_validation(self) -> float:
        """Return the seconds since the last validation, by this process's clock."""
        return monotonic() - self.validated
