"""Alone: a strategy with Lightning's methods, called without a Fabric and without a Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lightlib import strategies as ours
from lightlib.fabric import checkpoints
from lightlib.fabric.empty import without_initialization
from lightlib.fabric.gradients import Limits

__all__ = ["Alone"]


class Alone:
    """Serves the methods of a strategy that a Fabric would call: modules and optimizers are the plain ones of torch.

    Args:
        strategy: The user's.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    def module_init_context(self, empty_init: bool | None) -> AbstractContextManager[Any]:
        """Return a context that creates tensors and modules on the device, in the dtype of the precision."""
        context: AbstractContextManager[Any] = self._strategy.by_lightlib.init_context()
        return without_initialization(context) if empty_init else context

    def backward(self, tensor: Tensor, module: Any = None, *args: Any, **kwargs: Any) -> None:
        """Differentiate a loss."""
        tensor.backward(*args, **kwargs)  # type: ignore[no-untyped-call]  # torch has no types for it

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Step an optimizer."""
        return optimizer.step(**kwargs) if closure is None else optimizer.step(closure, **kwargs)

    def module_state(self, module: nn.Module) -> dict[str, Any]:
        """Return the state of a module."""
        self._refuse_shards("get_module_state_dict")
        return module.state_dict()

    def load_module_state(self, module: nn.Module, state: Mapping[str, Any], strict: bool) -> None:
        """Load the state of a module."""
        self._refuse_shards("load_module_state_dict")
        module.load_state_dict(state, strict=strict)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the state of an optimizer."""
        self._refuse_shards("get_optimizer_state")
        return optimizer.state_dict()

    def clip(self, module: nn.Module, optimizer: Optimizer, limits: Limits) -> Tensor | None:
        """Clip the gradients of an optimizer."""
        self._refuse_shards("clip_gradients_norm")
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if limits.clip_val is not None:
            nn.utils.clip_grad_value_(parameters, limits.clip_val)
            return None
        assert limits.max_norm is not None
        return nn.utils.clip_grad_norm_(parameters, limits.max_norm, limits.norm_type, limits.error_if_nonfinite)

    def save_checkpoint(self, path: Any, state: Any, storage_options: Any = None, filter: Any = None) -> None:  # noqa: A002  Lightning's name
        """Write a checkpoint on the first process."""
        self._refuse_shards("save_checkpoint")
        checkpoints.check_state("save", state)
        checkpoints.check_filters(filter, state)
        content = {
            name: value.state_dict() if checkpoints.is_stateful(value) else value for name, value in state.items()
        }
        for name, chosen in (filter or {}).items():
            content[name] = {key: value for key, value in content[name].items() if chosen(key, value)}
        if self._strategy.is_global_zero:
            self._strategy.checkpoint_io.save_checkpoint(content, path, storage_options=storage_options)

    def load_checkpoint(
        self, path: Any, state: Any = None, strict: bool = True, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Restore the objects in `state`, and return the rest."""
        self._refuse_shards("load_checkpoint")
        content: dict[str, Any] = self._strategy.checkpoint_io.load_checkpoint(path, weights_only=weights_only)
        if isinstance(state, (nn.Module, Optimizer)):
            checkpoints.restore_object(path, content, state, strict)
            return {}
        checkpoints.unpacked(content)
        if state:
            checkpoints.check_state("load", state)
            checkpoints.restore(path, content, state, strict, self._strategy, {})
        return content

    def _refuse_shards(self, name: str) -> None:
        """Raise if the strategy would have to shard the module first."""
        strategy = self._strategy
        shards = not isinstance(strategy, (ours.SingleDeviceStrategy, ours.DDPStrategy))
        if shards:
            raise RuntimeError(
                f"{type(strategy).__name__}.{name} was called outside of a Fabric.\n"
                "  Expected: Fabric(strategy=…), which shards the module and calls it.\n"
                "  Fix: leave the call to a Fabric; a Trainer has other methods for it."
            )
