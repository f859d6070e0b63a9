"""LightningOptimizer: the optimizer that user code sees; `step` runs hooks and the loss scaler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim import Optimizer

from lightlib.errors import MisconfigurationException, wrong_type

Clip = Callable[[list[nn.Parameter]], Any]


class LightningOptimizer:
    """Behaves like the optimizer it wraps, also for `isinstance`; only `step` and `toggle_model` differ.

    Args:
        optimizer: The user's optimizer, also available as this attribute.
        step: Called as ``step(optimizer, closure, **kwargs)``. Default: the plain step, without hooks or scaler.
        toggled: Returns the context in which only this optimizer's parameters require gradients; set by a run.
        complete: Called with the optimizer, makes its gradients final: the same on all processes, and not scaled.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        step: Callable[..., Any] | None = None,
        toggled: Callable[[Optimizer], Any] | None = None,
        complete: Callable[[Optimizer], None] = lambda optimizer: None,
    ) -> None:
        self.optimizer = optimizer
        self._step = _plain_step if step is None else step
        self._toggled, self._complete = toggled, complete

    def step(self, closure: Callable[[], Any] | None = None, *, clip_grads: Clip | None = None, **kwargs: Any) -> Any:
        """Step: unscale, clip, `on_before_optimizer_step`, update.

        Args:
            closure: Computes the gradients, if the optimizer needs to do so itself.
            clip_grads: Called with the list of this optimizer's parameters that have gradients, which it changes in
                place: ``lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 1.0)``. Default: none.
            kwargs: Passed to the optimizer.

        Raises:
            ArgumentTypeError: `clip_grads` is no function.
        """
        if clip_grads is None:
            return self._step(self.optimizer, closure, **kwargs)
        if not callable(clip_grads):
            example = "lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 1.0)"
            raise wrong_type("optimizer.step", "clip_grads", clip_grads, "a function of a list of parameters", example)
        if closure is None:
            self._clip(clip_grads)
            return self._step(self.optimizer, None, **kwargs)

        def with_clipping() -> Any:
            loss = closure()
            self._clip(clip_grads)
            return loss

        return self._step(self.optimizer, with_clipping, **kwargs)

    def _clip(self, clip: Clip) -> None:
        self._complete(self.optimizer)
        clip([p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None])

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
