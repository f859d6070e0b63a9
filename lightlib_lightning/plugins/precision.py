"""Precisions under Lightning's protocol, with methods that subclasses override."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer

from lightlib import precision as ours
from lightlib.core.run import loop
from lightlib.errors import MisconfigurationException
from lightlib.precision.precision import Applies
from lightlib.precision.scaler import Scaler
from lightlib.strategies import DeepSpeedStrategy
from lightlib_lightning.plugins.overriding import overridden, refuse

if TYPE_CHECKING:
    from lightlib.core.run.optimization import Optimization

__all__ = ["DoublePrecision", "HalfPrecision", "MixedPrecision", "Precision", "named"]

STEP_CONTEXTS = ("train_step_context", "val_step_context", "test_step_context", "predict_step_context")
BACKWARD = ("pre_backward", "backward", "post_backward")
STEPPING = ("optimizer_step",)
CLIPPING = ("clip_gradients", "clip_grad_by_value", "clip_grad_by_norm", "main_params")
_INITIAL = ("module_init_context", "tensor_init_context")
OF_TRAINER: tuple[str, ...] = (
    *STEP_CONTEXTS,
    *BACKWARD,
    *STEPPING,
    *CLIPPING,
    "connect",
    "state_dict",
    "load_state_dict",
)
OF_TRAINER += ("on_save_checkpoint", "on_load_checkpoint", "teardown")
_OF_BOTH = (*_INITIAL, "convert_module", "convert_input", "forward_context")
_FLOAT32 = {
    "param_dtype": torch.float32,
    "compute_dtype": torch.float32,
    "reduce_dtype": torch.float32,
    "scales_loss": False,
    "scaler": None,
    "cache": True,
}


class Precision(ours.Precision):
    """Base of precisions; a subclass overrides methods, and calls `super()` for lightlib's part.

    Attributes:
        precision: The name, such as ``"32-true"``.

    Example:
        >>> class Scaled(Precision):
        ...     def pre_backward(self, tensor, module):
        ...         return super().pre_backward(tensor * 2, module)
        >>> Scaled().name
        '32-true'
    """

    precision: str = "32-true"
    _strategy: Any = None
    _device_type: str = "cpu"

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG004  those of `__init__`
        """Make a precision in float32; a subclass need not call `super().__init__`."""
        instance = object.__new__(cls)
        for name, value in {"name": cls.precision, **_FLOAT32}.items():
            object.__setattr__(instance, name, value)
        return instance

    def __init__(self) -> None:
        """Keep the values of `__new__`."""

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_strategy"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)

    # lightlib's protocol
    def check_strategy(self, strategy: Applies) -> None:
        """Raise if DeepSpeed would leave out a method that a subclass overrides."""
        if isinstance(strategy, DeepSpeedStrategy) and (lost := overridden(self, (*_OF_BOTH, *OF_TRAINER))):
            raise refuse(type(self), lost[0], "another strategy: DeepSpeed's engine applies the precision itself.")

    def join(self, strategy: Any) -> None:
        """Learn the strategy that makes Lightning's calls."""
        self._strategy = strategy

    @property
    def _plain(self) -> ours.Precision:
        """The same dtypes, without the user's overrides."""
        dtypes = (self.param_dtype, self.compute_dtype, self.reduce_dtype)
        return ours.Precision(self.name, *dtypes, self.scales_loss, cache=self.cache)

    @property
    def converts_input(self) -> bool:
        """Whether `convert_input` does anything."""
        return bool(overridden(self, ["convert_input"])) or self._plain.converts_input

    def convert(self, module: Any) -> Any:
        if overridden(self, ["convert_module"]):
            converted = self.convert_module(module)
            if converted is not module:
                raise MisconfigurationException(
                    f"{type(self).__name__}.convert_module returned another module, a {type(converted).__name__}.",
                    expected="the same module, changed in place.",
                    fix="change the layers in place, or do it in `configure_model` of the module.",
                )
            return module
        return self._plain.convert(module)

    def init_context(self) -> AbstractContextManager[Any]:
        if not overridden(self, _INITIAL):
            return self._plain.init_context()
        stack = ExitStack()
        stack.enter_context(self.tensor_init_context())
        stack.enter_context(self.module_init_context())
        return stack

    def step_context(self, device_type: str) -> Callable[[], AbstractContextManager[Any]] | None:
        self._device_type = device_type
        if self._strategy is None and (lost := overridden(self, OF_TRAINER)):
            raise refuse(type(self), lost[0], "Trainer(strategy='ddp'), or another of Lightning's strategies.")
        if overridden(self, STEP_CONTEXTS):
            return None  # the strategy enters a context for each kind of step
        if overridden(self, ["forward_context"]):
            return self.forward_context
        return self._plain.step_context(device_type)

    # Lightning's protocol
    def forward_context(self) -> AbstractContextManager[Any]:
        """Return the context of a step."""
        factory = self._plain.step_context(self._device_type)
        return nullcontext() if factory is None else factory()

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Cast the parameters of `module` in place."""
        return self._plain.convert(module)

    def convert_input(self, data: Any) -> Any:
        """Return a batch with its floating tensors cast."""
        return self._plain.convert_input(data)

    def convert_output(self, data: Any) -> Any:
        """Return `data`; a Trainer does not convert outputs."""
        return data

    def tensor_init_context(self) -> AbstractContextManager[Any]:
        """Return a context in which new tensors have the dtype of the parameters."""
        return self._plain.init_context()

    def module_init_context(self) -> AbstractContextManager[Any]:
        """Return a context in which new modules have the dtype of the parameters."""
        return self._plain.init_context()

    def train_step_context(self) -> AbstractContextManager[Any]:
        """Return the context of a training step."""
        return self.forward_context()

    def val_step_context(self) -> AbstractContextManager[Any]:
        """Return the context of a validation step."""
        return self.forward_context()

    def test_step_context(self) -> AbstractContextManager[Any]:
        """Return the context of a test step."""
        return self.forward_context()

    def predict_step_context(self) -> AbstractContextManager[Any]:
        """Return the context of a prediction."""
        return self.forward_context()

    def connect(self, model: Any, optimizers: list[Any], lr_schedulers: list[Any]) -> tuple[Any, list[Any], list[Any]]:
        """Return the three, which lightlib does not let a precision replace."""
        return model, optimizers, lr_schedulers

    def pre_backward(self, tensor: Tensor, module: Any) -> Tensor:
        """Scale the loss if the precision does, and call `on_before_backward`."""
        optimization = self._optimization
        if optimization.scaler is not None:
            tensor = optimization.scaler.scale(tensor)
        optimization.hooks.on_before_backward(tensor)
        return tensor

    def backward(self, tensor: Tensor, model: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Differentiate the loss, by the module's `backward` if it has one."""
        self._optimization.module_backward(tensor, *args, **kwargs)

    def post_backward(self, tensor: Tensor, module: Any) -> Tensor:
        """Call `on_after_backward` and return the loss without its graph."""
        self._optimization.hooks.on_after_backward()
        return tensor.detach()

    def optimizer_step(self, optimizer: Any, model: Any, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """Run the closure, `on_before_optimizer_step`, clipping, and the optimizer's step."""
        optimization = self._optimization
        if not optimization.module.automatic_optimization:
            return loop.manual_step(optimization, optimizer, closure, **kwargs)

        def with_hooks() -> Any:
            result = closure()
            if optimization.window.taken:
                optimization.hooks.on_before_optimizer_step(optimizer)
                if optimization.clip is not None:
                    optimization.clip(optimizer)
            return result

        return loop.closure_step(optimization, optimizer, with_hooks, **kwargs)

    def clip_gradients(self, optimizer: Any, clip_val: float = 0.0, gradient_clip_algorithm: str = "norm") -> Any:
        """Clip by `clip_grad_by_value` or `clip_grad_by_norm`; nothing if `clip_val` is not above 0."""
        if clip_val <= 0:
            return None
        by_value = str(getattr(gradient_clip_algorithm, "value", gradient_clip_algorithm)) == "value"
        return (self.clip_grad_by_value if by_value else self.clip_grad_by_norm)(optimizer, clip_val)

    def clip_grad_by_value(self, optimizer: Any, clip_val: float) -> Any:
        """Clip each gradient to at most `clip_val`."""
        if overridden(self, ["main_params"]) or self._strategy is None:
            return clip_grad_value_(list(self.main_params(optimizer)), clip_val)
        return self._strategy.clip_by_lightlib(optimizer, clip_val, "value")

    def clip_grad_by_norm(self, optimizer: Any, clip_val: float) -> Any:
        """Clip the norm of all gradients together, over all shards, and return it."""
        if overridden(self, ["main_params"]) or self._strategy is None:
            return clip_grad_norm_(list(self.main_params(optimizer)), clip_val)
        return self._strategy.clip_by_lightlib(optimizer, clip_val, "norm")

    def main_params(self, optimizer: Optimizer) -> Iterator[nn.Parameter]:
        """Return the parameters of an optimizer: their gradients are clipped."""
        return (parameter for group in optimizer.param_groups for parameter in group["params"])

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint; lightlib saves the loss scaler's itself."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Change the content of a checkpoint before it is written."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Read from the content of a checkpoint."""

    def teardown(self) -> None:
        """Release resources at the end of a run."""

    @property
    def _optimization(self) -> Optimization:
        if self._strategy is None or self._strategy.optimization is None:
            raise MisconfigurationException(
                f"A method of {type(self).__name__} was called, but nothing is trained here.",
                expected="calls from trainer.fit.",
                fix="leave the call to the Trainer.",
            )
        optimization: Optimization = self._strategy.optimization
        return optimization


class MixedPrecision(Precision, ours.MixedPrecision):
    """Parameters in float32, operations cast one by one by autocast.

    Args:
        precision: ``"16-mixed"`` (scales the loss) or ``"bf16-mixed"``.
        device: The type of device, for the loss scaler. Default: that of the run.
        scaler: Settings of the loss scaler or a `torch.amp.GradScaler`.

    Example:
        >>> MixedPrecision("bf16-mixed", "cpu").compute_dtype
        torch.bfloat16
    """

    def __init__(
        self, precision: Literal["16-mixed", "bf16-mixed"] = "16-mixed", device: str | None = None, scaler: Any = None
    ) -> None:
        ours.MixedPrecision.__init__(self, precision, device, scaler)
        self.precision, self._device = precision, device

    @property
    def device(self) -> str | None:
        """The type of device; without the argument that of the strategy, once there is one."""
        if self._device is None and self._strategy is not None:
            device_type: str = self._strategy.root_device.type
            return device_type
        return self._device

    def autocast_context_manager(self) -> AbstractContextManager[Any]:
        """Return the context of autocast."""
        return Precision.forward_context(self)

    def loss_scaler(self, device_type: str) -> Scaler | None:
        """Return the loss scaler of a run; its `torch.amp.GradScaler` is `scaler` from then on."""
        scaler = super().loss_scaler(device_type)
        if scaler is not None:
            vars(self)["scaler"] = scaler.grad_scaler
        return scaler


class HalfPrecision(Precision, ours.HalfPrecision):
    """Parameters, inputs and operations in a dtype of 16 bits.

    Args:
        precision: ``"16-true"`` or ``"bf16-true"``.
    """

    def __init__(self, precision: Literal["16-true", "bf16-true"] = "16-true") -> None:
        ours.HalfPrecision.__init__(self, precision)
        self.precision = precision


class DoublePrecision(Precision, ours.DoublePrecision):
    """Parameters, inputs and operations in float64."""

    precision = "64-true"

    def __init__(self) -> None:
        ours.DoublePrecision.__init__(self)


_NAMED: dict[str, Callable[[], Precision]] = {
    "64-true": DoublePrecision,
    "32-true": Precision,
    **{name: partial(MixedPrecision, name) for name in ("16-mixed", "bf16-mixed")},
    **{name: partial(HalfPrecision, name) for name in ("16-true", "bf16-true")},
}


def named(name: str) -> Callable[[], Precision] | None:
    """Return the factory of the precision of a name; None if Lightning does not have it.

    Example:
        >>> named("bf16-true")().name
        'bf16-true'
    """
    return _NAMED.get(name)
