"""Adapters between the loop and DeepSpeed's engine: optimizer, loss scaler and precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightlib.errors import MisconfigurationException, owner
from lightlib.precision.precision import Precision
from lightlib.precision.scaler import Scaler
from lightlib.strategies.clip import clip

M = TypeVar("M", bound=nn.Module)


class Root(nn.Module):
    """The module that the engine wraps: it calls a given step, so that parameters are gathered within it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, step: Callable[..., Any], *args: Any) -> Any:
        return step(*args)


class EngineOptimizer:
    """Reads like the user's optimizer, also to `isinstance`; its steps are the engine's.

    Args:
        optim: The user's optimizer, which the engine drives. Schedules hold it, and its groups are the same objects.
        engine: What `deepspeed.initialize` returned.
        parameters: The module's parameters in each group, as they were before the engine took them.
        names: Their names.
    """

    def __init__(
        self, optim: Optimizer, engine: Any, parameters: list[list[nn.Parameter]], names: list[list[str]]
    ) -> None:
        self.optim, self.engine = optim, engine
        self.parameters, self.names = parameters, names
        self._own_clipping = getattr(engine.optimizer, "clip_grad", None)
        self._factor: float | None = None
        self._norm: Tensor | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.optim)

    def __getattr__(self, name: str) -> Any:
        if name == "optim":
            raise AttributeError(name)
        return getattr(self.optim, name)

    def __repr__(self) -> str:
        return f"EngineOptimizer({self.optim!r})"

    @property
    def trained(self) -> set[int]:
        """The ids of the parameters that are trained."""
        return {id(p) for group in self.parameters for p in group if p.requires_grad}

    @property
    def is_sharded(self) -> bool:
        """Whether DeepSpeed has put an optimizer of its own around the user's."""
        return self.engine.optimizer is not self.optim

    @property
    def applied(self) -> bool:
        """Whether the last step changed the parameters; it does not when gradients are infinite or NaN."""
        return bool(self.engine.was_step_applied())

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Let the engine unscale, clip and step; its gradients are gone afterwards."""
        loss = closure() if closure is not None else None
        inner = self.engine.optimizer
        if self._factor is not None:
            inner.override_loss_scale(float(inner.loss_scale) / self._factor)
        try:
            self.engine.step()
        finally:
            if self._factor is not None:  # DeepSpeed has no call that undoes it
                inner.custom_loss_scaler, inner.external_loss_scale, self._factor = False, None, None
            if self._own_clipping is not None:
                inner.clip_grad = self._own_clipping
        norm, self._norm = self._norm, None
        global_norm = self.engine.get_global_grad_norm() if norm is not None else None
        if norm is not None and global_norm is not None:
            norm.copy_(torch.as_tensor(global_norm))
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.engine.optimizer.zero_grad(set_to_none=set_to_none)

    def clip(self, value: float, algorithm: str) -> Tensor | None:
        """Have the gradients clipped; return a tensor that holds their norm once the step is taken.

        Raises:
            MisconfigurationException: By value, when the engine has sharded the gradients.
        """
        if not self.is_sharded:
            return clip(self.optim, value, algorithm)
        if algorithm == "value":
            raise MisconfigurationException(
                "DeepSpeed clips gradients by their norm, not with gradient_clip_algorithm='value'.",
                expected="gradient_clip_algorithm='norm'.",
                fix=f"{owner()}(gradient_clip_algorithm='norm'), or strategy='fsdp', which clips by value as well.",
            )
        self.engine.optimizer.clip_grad = value  # DeepSpeed reads it in its step
        self._norm = torch.full((), float("nan"), device=self.engine.device)
        return self._norm

    def scale_gradients(self, factor: Any) -> None:
        """Multiply the gradients that the next step uses.

        Raises:
            MisconfigurationException: This optimizer of DeepSpeed has no way to do it.
        """
        if hasattr(self.engine.optimizer, "override_loss_scale"):
            self._factor = float(factor)
            return
        gradients = [p.grad for group in self.parameters for p in group if p.grad is not None]
        if not gradients:
            raise MisconfigurationException(
                f"training_step returned a loss with a weight, and {type(self.engine.optimizer).__name__} of DeepSpeed "
                "keeps the gradients where they cannot be divided by the sum of the weights.",
                expected="a plain loss, or a stage of ZeRO in which they can be.",
                fix="DeepSpeedStrategy(stage=2), or return loss_sum / count.",
            )
        for gradient in gradients:
            gradient.mul_(factor)


class EngineScaler:
    """Loss scaler of the loop: the engine scales the loss itself, and reports which steps it skipped.

    Its state is that of a `torch.amp.GradScaler`, so that a run can be resumed with another strategy.

    Args:
        engine: Returns the engine.
    """

    grad_scaler: Any = None

    def __init__(self, engine: Callable[[], Any]) -> None:
        self._engine = engine

    def unscale_by(self, call: Callable[[Optimizer], None], *, empty: bool = False) -> None:
        """Do nothing: the engine's processes agree by themselves."""

    def scale(self, loss: Tensor) -> Tensor:
        return loss

    def unscale(self, optimizer: Any) -> None:
        """Do nothing: the engine unscales within its step."""

    def check(self, optimizer: Any) -> None:
        """Do nothing: `DeepSpeedStrategy.optimizer` refuses optimizers that cannot be scaled."""

    def check_together(self, optimizers: Any) -> None:
        """Do nothing: there is one optimizer, which the strategy sees to."""

    def step(self, optimizer: Any) -> bool:
        optimizer.step()
        return bool(optimizer.applied)

    def update(self) -> None:
        """Do nothing: the engine grows and shrinks its scale within its step."""

    def state_dict(self) -> dict[str, Any]:
        scaler = self._dynamic
        if scaler is None:
            return {}
        return {
            "scale": float(scaler.cur_scale),
            "growth_factor": float(scaler.scale_factor),
            "backoff_factor": 1.0 / float(scaler.scale_factor),
            "growth_interval": int(scaler.scale_window),
            "_growth_tracker": max(0, int(scaler.cur_iter) - int(scaler.last_overflow_iter) - 1) % scaler.scale_window,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        scaler = self._dynamic
        if scaler is not None and "scale" in state:
            scaler.cur_scale = float(state["scale"])  # DeepSpeed has no setter
            scaler.last_overflow_iter = scaler.cur_iter - 1 - int(state.get("_growth_tracker", 0))

    @property
    def _dynamic(self) -> Any:
        """The engine's scaler when it has one that changes its scale: with float16 and no fixed `loss_scale`."""
        optimizer = getattr(self._engine(), "optimizer", None)
        scaler = getattr(optimizer, "loss_scaler", optimizer)
        attributes = ("cur_scale", "scale_factor", "scale_window", "cur_iter", "last_overflow_iter")
        return scaler if all(getattr(scaler, name, None) is not None for name in attributes) else None


@dataclasses.dataclass(frozen=True)
class EnginePrecision(Precision):
    """DeepSpeed's precision: parameters and steps in 16 bits, optimization in float32.

    A subclass, although `Precision` has an implementation: the loop and the strategy call all of its methods, and
    DeepSpeed needs other answers from five of them.

    Args:
        engine: Returns the engine.
    """

    engine: Callable[[], Any] = dataclasses.field(default=lambda: None, hash=False, compare=False)

    @classmethod
    def of(cls, precision: Precision, engine: Callable[[], Any]) -> EnginePrecision:
        """Return DeepSpeed's form of `precision`.

        Raises:
            MisconfigurationException: It has none.
        """
        dtypes = (torch.float32, torch.float16, torch.bfloat16)
        if precision.compute_dtype not in dtypes or precision.param_dtype not in dtypes:
            raise MisconfigurationException(
                f"DeepSpeed has no precision={precision.name!r}.",
                expected="'32-true', '16-mixed', 'bf16-mixed', '16-true' or 'bf16-true'.",
                fix=f"{owner()}(precision='32-true'), or another strategy.",
            )
        if precision.scaler is not None:
            raise MisconfigurationException(
                "A loss scaler was given, but DeepSpeed's engine scales the loss itself.",
                expected="its settings as arguments of the strategy.",
                fix="DeepSpeedStrategy(initial_scale_power=16, loss_scale_window=1000)",
            )
        fields = {field.name: getattr(precision, field.name) for field in dataclasses.fields(Precision)}
        return cls(**{**fields, "scales_loss": False}, engine=engine)

    @property
    def half(self) -> str | None:
        """The section of DeepSpeed's configuration: ``"fp16"``, ``"bf16"`` or None."""
        return {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(self.compute_dtype)

    @property
    def autocasts(self) -> bool:
        return False

    @property
    def converts_input(self) -> bool:
        return self.half is not None

    def convert(self, module: M) -> M:
        """Cast the floating parameters, as the engine does; buffers keep their dtype."""
        for parameter in module.parameters() if self.half is not None else ():
            if parameter.is_floating_point() and not hasattr(parameter, "ds_id"):
                parameter.data = parameter.data.to(self.compute_dtype)
        return module

    def step_context(self, device_type: str) -> Callable[[], AbstractContextManager[Any]] | None:
        if self.half is None or self.param_dtype is torch.float32:
            return None
        return super().step_context(device_type)

    def init_context(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.param_dtype is torch.float32 else super().init_context()

    def loss_scaler(self, device_type: str) -> Scaler:
        """Return the scaler that reports skipped steps: the engine skips infinite gradients in float32 too."""
        return EngineScaler(self.engine)
