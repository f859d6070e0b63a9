"""Methods of a strategy that only a Fabric calls; a subclass overrides them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from lightlib.fabric.gradients import Limits
from lightlib_lightning.plugins.alone import Alone
from lightlib_lightning.plugins.in_fabric import InFabric

__all__ = ["FabricMethods"]


class FabricMethods:
    """The part of Lightning's protocol for strategies of a Fabric.

    Attributes:
        in_fabric: Connects the strategy to the Fabric that it serves; None in a Trainer, or without either.
        from_scratch: Whether the user's class derives from `Strategy` or `ParallelStrategy` itself.
    """

    in_fabric: InFabric | None = None
    from_scratch: bool = False
    _backward_sync_control: Any = None

    # setting up
    def setup_module_and_optimizers(self, module: nn.Module, optimizers: list[Any], scheduler: Any = None) -> Any:
        """Set up a module with its optimizers, and return ``(module, optimizers, scheduler)``."""
        module = self.setup_module(module)
        return module, [self.setup_optimizer(optimizer) for optimizer in optimizers], scheduler

    def setup_module(self, module: nn.Module) -> Any:
        """Return the object to call for the module: here the module, which lightlib has placed."""
        if self.in_fabric is not None:
            self.in_fabric.place()
        return module

    def setup_optimizer(self, optimizer: Any) -> Any:
        """Return the optimizer to step."""
        return optimizer if self.in_fabric is None else self.in_fabric.place_optimizer(optimizer)

    def module_to_device(self, module: nn.Module) -> None:
        """Move a module to the device."""
        device: Any = getattr(self, "root_device")  # noqa: B009  the other base of this class has it
        module.to(device)

    def module_init_context(self, empty_init: bool | None = None) -> AbstractContextManager[Any]:
        """Return the context of `Fabric.init_module`.

        Args:
            empty_init: Leave the weights uninitialized.
        """
        return self._served.module_init_context(empty_init)

    # a step
    def all_reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return a tensor reduced over all processes."""
        reduce: Any = getattr(self, "reduce")  # noqa: B009  as above
        return reduce(tensor, group, reduce_op)

    def clip_gradients_norm(
        self,
        module: nn.Module,
        optimizer: Any,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Tensor | None:
        """Clip the norm of all gradients of an optimizer together, and return it."""
        limits = Limits(None, max_norm, norm_type, error_if_nonfinite)
        norm: Tensor | None = self._served.clip(module, optimizer, limits)
        return norm

    def clip_gradients_value(self, module: nn.Module, optimizer: Any, clip_val: float) -> None:
        """Clip each gradient of an optimizer."""
        self._served.clip(module, optimizer, Limits(clip_val, None, 2.0, False))

    # states
    def get_module_state_dict(self, module: nn.Module) -> dict[str, Any]:
        """Return the state of a module, by its own names."""
        return self._served.module_state(module)

    def load_module_state_dict(self, module: nn.Module, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Load the state of a module."""
        self._served.load_module_state(module, state_dict, strict)

    def get_optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Return the state of an optimizer."""
        return self._served.optimizer_state(optimizer)

    @property
    def _in_trainer(self) -> bool:
        module: Any = getattr(self, "lightning_module")  # noqa: B009  as above
        return self.in_fabric is None and module is not None

    @property
    def _served(self) -> InFabric | Alone:
        return Alone(self) if self.in_fabric is None else self.in_fabric
