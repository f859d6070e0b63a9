"""LightningOptimizer: an optimizer as the user's code sees it; `step` runs hooks and loss scaler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer

__all__ = ["LightningOptimizer"]


class LightningOptimizer:
    """Reads like the optimizer it stands for, also to `isinstance`; only `step` is its own.

    Args:
        optimizer: The user's optimizer, found again under this name.
        step: Called as ``step(optimizer, closure, **kwargs)``.
        toggled: Returns the context in which only this optimizer's parameters require gradients.
    """

    def __init__(
        self, optimizer: Optimizer, step: Callable[..., Any], toggled: Callable[[Optimizer], Any] | None = None
    ) -> None:
        self.optimizer = optimizer
        self._step = step
        self._toggled = toggled

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Step: unscale, `on_before_optimizer_step`, update."""
        return self._step(self.optimizer, closure, **kwargs)

    @contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Iterator[None]:
        """Return a context in which only this optimizer's parameters require gradients."""
        assert self._toggled is not None
        with self._toggled(self.optimizer):
            yield

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # what `isinstance` asks: schedulers and GradScaler take nothing but an Optimizer
        return type(self.optimizer)

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"LightningOptimizer({self.optimizer!r})"
