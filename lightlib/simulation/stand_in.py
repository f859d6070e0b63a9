"""StandIn: takes the place of a Trainer in a module while its steps are simulated or measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lightlib.core.optimization.wrapper import LightningOptimizer

_STEPS = 1000  # schedules are made for so many; they need no memory


class StandIn:
    """The attributes of a Trainer that steps and `configure_optimizers` read.

    Args:
        strategy: As for the Trainer.
        backward: Computes the gradients of a loss.
        step: Steps one optimizer.

    Attributes:
        optimizers: Those of the module, as the strategy steps them.
    """

    logger = callback_metrics = None
    loggers: tuple[Any, ...] = ()
    lr_scheduler_configs: tuple[Any, ...] = ()
    current_epoch = global_step = 0
    is_global_zero = training = True
    sanity_checking = validating = testing = predicting = False
    estimated_stepping_batches = max_steps = num_training_batches = _STEPS
    max_epochs = accumulate_grad_batches = 1
    datamodule = fabric = None

    def __init__(self, strategy: Any, backward: Callable[[Tensor], None], step: Callable[..., Any]) -> None:
        self.strategy, self.manual_backward, self._step = strategy, backward, step
        self.optimizers: list[Any] = []
        self.global_rank, self.local_rank = strategy.global_rank, strategy.local_rank
        self.world_size, self.node_rank = strategy.world_size, strategy.node_rank
        self.num_devices, self.num_nodes = len(strategy.devices), 1

    @property
    def run(self) -> StandIn:
        """Itself, as the run and as its `optimization`."""
        return self

    optimization = run

    def for_user(self, wrapped: bool) -> Any:
        """Return the optimizer or the list of them; see `Module.optimizers`."""
        optimizers = [
            LightningOptimizer(optimizer, self._step) if wrapped else optimizer for optimizer in self.optimizers
        ]
        return optimizers[0] if len(optimizers) == 1 else optimizers

    def clip_gradients(self, optimizer: Any, value: float | None, algorithm: str | None) -> None:
        """Clip the gradients of `optimizer`."""
        if value:
            raw = getattr(optimizer, "optimizer", optimizer)
            self.strategy.clip_gradients(raw, value, algorithm or "norm")

    def print(self, *_: Any, **__: Any) -> None:
        """Print nothing."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"self.trainer.{name} was read in a step that is simulated: there is no Trainer.\n"
            "  Expected: a step and configure_optimizers that do without.\n"
            "  Fix: pass the value to the module as an argument."
        )
