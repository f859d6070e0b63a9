"""InFabric: a Fabric's calls of a strategy with Lightning's methods, and lightlib's part of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from lightlib import report
from lightlib import strategies as ours
from lightlib.accelerators.accelerator import Accelerator
from lightlib.errors import MisconfigurationException
from lightlib.fabric import checkpoints, gradients
from lightlib.fabric.empty import without_initialization
from lightlib.fabric.fabric_calls import FabricCalls
from lightlib.fabric.placement import Placement
from lightlib.fabric.wrapped import FabricModule, FabricOptimizer
from lightlib.launch.environment.detect import Environment
from lightlib.precision.precision import Precision
from lightlib.strategies.single import in_context
from lightlib_lightning.plugins.overriding import overridden, refuse

__all__ = ["BackwardSync", "DDPBackwardSync", "InFabric"]

_SETUP = ("setup_module", "setup_module_and_optimizers", "setup_optimizer", "module_to_device")
_CLIPPING = ("clip_gradients_norm", "clip_gradients_value")
_STATES = ("get_module_state_dict", "load_module_state_dict", "get_optimizer_state")
_STORING = ("save_checkpoint", "load_checkpoint")
_CONTEXTS = ("module_init_context", "tensor_init_context")
_WITH_MODULE = (*_SETUP, *_CLIPPING, *_STATES, *_STORING, "backward", "_backward_sync_control")


class BackwardSync:
    """Base of objects that keep gradients from being reduced."""

    def no_backward_sync(self, module: nn.Module, enabled: bool) -> AbstractContextManager[Any]:
        """Return the context of a forward and a backward pass; with `enabled` gradients are not reduced."""
        raise NotImplementedError


class DDPBackwardSync(BackwardSync):
    """Keeps the gradients of torch's DistributedDataParallel from being reduced."""

    def no_backward_sync(self, module: nn.Module, enabled: bool) -> AbstractContextManager[Any]:
        """Return `module.no_sync()`.

        Raises:
            TypeError: The module is not in DistributedDataParallel.
        """
        if not enabled:
            return nullcontext()
        if not isinstance(module, DistributedDataParallel):
            raise TypeError(
                f"no_backward_sync got a {type(module).__name__}.\n"
                "  Expected: a module in torch's DistributedDataParallel, as DDPStrategy.setup_module returns it.\n"
                "  Fix: return the result of super().setup_module(module), or set a `_backward_sync_control`."
            )
        context: AbstractContextManager[Any] = module.no_sync()
        return context


class PlacedByUser(ours.SingleDeviceStrategy):
    """Runs a module that the user's strategy has set up itself.

    Args:
        of: The user's strategy.
    """

    def __init__(self, of: Any) -> None:
        super().__init__(of.root_device)
        self._of, self._called = of, None
        self.use(of.accelerator, [of.root_device], of.precision, of.environment)
        self.collectives, self.data = of.collectives, of.data

    def use(
        self, accelerator: Accelerator, devices: list[torch.device], precision: Precision, environment: Environment
    ) -> None:
        super().use(accelerator, devices, precision, environment)
        self.world_size = self._of.world_size

    def describe(self) -> str:
        return str(self._of.describe())

    def place(self, module: nn.Module, steps: Mapping[str, Callable[..., Any]]) -> None:
        self.module = self.precision.convert(module)
        self._of.module_to_device(module)
        context = self.precision.step_context(self.root_device.type)
        for name, step in steps.items():
            setattr(self, name, in_context(step, context))

    def call_through(self, called: Any) -> None:
        """Pass `called` to the user's methods."""
        self._called = called

    def module_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._of.get_module_state_dict(self._called)
        return state

    def load_module_state(self, state: Mapping[str, Any], strict: bool = True) -> None:
        self._of.load_module_state_dict(self._called, state, strict=strict)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        state: dict[str, Any] = self._of.get_optimizer_state(optimizer)
        return state


class InFabric:
    """Connects a strategy with Lightning's methods to a Fabric.

    A strategy of one device or of DDP that overrides a method with a module sets up modules itself, as in Lightning:
    its wrapper is called. The rest is placed by lightlib.

    Args:
        strategy: The user's.
        fabric: The Fabric.
    """

    def __init__(self, strategy: Any, fabric: Any) -> None:
        self._strategy, self._fabric = strategy, fabric
        self._place: Callable[[], Placement] | None = None
        self._wrapped: dict[int, Any] = {}
        self.leaves_setup = self._leaves_setup()

    def _leaves_setup(self) -> bool:
        """Whether the strategy sets up modules itself."""
        strategy = self._strategy
        by_user = bool(overridden(strategy, _WITH_MODULE)) or self._has_control
        plain = isinstance(strategy, (ours.SingleDeviceStrategy, ours.DDPStrategy))
        if strategy.from_scratch or (plain and by_user and not getattr(strategy, "shards_optimizer", False)):
            return True
        if self._has_control:
            raise refuse(type(strategy), "_backward_sync_control", "DDPStrategy, or leave it out: lightlib does it.")
        return False

    @property
    def _has_control(self) -> bool:
        control = vars(self._strategy).get("_backward_sync_control")
        return control is not None and type(control) is not DDPBackwardSync

    def fabric_calls(self) -> FabricCalls:
        """Return the calls that the strategy makes."""
        strategy = self._strategy

        def calls(*names: str) -> bool:
            return bool(overridden(strategy, names))

        leaves = self.leaves_setup
        sets_up = leaves or calls(*_SETUP, *_STATES)
        contexts = calls(*_CONTEXTS)
        return FabricCalls(
            strategy=self._placed_by_user if leaves else None,
            set_up=self._set_up if sets_up else None,
            set_up_optimizer=strategy.setup_optimizer if sets_up else None,
            loader=strategy.process_dataloader if calls("process_dataloader") else None,
            to_device=strategy.module_to_device if calls("module_to_device") else None,
            backward=strategy.backward if calls("backward") else None,
            step=strategy.optimizer_step if calls("optimizer_step") else None,
            clip=self._clip if calls(*_CLIPPING) else None,
            sync=self._sync if leaves else None,
            all_reduce=self._all_reduce if calls("all_reduce") else None,
            init_module=self._init_module if contexts else None,
            init_tensor=strategy.tensor_init_context if contexts else None,
            save=self._save if calls("save_checkpoint") else None,
            load=self._load if calls("load_checkpoint") else None,
        )

    def _placed_by_user(self) -> PlacedByUser:
        return PlacedByUser(self._strategy)

    # the Fabric's calls
    def _set_up(self, module: Any, optimizers: list[Any], scheduler: Any, place: Callable[[], Placement]) -> Any:
        strategy = self._strategy
        placements: list[Placement] = []

        def once() -> None:
            if not placements:
                placements.append(place())

        self._place = once  # type: ignore[assignment]  # its result is not used
        if self.leaves_setup:
            once()
        elif overridden(strategy, ["module_to_device"]):
            strategy.module_to_device(module)
        if optimizers:
            called, stepped, scheduler = strategy.setup_module_and_optimizers(module, optimizers, scheduler)
        else:
            called, stepped = strategy.setup_module(module), []
        if not placements:
            raise MisconfigurationException(
                f"{type(strategy).__name__} has set up a {type(module).__name__} without lightlib.",
                expected="super().setup_module(module), in which lightlib shards the module in place.",
                fix="call it, or derive from DDPStrategy, SingleDeviceStrategy or Strategy.",
            )
        of_module: Any = placements[0].strategy
        if isinstance(of_module, PlacedByUser):
            of_module.call_through(called)
        else:
            of_module.redirect_states(strategy, called)
        return called, list(stepped), scheduler

    def _clip(self, module: Any, optimizer: Any, limits: gradients.Limits) -> Any:
        if self._fabric._placed.scaler is not None:  # noqa: SLF001  lightlib's own, as below
            self._fabric._placed.scaler.unscale(optimizer)  # noqa: SLF001
        if limits.clip_val is not None:
            self._strategy.clip_gradients_value(module, optimizer, clip_val=limits.clip_val)
            return None
        return self._strategy.clip_gradients_norm(
            module,
            optimizer,
            max_norm=limits.max_norm,
            norm_type=limits.norm_type,
            error_if_nonfinite=limits.error_if_nonfinite,
        )

    def _sync(self, module: Any, enabled: bool) -> Any:
        strategy = self._strategy
        if not strategy.from_scratch and isinstance(strategy, ours.SingleDeviceStrategy):
            return nullcontext()
        control = strategy._backward_sync_control  # noqa: SLF001  Lightning's name
        if control is None:
            report.warn(
                f"{type(strategy).__name__} reduces gradients also inside of fabric.no_backward_sync: it has no "
                "`_backward_sync_control`."
            )
            return nullcontext()
        return control.no_backward_sync(module, enabled)

    def _all_reduce(self, tensor: Any, group: Any, reduce_op: str) -> Any:
        return self._strategy.all_reduce(tensor, group=group, reduce_op=reduce_op)

    def _init_module(self, empty_init: bool | None) -> Any:
        return self._strategy.module_init_context(empty_init=empty_init)

    def _save(self, path: Any, state: Any, filters: Any) -> None:
        self._strategy.save_checkpoint(path=path, state=self._unwrapped(state), filter=filters)

    def _load(self, path: Any, state: Any, strict: bool, weights_only: bool | None) -> Any:
        unwrapped = self._unwrapped(state)
        rest = self._strategy.load_checkpoint(path=path, state=unwrapped, strict=strict, weights_only=weights_only)
        if isinstance(state, dict):
            for name, value in unwrapped.items():
                if id(value) not in self._wrapped:
                    state[name] = value
        return rest

    def _unwrapped(self, state: Any) -> Any:
        """Return the user's objects, and keep in mind which ones were wrapped."""
        if not isinstance(state, Mapping):
            return self._behind(state)
        return {name: self._behind(value) for name, value in state.items()}

    def _behind(self, value: Any) -> Any:
        if isinstance(value, FabricModule):
            user_object = vars(value)["_placement"].called
        elif type(value) is FabricOptimizer:
            user_object = value.optimizer
        else:
            return value
        self._wrapped[id(user_object)] = value
        return user_object

    def _rewrapped(self, value: Any) -> Any:
        return self._wrapped.get(id(value), value)

    # lightlib's part, which `super()` reaches
    def place(self) -> None:
        """Place the module that is set up now."""
        if self._place is not None:
            self._place()

    def place_optimizer(self, optimizer: Any) -> Any:
        """Return the optimizer to step."""
        if self.leaves_setup:
            return optimizer
        return self._fabric._placed.placements_of(optimizer)[0].strategy.optimizer(optimizer)  # noqa: SLF001

    def backward(self, tensor: Any, module: Any = None, *args: Any, **kwargs: Any) -> None:
        """Differentiate a loss."""
        placed = self._fabric._placed  # noqa: SLF001
        placement = None if module is None else self._placement(module)
        gradients.backward(placed.placements, placed.scaler, tensor, args, kwargs, placement)

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Step an optimizer."""
        stepped = self._fabric._placed.optimizers  # noqa: SLF001
        wrapped = next((candidate for candidate in stepped if candidate.optimizer is optimizer), None)
        if wrapped is not None:
            return FabricOptimizer.step(wrapped, closure, **kwargs)
        return optimizer.step(**kwargs) if closure is None else optimizer.step(closure, **kwargs)

    def clip(self, module: Any, optimizer: Any, limits: gradients.Limits) -> Any:
        """Clip the gradients of an optimizer."""
        scaler = self._fabric._placed.scaler  # noqa: SLF001
        return gradients.clip(scaler, self._placement(module).strategy, optimizer, limits)

    def module_init_context(self, empty_init: bool | None) -> AbstractContextManager[Any]:
        """Return a context that creates modules on the device, in the dtype of the precision."""
        context: AbstractContextManager[Any] = self._strategy.by_lightlib.init_context()
        return without_initialization(context) if empty_init else context

    def module_state(self, module: Any) -> dict[str, Any]:
        """Return the state of a module."""
        placement = self._placement(module)
        if isinstance(placement.strategy, PlacedByUser):
            state: dict[str, Any] = self._inner(module).state_dict()
        else:
            state = placement.strategy.by_lightlib.module_state()
        return state

    def load_module_state(self, module: Any, state: Mapping[str, Any], strict: bool) -> None:
        """Load the state of a module."""
        placement = self._placement(module)
        if isinstance(placement.strategy, PlacedByUser):
            self._inner(module).load_state_dict(state, strict=strict)
        else:
            placement.strategy.by_lightlib.load_module_state(state, strict)

    def _inner(self, module: Any) -> Any:
        """Return the module in torch's DistributedDataParallel, if DDPStrategy has put it there."""
        by_ddp = isinstance(module, DistributedDataParallel) and not self._strategy.from_scratch
        return module.module if by_ddp else module

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Return the state of an optimizer."""
        placement = self._fabric._placed.placements_of(optimizer)[0]  # noqa: SLF001
        if not isinstance(placement.strategy, PlacedByUser):
            state: dict[str, Any] = placement.strategy.by_lightlib.optimizer_state(optimizer)
            return state
        if hasattr(optimizer, "consolidate_state_dict"):  # torch's ZeroRedundancyOptimizer
            optimizer.consolidate_state_dict()
            return optimizer.state_dict() if self._strategy.is_global_zero else {}
        return optimizer.state_dict()  # type: ignore[no-any-return]

    def save_checkpoint(self, path: Any, state: Any, storage_options: Any = None, filter: Any = None) -> None:  # noqa: A002  Lightning's name
        """Write a checkpoint."""
        rewrapped = {name: self._rewrapped(value) for name, value in state.items()}
        checkpoints.save(self._fabric._placed, path, rewrapped, filter, storage_options)  # noqa: SLF001

    def load_checkpoint(
        self, path: Any, state: Any = None, strict: bool = True, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Restore the objects in `state`, and return the rest."""
        if isinstance(state, (nn.Module, Optimizer)):
            checkpoints.load_raw(self._fabric._placed, path, self._rewrapped(state), strict, weights_only)  # noqa: SLF001
            return {}
        rewrapped = {name: self._rewrapped(value) for name, value in (state or {}).items()}
        rest = checkpoints.load(self._fabric._placed, path, rewrapped, strict, weights_only)  # noqa: SLF001
        for name, value in rewrapped.items():
            if self._rewrapped(state[name]) is not value:
                state[name] = value
        return rest

    def _placement(self, module: Any) -> Any:
        """Return the placement of a module that was set up."""
        placements: list[Placement] = self._fabric._placed.placements  # noqa: SLF001
        matching = next((placement for placement in placements if module in (placement.called, placement.module)), None)
        if matching is None:
            raise MisconfigurationException(
                f"A method of {type(self._strategy).__name__} got a {type(module).__name__} that is not set up.",
                expected="the module that `setup_module` returned.",
                fix="pass the module with which the method was called.",
            )
        return matching
