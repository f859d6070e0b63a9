"""FabricCalls: calls of a Fabric that a strategy of another framework makes itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lightlib.strategies.strategy import Strategy


@dataclass(frozen=True)
class FabricCalls:
    """Calls of a Fabric, chosen before anything is set up; None: the call is Fabric's own.

    Modules are those that `set_up` returned, optimizers those that are stepped.

    Attributes:
        strategy: Returns the strategy on which the next module is placed.
        set_up: ``(module, optimizers, scheduler, place)`` sets up a module with its optimizers and returns the module
            to call, the optimizers to step, and the scheduler; ``place()`` does Fabric's part. Without optimizers
            they are None.
        set_up_optimizer: ``(optimizer)`` returns the optimizer to step.
        loader: ``(loader)`` returns the loader to use.
        to_device: ``(module)`` moves a module to the device.
        backward: ``(tensor, module, *args, **kwargs)``; the module may be None.
        step: ``(optimizer, **kwargs)`` returns the result of a step.
        clip: ``(module, optimizer, limits)`` returns the norm.
        sync: ``(module, enabled)`` returns the context in which gradients are not reduced.
        all_reduce: ``(tensor, group, reduce_op)``.
        init_module: ``(empty_init)`` returns a context, as `init_tensor`, which has no argument.
        save: ``(path, state, filter)``.
        load: ``(path, state, strict, weights_only)`` returns the rest; the state may be one module or optimizer.
    """

    strategy: Callable[[], Strategy] | None = None
    set_up: Callable[..., tuple[Any, Any, Any]] | None = None
    set_up_optimizer: Callable[[Any], Any] | None = None
    loader: Callable[[Any], Any] | None = None
    to_device: Callable[[Any], None] | None = None
    backward: Callable[..., None] | None = None
    step: Callable[..., Any] | None = None
    clip: Callable[[Any, Any, Any], Any] | None = None
    sync: Callable[[Any, bool], Any] | None = None
    all_reduce: Callable[[Any, Any, str], Any] | None = None
    init_module: Callable[[bool | None], Any] | None = None
    init_tensor: Callable[[], Any] | None = None
    save: Callable[[Any, Any, Any], None] | None = None
    load: Callable[[Any, Any, bool, bool | None], dict[str, Any]] | None = None
