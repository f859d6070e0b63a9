"""Optimization: the calls that turn batches into optimizer steps, chosen once before the first batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lightlib.core.module.module import Module
from lightlib.core.optimization.schedules import Schedules
from lightlib.core.optimization.window import Window
from lightlib.core.run.hooks import Hooks
from lightlib.errors import MisconfigurationException
from lightlib.precision.scaler import Scaler
from lightlib.strategies.strategy import Strategy

Batch = Callable[..., Any]
Closure = Callable[[], Any] | None


def not_training(*_: Any, **__: Any) -> Any:
    """Raise for a call that is only possible in training."""
    raise MisconfigurationException(
        "manual_backward() was called, but nothing is trained here.",
        expected="a call from training_step or a hook of trainer.fit.",
        fix="remove it from validation_step, test_step and predict_step.",
    )


@dataclass(slots=True)
class Optimization:
    """Optimizers, loss scaler, schedules, the accumulation window, and the calls to each of them.

    Attributes:
        window: The batches between two optimizer steps.
        optimizers: As the strategy steps them.
        handles: As the user gets them from `self.optimizers()`.
        scaler: Of the loss, in float16.
        run_batch: ``(run, batch, batch_idx, steps_now)``: automatic, by closure or manual optimization.
        step_method: The module's `optimizer_step`; None if it is not called.
        clip: Clips the gradients of one optimizer; None if nothing is clipped. Default: as `clips_by_default`.
        clips_by_default: Whether the module overrides no method of clipping, and the Trainer has a value.
        gradient_norm: The norm before the last clipping.
        cleared_first: The optimizers whose gradients are cleared before the first `training_step` of a window.
    """

    module: Module
    strategy: Strategy
    hooks: Hooks
    window: Window
    schedules: Schedules
    clip_defaults: tuple[float | None, str | None]
    module_backward: Callable[..., None]
    optimizers: list[Any] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)
    scaler: Scaler | None = None
    run_batch: Batch = not_training
    backward: Callable[..., None] = not_training
    manual_backward: Callable[..., None] = not_training
    step_method: Callable[..., None] | None = None
    zero_grad: Callable[[Any], None] = not_training
    clip: Callable[[Any], None] | None = None
    clips_by_default: bool = False
    gradient_norm: Tensor | None = None
    removable: list[Any] = field(default_factory=list)
    cleared_first: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.clips_by_default:
            self.clip = self.clip_by_default

    def call(
        self,
        run_batch: Batch,
        backward: Callable[..., None],
        manual_backward: Callable[..., None],
        step_method: Callable[..., None] | None,
        handles: list[Any],
        removable: list[Any],
    ) -> None:
        """Set the calls that run batches. They need this object, so they are set after it is built."""
        self.run_batch, self.backward, self.manual_backward = run_batch, backward, manual_backward
        self.step_method, self.handles, self.removable = step_method, handles, removable

    def wrap(self, run_batch: Batch, backward: Callable[..., None]) -> None:
        """Wrap two calls of a batch."""
        self.run_batch, self.backward = run_batch, backward

    def clip_gradients(self, optimizer: Any, value: float | None, algorithm: str | None) -> None:
        """Clip the unscaled gradients of `optimizer`; arguments left None take the Trainer's values."""
        names = ("gradient_clip_val", "gradient_clip_algorithm")
        for name, argument, default in zip(names, (value, algorithm), self.clip_defaults, strict=True):
            differs = default is not None and argument is not None and argument != default
            if differs and self.module.automatic_optimization:
                raise MisconfigurationException(
                    f"clip_gradients got {name}={argument!r}, but the Trainer has {name}={default!r}.",
                    expected="one of the two.",
                    fix=f"leave out Trainer({name}=…) to set it in configure_gradient_clipping.",
                )
        value = self.clip_defaults[0] if value is None else value
        if not value:  # 0 means "do not clip", as in Lightning, not "set all gradients to 0"
            return
        raw = getattr(optimizer, "optimizer", optimizer)
        self.complete(raw)
        self.gradient_norm = self.strategy.clip_gradients(raw, value, algorithm or self.clip_defaults[1] or "norm")

    def clip_by_default(self, optimizer: Any) -> None:
        """Do the same in automatic optimization with the Trainer's values, which are not looked at again."""
        value, algorithm = self.clip_defaults
        if self.scaler is not None:
            self.scaler.unscale(optimizer)
        if value is not None:
            self.gradient_norm = self.strategy.clip_gradients(optimizer, value, algorithm or "norm")

    def complete(self, optimizer: Any) -> None:
        """Reduce the gradients of `optimizer` over processes, and unscale them; a second call changes nothing."""
        if not self.module.automatic_optimization:
            self.strategy.sync_gradients(optimizer)
        if self.scaler is not None:
            self.scaler.unscale(optimizer)

    def restore_norm(self, norm: Tensor | None) -> None:
        self.gradient_norm = norm

    def loss_of_all(self) -> Tensor | None:
        """Return the batch's loss averaged over processes, so that optimizers that read it decide the same on all."""
        value, processes = self.window.value, self.window.processes
        return value if value is None or processes is None else processes.reduce(value)

    def for_user(self, wrapped: bool) -> Any:
        optimizers = self.handles if wrapped else self.optimizers
        return optimizers[0] if len(optimizers) == 1 else list(optimizers)

    def remove_hooks(self) -> None:
        for handle in self.removable:
            handle.remove()
        self.removable = []
