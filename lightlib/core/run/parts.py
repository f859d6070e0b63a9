"""Stateful parts of a run: requests, evaluation data, clocks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

from lightlib.callbacks.shared_clock import SharedClock
from lightlib.core.run.hooks import Hooks, nothing
from lightlib.data.evaluation import EvalData
from lightlib.launch.watch.watch import Watch
from lightlib.strategies.strategy import Strategy

_MOMENTS = ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
_AFTER_ALL = sys.maxsize


class Calls(NamedTuple):
    """The hooks and the step of one kind of evaluation."""

    start: Callable[..., Any]
    epoch_start: Callable[..., Any]
    batch_start: Callable[..., Any]
    batch_end: Callable[..., Any]
    epoch_end: Callable[..., Any]
    end: Callable[..., Any]
    step: Callable[..., Any]


@dataclass(frozen=True)
class Stage:
    """One kind of evaluation."""

    name: str
    state: str

    @property
    def key(self) -> str:
        """As in the names of its loaders and limits."""
        return "val" if self.name == "validation" else self.name

    def calls(self, hooks: Hooks, strategy: Strategy, num_loaders: int = 1) -> Calls:
        """Return the hooks and the step; without loaders no hook is called."""
        around = {moment: getattr(hooks, f"on_{self.name}_{moment}") if num_loaders else nothing for moment in _MOMENTS}
        return Calls(**around, step=getattr(strategy, f"{self.name}_step"))


SANITY_CHECK = Stage("validation", "sanity_check")
VALIDATION = Stage("validation", "validate")
TEST = Stage("test", "test")
PREDICT = Stage("predict", "predict")


STOP, VALIDATE, END_EPOCH = "stop", "validate", "end_epoch"  # kinds of requests


@dataclass(slots=True)
class StopRequests:
    """Requests to end the run or its epoch early or to validate, and whether the run can be left here.

    Attributes:
        waiting: The kinds of the requests that have not been granted yet.
        reason: Why the run was stopped, if a `StopTraining` did it.
        granted: Whether the run ends because of a request.
        validating: Whether a validation was requested and granted, and has not ended yet.
        watch: Finds the position at which all ranks leave; None with one process.
        positions: The positions that the ranks have agreed on, by kind of request.
        phase: The number of evaluations begun plus the number ended.
        evaluated: Batches done in the running evaluation.
        leavable: Whether the run may be left within the running evaluation.
        weights: A fingerprint of the weights before it.
    """

    waiting: set[str] = field(default_factory=set)
    reason: str | None = None
    granted: bool = False
    validating: bool = False
    watch: Watch | None = None
    positions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    phase: int = 0
    evaluated: int = 0
    leavable: bool = True
    weights: list[Any] = field(default_factory=list)

    @property
    def is_requested(self) -> bool:
        """Whether an early stop was requested."""
        return STOP in self.waiting

    def request(self, kind: str = STOP, wanted: bool = True) -> None:
        """Add a request, or withdraw it."""
        (self.waiting.add if wanted else self.waiting.discard)(kind)

    def request_stop(self, reason: str) -> None:
        """Request an early stop; the first reason stays."""
        self.reason = reason if self.reason is None else self.reason
        self.request()

    def grant_stop(self) -> None:
        self.granted = True

    def grant_validation(self) -> None:
        self.validating = True
        self.settle(VALIDATE)

    def end_validation(self) -> None:
        self.validating = False

    def use_reason(self, reasons: Sequence[str | None]) -> None:
        """Keep the first reason that a process has."""
        self.reason = next((reason for reason in reasons if reason is not None), None)

    def agree_by(self, watch: Watch) -> None:
        """Leave together with the other ranks."""
        self.watch = watch

    def agreed(self, kind: str, position: tuple[int, ...]) -> bool:
        """Whether this process has reached the agreed position; the first call waits for all processes' positions.

        Args:
            kind: ``"stop"``, ``"validate"``, ``"end_epoch"``, ``"interrupt"`` or ``"terminate"``.
            position: Where this process is.
        """
        if self.watch is None:
            return True
        if kind not in self.positions:
            self.positions[kind] = tuple(self.watch.agree(kind, position))
        return position >= self.positions[kind]

    def settle(self, kind: str) -> None:
        """Remove a request that all processes have granted or refused here, so that a new one can follow."""
        self.waiting.discard(kind)
        if self.watch is not None:
            self.positions.pop(kind, None)
            self.watch.refuse(kind)

    def refuse_stop(self) -> None:
        """Withdraw a request to stop, with its reason."""
        self.reason = None
        self.settle(STOP)

    def state_dict(self) -> dict[str, Any]:
        """Return the requests that have not been granted, and a validation that has not ended."""
        waiting = {kind for kind in self.waiting if kind != STOP} | ({VALIDATE} if self.validating else set())
        return {"waiting": sorted(waiting), "reason": self.reason}

    def load_state_dict(self, state: Mapping[str, Any], is_requested: bool) -> None:
        """Make the requests of a checkpoint again; `is_requested`: also that of a stop."""
        self.waiting.update(state.get("waiting", ()))
        if is_requested:
            self.reason = state.get("reason")
            self.request()

    def begin_evaluation(self, leavable: bool, weights: list[Any]) -> None:
        self.phase, self.evaluated = self.phase + 1, 0
        self.leavable, self.weights = leavable, weights

    def count_batch(self) -> None:
        """Count a batch, if the run may be left within this evaluation."""
        self.evaluated += self.leavable

    def end_batches(self) -> None:
        """Move to the end of the evaluation, the same position on ranks with different numbers of batches."""
        self.evaluated = _AFTER_ALL * self.leavable


@dataclass(slots=True)
class Evaluations:
    """Data of evaluations.

    Attributes:
        of: Returns the data of a stage, built once or every n epochs.
        loaded: The data built so far, by "val", "test" and "predict".
        inference: Whether `torch.inference_mode` may be used.
        rng: States of the generators when the running validation began, for checkpoints taken within it.
        outputs: What `predict_step` has returned so far, one list per loader.
    """

    of: Callable[[Stage], EvalData]
    loaded: dict[str, EvalData]
    inference: bool = True
    rng: dict[str, Any] | None = None
    outputs: list[list[Any]] = field(default_factory=list)

    def present(self, stage: Stage) -> EvalData:
        """Return the data of a stage as they are, although other ones may be due; built if there are none."""
        return self.loaded[stage.key] if stage.key in self.loaded else self.of(stage)

    def begin_outputs(self, num_loaders: int) -> list[list[Any]]:
        """Return an empty list for the outputs of each loader."""
        self.outputs = [[] for _ in range(num_loaders)]
        return self.outputs

    def forget_outputs(self) -> None:
        self.outputs = []

    def hold(self, rng: dict[str, Any] | None) -> None:
        """Keep the generators' states when a validation begins; None when it ends."""
        self.rng = rng


@dataclass(slots=True)
class Clocks:
    """Times when training began and was last validated.

    Attributes:
        shared: The clock of rank 0, used with several processes.
    """

    shared: SharedClock = field(default_factory=SharedClock)
    started: float = field(default_factory=monotonic)
    validated: float = field(default_factory=monotonic)

    def start(self, batch: int) -> None:
        self.started = monotonic()
        self.note_validation(batch)

    def note_validation(self, batch: int) -> None:
        self.validated = monotonic()
        self.shared.start(batch)

    def since_start(self) -> float:
        return monotonic() - self.started

    def since_validation(self) -> float:
        return monotonic() - self.validated
