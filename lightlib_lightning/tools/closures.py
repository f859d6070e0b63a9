"""Lightning's closures of an optimizer step, for projects that build their own loops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from lightlib.errors import MisconfigurationException

__all__ = [
    "AbstractClosure",
    "Closure",
    "ClosureResult",
    "ManualResult",
    "OutputResult",
    "RestartStage",
    "check_finite_loss",
    "do_nothing_closure",
]

T = TypeVar("T")


class RestartStage:
    """Where Lightning's loops restart, as strings."""

    NONE = "none"
    RESTARTED_ON_EPOCH_START = "restarted_on_epoch_start"
    RESTARTED_MID_EPOCH = "restarted_mid_epoch"
    RESTARTED_ON_EPOCH_END = "restarted_on_epoch_end"
    RESUMED_ON_EPOCH_END = "resumed_on_epoch_end"
    RESTARTED_ON_TRAIN_BATCH_END = "restarted_on_train_batch_end"
    RESTARTED_ON_LAST = "restarted_on_last"
    RESTARTED_MID_EVALUATION = "restarted_mid_evaluation"


@dataclass
class OutputResult:
    """Base of the results of a training step."""

    def asdict(self) -> dict[str, Any]:
        """Return it as a dict."""
        raise NotImplementedError


class AbstractClosure(ABC, Generic[T]):
    """A function for ``optimizer.step(closure)`` that keeps its result until it is consumed."""

    def __init__(self) -> None:
        self._result: T | None = None

    def consume_result(self) -> T:
        """Return the result and forget it.

        Raises:
            ValueError: The closure has not been called.
        """
        if self._result is None:
            raise MisconfigurationException(
                f"{type(self).__name__}.consume_result(): the closure was not called.",
                expected="optimizer.step(closure), which calls it.",
                fix="call the closure in optimizer_step.",
            )
        result, self._result = self._result, None
        return result

    @abstractmethod
    def closure(self, *args: Any, **kwargs: Any) -> T:
        """Compute the result."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the result, keep it, and return this object."""
        self._result = self.closure(*args, **kwargs)
        return self


@dataclass
class ClosureResult(OutputResult):
    """The loss of a training step, and the other values that it returned.

    Args:
        closure_loss: With its graph; None if the step is skipped.
        extra: The other values.
    """

    closure_loss: Tensor | None
    extra: dict[str, Any] = field(default_factory=dict)
    loss: Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Keep the loss without its graph, and so that in-place changes do not reach it."""
        self.loss = None if self.closure_loss is None else self.closure_loss.detach().clone()

    @classmethod
    def from_training_step_output(cls, training_step_output: Any, normalize: int = 1) -> ClosureResult:
        """Return the result of a step.

        Args:
            training_step_output: A loss, a dict with ``"loss"``, or None.
            normalize: The loss is divided by it.

        Raises:
            ValueError: It is neither.
        """
        output = training_step_output
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if (loss is None and output is not None) or not isinstance(loss, (Tensor, type(None))):
            raise MisconfigurationException(
                f"training_step returned {output!r}.",
                expected="a loss, a dict with the loss as 'loss', or None to skip the batch.",
                fix="return {'loss': loss, ...}",
            )
        extra = {key: value for key, value in output.items() if key != "loss"} if isinstance(output, Mapping) else {}
        return cls(None if loss is None else loss / normalize, extra=extra)

    def asdict(self) -> dict[str, Any]:
        """Return the loss and the other values."""
        return {"loss": self.loss, **self.extra}


class Closure(AbstractClosure[ClosureResult]):
    """The training step, ``zero_grad`` and the backward pass in one call.

    Args:
        step_fn: Returns the result of the training step.
        backward_fn: Takes the loss; None leaves the backward pass out.
        zero_grad_fn: None leaves it out.
    """

    def __init__(
        self,
        step_fn: Callable[[], ClosureResult],
        backward_fn: Callable[[Tensor], None] | None = None,
        zero_grad_fn: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._step_fn = step_fn
        self._backward_fn = backward_fn
        self._zero_grad_fn = zero_grad_fn

    def closure(self, *args: Any, **kwargs: Any) -> ClosureResult:
        """Call the three functions and return the result of the step."""
        with torch.enable_grad():
            result = self._step_fn()
            if self._zero_grad_fn is not None:
                self._zero_grad_fn()
            if self._backward_fn is not None and result.closure_loss is not None:
                self._backward_fn(result.closure_loss)
        return result

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """Call them and return the loss."""
        self._result = self.closure(*args, **kwargs)
        return self._result.loss


@dataclass
class ManualResult(OutputResult):
    """The result of a training step with manual optimization.

    Args:
        extra: Its values.
    """

    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_training_step_output(cls, training_step_output: Any) -> ManualResult:
        """Return the result of a step: a dict, a tensor, or None.

        Raises:
            ValueError: It is none of them.
        """
        output = training_step_output
        if not isinstance(output, (Mapping, Tensor, type(None))):
            raise MisconfigurationException(
                f"training_step returned {output!r}.",
                expected="a tensor, a dict or None with manual optimization.",
                fix="return loss",
            )
        extra = dict(output) if isinstance(output, Mapping) else {} if output is None else {"loss": output}
        if isinstance(extra.get("loss"), Tensor):
            extra["loss"] = extra["loss"].detach()
        return cls(extra=extra)

    def asdict(self) -> dict[str, Any]:
        """Return the values."""
        return self.extra


def do_nothing_closure() -> None:
    """Do nothing."""


def check_finite_loss(loss: Tensor | None) -> None:
    """Raise if a loss is NaN or infinite.

    Raises:
        ValueError: It is.
    """
    if loss is not None and not torch.isfinite(loss).all():
        raise ValueError(f"The loss returned in `training_step` is {loss}. Expected: a finite loss.")
