"""DataParallelStrategy: one process that splits each batch over its devices (torch.nn.DataParallel)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lightlib import report
from lightlib.accelerators.accelerator import Accelerator
from lightlib.errors import MisconfigurationException
from lightlib.fabric.fabric_calls import FabricCalls
from lightlib.fabric.placement import Placement
from lightlib.launch.environment.detect import Environment
from lightlib.precision.precision import Precision
from lightlib.strategies.single import SingleDeviceStrategy


class DataParallelStrategy(SingleDeviceStrategy):
    """Replicates the module on the devices of one process, each of which gets a part of the batch.

    Only a Fabric has it. The module and its gradients are on the first device. `strategy="ddp"` is faster; on the CPU
    torch's DataParallel calls the module as it is.

    Args:
        accelerator, parallel_devices, checkpoint_io, precision: The same as Fabric's arguments.

    Raises:
        MisconfigurationException: It is an object of a subclass.

    Example:
        >>> import lightlib
        >>> fabric = lightlib.Fabric(accelerator="cpu", devices=2, strategy=DataParallelStrategy())
        >>> fabric.world_size, fabric.all_reduce(torch.tensor([1.0, 2.0]))
        (1, tensor(1.5000))
    """

    def __init__(
        self,
        accelerator: Any = None,
        parallel_devices: list[torch.device] | None = None,
        checkpoint_io: Any = None,
        precision: Any = None,
    ) -> None:
        super().__init__()
        if type(self) is not DataParallelStrategy:
            raise MisconfigurationException(
                f"{type(self).__name__} derives from DataParallelStrategy.",
                expected="DataParallelStrategy itself: its methods are not called one by one.",
                fix="derive from lightning.fabric.strategies.Strategy and return nn.DataParallel in `setup_module`.",
            )
        arguments: dict[str, Any] = {} if accelerator is None else {"accelerator": accelerator}
        if plugins := [plugin for plugin in (checkpoint_io, precision) if plugin is not None]:
            arguments["plugins"] = plugins
        if parallel_devices is not None:
            indices = [device.index for device in parallel_devices]
            arguments["devices"] = len(indices) if None in indices else indices
        self.extend(arguments=arguments, own_loop=self._calls)

    def use(
        self, accelerator: Accelerator, devices: list[torch.device], precision: Precision, environment: Environment
    ) -> None:
        super().use(accelerator, devices[:1], precision, environment)
        self.devices = devices

    def describe(self) -> str:
        return "dp"

    def _calls(self, fabric: object) -> FabricCalls:
        return FabricCalls(set_up=self._set_up, all_reduce=_mean)

    def _set_up(
        self, module: nn.Module, optimizers: list[Any], scheduler: Any, place: Callable[[], Placement]
    ) -> tuple[nn.DataParallel[nn.Module], list[Any], Any]:
        place()
        indices = None if self.root_device.type == "cpu" else [device.index for device in self.devices]
        return nn.DataParallel(module, device_ids=indices), optimizers, scheduler


def _mean(tensor: Tensor, group: Any, reduce_op: str) -> Tensor:  # noqa: ARG001  the signature of `all_reduce`
    """Return the mean of all elements, as Lightning does: outputs of the devices come as one tensor."""
    return tensor.float().mean().to(tensor.dtype)


def named(strategy: Any, accelerator: Accelerator) -> Any:
    """Return the strategy for the name ``"dp"``, on the CPU ``"ddp"``; any other one as it is."""
    if strategy != "dp" or not isinstance(strategy, str):
        return strategy
    if accelerator.name() == "cpu":
        report.warn("Fabric(strategy='dp') uses 'ddp': there is one CPU, and 'dp' splits batches over devices.")
        return "ddp"
    return DataParallelStrategy()
