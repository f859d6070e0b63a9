"""LightningOptimizer: the optimizer that user code sees; `step` runs hooks and the loss scaler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer

from lightlib.errors import MisconfigurationException


class LightningOptimizer:
    """Behaves like the optimizer it wraps, also for `isinstance`; only `step` and `toggle_model` differ.

    Args:
        optimizer: The user's optimizer, also available as this attribute.
        step: Called as ``step(optimizer, closure, **kwargs)``. Default: the plain step, without hooks or scaler.
        toggled: Returns the context in which only this optimizer's parameters require gradients; set by a run.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        step: Callable[..., Any] | None = None,
        toggled: Callable[[Optimizer], Any] | None = None,
    ) -> None:
        self.optimizer = optimizer
        self._step = _plain_step if step is None else step
        self._toggled = toggled

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Step: unscale, `on_before_optimizer_step`, update."""
        return self._step(self.optimizer, closure, **kwargs)

    @contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Iterator[None]:
        """Return a context in which only this optimizer's parameters require gradients."""
        if self._toggled is None:
            raise MisconfigurationException(
                f"toggle_model was called on a LightningOptimizer of {type(self.optimizer).__name__} that no run made.",
                expected="the optimizer that `self.optimizers()` returns: only a run knows its other optimizers.",
                fix="with self.optimizers().toggle_model():",
            )
        with self._toggled(self.optimizer):
            yield

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # for `isinstance`: schedulers and GradScaler accept only an Optimizer
        return type(self.optimizer)

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"LightningOptimizer({self.optimizer!r})"


def _plain_step(optimizer: Optimizer, closure: Callable[[], Any] | None, **kwargs: Any) -> Any:
    return optimizer.step(**kwargs) if closure is None else optimizer.step(closure, **kwargs)
