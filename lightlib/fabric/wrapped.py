"""Wrapped modules and optimizers: they behave as the user's, and run on the strategy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from lightlib.core.optimization.optimizers import zeroing
from lightlib.core.run.step_notes import explain_dtypes
from lightlib.errors import MisconfigurationException, check_type, owned_by
from lightlib.fabric.loader import FabricLoader
from lightlib.fabric.refusals import OWNER
from lightlib.precision.context import cast_floating
from lightlib.precision.scaler import Scaler
from lightlib.strategies.state_by_name import has_dtensors

if TYPE_CHECKING:
    from lightlib.fabric.placement import Placement

_STEPS = ("training_step", "validation_step", "test_step", "predict_step")
_OWN = frozenset({"_placement", "_marked", "_user", "_called", "_convert_input", "_convert_output"})
_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


class FabricModule(nn.Module):
    """The user's module as `Fabric.setup` returns it: calling it runs its forward on the strategy, in the precision.

    It has the parameters, buffers and children of the module, under the same names, and every other attribute of it.
    A method of the module that calls its layers bypasses the strategy, unless it is marked (`mark_forward_method`).

    Args:
        placement: The module on its strategy.
        compiler: Compiles as torch.compile compiled the user's module; None if it was not compiled.

    Attributes:
        module: The user's module.
    """

    def __init__(self, placement: Placement, compiler: Callable[..., Any] | None = None) -> None:
        user, precision, called = placement.module, placement.strategy.precision, placement.called
        vars(self).update(_placement=placement, _user=user, _called=called if compiler is None else compiler(called))
        super().__init__()
        vars(self).update({name: vars(user)[name] for name in _SHARED})  # the same objects: one set of parameters
        vars(self)["_marked"] = {name for name in _STEPS if isinstance(getattr(user, name, None), MethodType)}
        vars(self)["_convert_input"] = precision.convert_call if precision.converts_input else None
        keeps = precision.compute_dtype is torch.float32
        vars(self)["_convert_output"] = None if keeps else _to_default_dtype

    @property
    def module(self) -> nn.Module:
        """The user's module."""
        user: nn.Module = vars(self)["_user"]
        return user

    @property
    def training(self) -> bool:
        """Whether the module is in training mode."""
        return self.module.training

    @training.setter
    def training(self, mode: bool) -> None:
        if "_marked" in self.__dict__:  # else it is the constructor of nn.Module
            self.module.training = mode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward on the strategy. Floating outputs have torch's default dtype."""
        attributes = self.__dict__
        return self._through_strategy(attributes["_called"], args, kwargs)

    def _through_strategy(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        attributes = self.__dict__
        if attributes["_convert_input"] is not None:
            args, kwargs = attributes["_convert_input"](args, kwargs)
        placement = attributes["_placement"]
        run = placement.train if torch.is_grad_enabled() and placement.trains else placement.evaluate
        try:
            output = run(method, args, kwargs)
        except (RuntimeError, ValueError) as error:
            explain_dtypes(error, self.module, (args, kwargs), attributes["_convert_input"] is not None, "Fabric")
            raise
        return output if attributes["_convert_output"] is None else attributes["_convert_output"](output)

    def _call_marked(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if vars(self)["_placement"].called is self.module:
            return self._through_strategy(method, args, kwargs)
        user: Any = self.module  # the strategy's wrapper calls its forward, which stands for the method once
        forward, had = user.forward, "forward" in vars(user)

        def once(*arguments: Any, **named: Any) -> Any:
            user.__dict__.pop("forward")
            if had:
                user.__dict__["forward"] = forward
            return method(*arguments, **named)

        user.__dict__["forward"] = once
        return self._through_strategy(vars(self)["_called"], args, kwargs)

    def mark_forward_method(self, method: MethodType | str) -> None:
        """Run a method of the module on the strategy, as its forward.

        Args:
            method: The method, or its name.

        Raises:
            ArgumentTypeError: It is neither.
            MisconfigurationException: It is `forward`, or the module has no such method.

        Example:
            >>> class Net(nn.Linear):
            ...     def loss(self, x):
            ...         return self(x).square().mean()
            >>> import lightlib
            >>> net = lightlib.Fabric(accelerator="cpu").setup(Net(2, 1))
            >>> net.mark_forward_method("loss")
            >>> net.loss(torch.ones(1, 2)).shape
            torch.Size([])
        """
        kind = type(self.module).__name__
        expected, types = "a method of the module, or its name", (MethodType, str)
        check_type("mark_forward_method", "method", method, types, expected, "'training_step'")
        name = method if isinstance(method, str) else method.__name__
        if name == "forward" or not isinstance(getattr(self.module, name, None), MethodType):
            reason = "runs on the strategy anyway" if name == "forward" else f"is no method of {kind}"
            raise MisconfigurationException(
                f"mark_forward_method got {name!r}, which {reason}.",
                expected=f"the name of another method of {kind}.",
                fix="correct the name, or leave the call out.",
            )
        self.__dict__["_marked"].add(name)

    # what belongs to the module
    def train(self, mode: bool = True) -> FabricModule:
        self.module.train(mode)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the local state of the module, by its own names; `Fabric.save` gathers sharded ones."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state of the module, by its own names; `Fabric.load` shards full ones."""
        return self.module.load_state_dict(state_dict, strict, assign)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> FabricModule:
        convert: Any = self.module._apply  # noqa: SLF001  the base of `to`, `cpu`, `half`, …
        convert(fn, recurse)
        return self

    def extra_repr(self) -> str:
        return self.module.extra_repr()

    def __getattr__(self, name: str) -> Any:
        attributes = self.__dict__
        if "_marked" in attributes and name in attributes["_marked"]:
            return partial(self._call_marked, getattr(attributes["_user"], name))
        if "_user" not in attributes:
            raise AttributeError(name)
        if name in ("device", "dtype") and not hasattr(attributes["_user"], name):
            return _place_or_dtype(attributes["_user"], name)
        value = getattr(attributes["_user"], name)
        if (
            inspect.ismethod(value)
            and value.__self__ is attributes["_user"]
            and _is_distributed(attributes["_placement"])
        ):
            return partial(_call_outside, self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if "_marked" not in self.__dict__ or name in _OWN or name in self.__dict__:
            super().__setattr__(name, value)
        else:
            setattr(self.module, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            super().__delattr__(name)
        else:
            delattr(self.module, name)


def _place_or_dtype(module: nn.Module, name: str) -> Any:
    """Return the device of a module, or its floating dtype: those of its first tensor, else torch's defaults."""
    tensors = [*module.parameters(), *module.buffers()]
    if name == "device":
        return tensors[0].device if tensors else torch.get_default_device()
    return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.get_default_dtype())


def _to_default_dtype(output: Any) -> Any:
    return cast_floating(output, torch.get_default_dtype())


def _is_distributed(placement: Placement) -> bool:
    return placement.strategy.world_size > 1 or has_dtensors(placement.module)


def _call_outside(model: FabricModule, name: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a method that is not marked; refuse it if it calls a layer: no rank would reduce its gradients."""

    def refuse(*_: Any) -> None:
        placement = model.__dict__["_placement"]
        if torch.is_grad_enabled() or placement.strategy.lockstep:
            kind = type(model.module).__name__
            raise MisconfigurationException(
                f"{kind}.{name} was called on the wrapped module and calls its layers, which bypasses the strategy "
                f"{placement.strategy.describe()}: gradients would not be reduced, or parameters not be gathered.",
                expected="methods that call layers to be marked, after the module is set up.",
                fix=f"model.mark_forward_method({name!r})",
            )

    handles = [part.register_forward_pre_hook(refuse) for part in model.module.modules()]
    try:
        return method(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()


class FabricOptimizer:
    """The user's optimizer as `Fabric.setup` returns it, also for `isinstance`. Its steps unscale float16's gradients.

    Args:
        user: The user's optimizer.
        optimizer: The one that is stepped: the user's, or the one with which the strategy replaces it.
        placements: The modules whose parameters it steps.
        scaler: Of the loss; None if the precision has none.
        callbacks: Called after each step.
        step: Called as ``step(optimizer, **options)`` in place of the optimizer's step.

    Attributes:
        optimizer: The optimizer that is stepped.
    """

    def __init__(
        self,
        user: Optimizer,
        optimizer: Any,
        placements: list[Placement],
        scaler: Scaler | None,
        callbacks: list[Callable[..., Any]],
        step: Callable[..., Any] | None = None,
    ) -> None:
        self.user, self.optimizer, self.placements = user, optimizer, placements
        self._scaler, self._callbacks = scaler, callbacks
        if step is not None:
            self._callbacks = []
            self.step = partial(_step_by, step, optimizer, callbacks)  # type: ignore[method-assign]
        self._zero = zeroing([optimizer])
        by_hand = [p.strategy for p in placements if not getattr(p.module, "automatic_optimization", True)]
        self._reduces = [strategy.sync_gradients for strategy in by_hand if strategy.world_size > 1]

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Step, and return the closure's loss. With a loss scaler the closure runs first, and once.

        Raises:
            MisconfigurationException: The loss is scaled, and `fabric.backward` has not been called since the last
                step.
        """
        optimizer = self.optimizer
        if self._scaler is not None or self._reduces:
            output = closure() if closure is not None else None
            for reduce in self._reduces:
                reduce(optimizer)
            if self._scaler is None:
                optimizer.step(**options)
            else:
                with owned_by(OWNER):
                    self._scaler.step(optimizer)
        else:
            output = optimizer.step(**options) if closure is None else optimizer.step(closure, **options)
        for callback in self._callbacks:
            callback()
        return output

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients; ``set_to_none=False`` sets them to zero."""
        if set_to_none:
            self._zero(self.optimizer)
        else:
            self.optimizer.zero_grad(set_to_none=False)

    def state_dict(self) -> dict[str, Any]:
        """Return the full state on rank 0; all processes call it. A sharded one is empty on other ranks."""
        if self.is_plain:
            return self.optimizer.state_dict()  # type: ignore[no-any-return]
        return self.placements[0].strategy.optimizer_state(self.optimizer)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a full state, the same on every process; each keeps its shard."""
        if self.is_plain:
            self.optimizer.load_state_dict(dict(state_dict))
        else:
            self.placements[0].strategy.load_optimizer_state(self.optimizer, dict(state_dict))

    @property
    def is_plain(self) -> bool:
        """Whether it steps the parameters of several modules, each of which has a strategy of its own."""
        return len(self.placements) > 1 and not hasattr(self.optimizer, "consolidate_state_dict")

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # for `isinstance`: schedules accept only an Optimizer
        return type(self.optimizer)

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"FabricOptimizer({self.optimizer!r})"


def _step_by(
    step: Callable[..., Any],
    optimizer: Any,
    callbacks: list[Callable[..., Any]],
    closure: Callable[[], Any] | None = None,
    **options: Any,
) -> Any:
    output = step(optimizer, **options) if closure is None else step(optimizer, closure=closure, **options)
    for callback in callbacks:
        callback()
    return output


def is_wrapped(obj: object) -> bool:
    """Whether `obj` is a module, an optimizer or a loader that a Fabric has set up.

    Example:
        >>> import lightlib
        >>> model = nn.Linear(2, 1)
        >>> is_wrapped(model), is_wrapped(lightlib.Fabric(accelerator="cpu").setup(model))
        (False, True)
    """
    return isinstance(obj, (FabricModule, FabricLoader)) or type(obj) is FabricOptimizer


def unwrapped(obj: Any) -> Any:
    """Return the user's object behind a wrapped one; any other object as it is."""
    if isinstance(obj, FabricModule):
        return obj.module
    return obj.user if type(obj) is FabricOptimizer else obj
