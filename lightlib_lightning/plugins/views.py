"""Properties of a strategy under Lightning's names, as views of lightlib's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lightlib import strategies as ours
from lightlib.accelerators import lookup
from lightlib.accelerators.accelerator import Accelerator
from lightlib.launch.environment.environment import Environment
from lightlib.precision import Precision
from lightlib_lightning.environments import ClusterEnvironment, environment_like
from lightlib_lightning.plugins import precision as precisions
from lightlib_lightning.plugins.overriding import check_same

if TYPE_CHECKING:
    from lightlib.strategies.extension import Extension

__all__ = ["StrategyViews"]


class StrategyViews:
    """Properties that users read of a strategy.

    Attributes:
        optimization: The calls of the fit; None outside of one.
    """

    optimization: Any = None
    _of_call: nn.Module | None = None

    if TYPE_CHECKING:
        module: nn.Module | None
        environment: Environment
        extension: Extension
        precision: Precision
        root_device: torch.device
        devices: Sequence[torch.device]
        data_size: int
        data_rank: int

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Serve the parts of a strategy that neither a Trainer nor a Fabric has connected."""
            if name not in ("accelerator", "precision", "environment"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            given = self.extension.arguments
            accelerator = given.get("accelerator")
            by_device = lookup.of(self.root_device)
            ours.Strategy.use(
                self,
                accelerator if isinstance(accelerator, Accelerator) else by_device,
                list(self.devices) or [self.root_device],
                self._plugin_of(Precision) or precisions.Precision(),
                Environment(),
            )
            return getattr(self, name)

    def _plugin_of(self, kind: type) -> Any:
        """Return the plugin of a kind in the arguments of the strategy; None without one."""
        return next((one for one in self.extension.arguments.get("plugins", ()) if isinstance(one, kind)), None)

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers of the fit."""
        return [] if self.optimization is None else list(self.optimization.optimizers)

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """The schedules of the fit."""
        return [] if self.optimization is None else list(self.optimization.schedules.configs)

    @property
    def lightning_module(self) -> Any:
        """The user's module."""
        return self.module if self._of_call is None else self._of_call

    @property
    def model(self) -> Any:
        """The user's module: lightlib puts it into no wrapper."""
        return self.lightning_module

    @model.setter
    def model(self, model: Any) -> None:
        check_same(model, self.lightning_module, "model", self)

    @property
    def precision_plugin(self) -> Any:
        """The precision."""
        return self.precision

    @property
    def cluster_environment(self) -> Any:
        """The user's environment, or one that stands for the one lightlib has detected."""
        given = self.extension.environment or self._plugin_of(ClusterEnvironment)
        return given or environment_like(self.environment)

    @property
    def parallel_devices(self) -> list[torch.device]:
        """The devices of this machine."""
        return list(self.devices)

    @property
    def num_processes(self) -> int:
        """The number of processes of this machine."""
        return len(self.devices)

    @property
    def process_group_backend(self) -> str | None:
        """The backend of the process group; None chooses one by the device."""
        return getattr(self, "backend", None)

    @property
    def num_nodes(self) -> int:
        """The number of machines."""
        return self.environment.num_nodes

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Which shard of the data this process reads; an override decides it."""
        return {"num_replicas": self.data_size, "rank": self.data_rank}

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """Whether weights are loaded when the module is placed, which lightlib always does."""
        return True

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Whether the Trainer restores the optimizers."""
        return True

    @property
    def handles_gradient_accumulation(self) -> bool:
        """Whether the strategy accumulates gradients itself."""
        return False

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Register the names of this class; none by default."""
