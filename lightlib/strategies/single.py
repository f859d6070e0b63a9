"""SingleDeviceStrategy: one process, one device; the plain answer to each question."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer

from lightlib.accelerators.accelerator import Accelerator
from lightlib.errors import MisconfigurationException, owner
from lightlib.launch.environment.detect import Environment
from lightlib.precision.precision import Precision
from lightlib.strategies.axes.parallel_plan import plan_of
from lightlib.strategies.axes.transforms import ActivationCheckpoint, Transform
from lightlib.strategies.axis_arguments import joined, transform_of
from lightlib.strategies.by_parameter import with_parameters
from lightlib.strategies.group.collectives import Collectives, SingleProcess
from lightlib.strategies.strategy import Backward, Strategy
from lightlib.tree import to_device


class SingleDeviceStrategy(Strategy):
    """Trains on one device.

    Args:
        device: The device; default: the one that the Trainer's `accelerator` and `devices` choose.
        activation_checkpointing: True, or an ActivationCheckpoint: activations are computed again in backward. After a
            run the module is as before.

    Raises:
        ArgumentTypeError: `activation_checkpointing` is something else.
        MisconfigurationException: The Trainer asks for several devices; when the module is placed, it has no blocks to
            compute again.

    Example:
        >>> SingleDeviceStrategy(activation_checkpointing=True).describe()
        'single_device (activation checkpointing)'
    """

    def __init__(
        self,
        device: torch.device | str | None = None,
        *,
        activation_checkpointing: bool | ActivationCheckpoint = False,
    ) -> None:
        super().__init__()
        self.transforms = self._own = transform_of(activation_checkpointing, ActivationCheckpoint)
        self._device = torch.device(device) if device is not None else None
        self.collectives: Collectives = SingleProcess()
        self._optimizers: list[Optimizer] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_optimizers": []}

    @property
    def root_device(self) -> torch.device:
        return self._device or torch.device("cpu")

    def use(
        self, accelerator: Accelerator, devices: list[torch.device], precision: Precision, environment: Environment
    ) -> None:
        if len(devices) > 1:
            raise MisconfigurationException(
                f"The strategy single_device got {len(devices)} devices.",
                expected="one device.",
                fix=f"{owner()}(devices=1), or another strategy.",
            )
        super().use(accelerator, devices, precision, environment)
        self.world_size = 1  # there may be other processes, which this strategy ignores
        self._device = self._device or devices[0]

    def transform(self, given: Sequence[Transform]) -> None:
        self.transforms = joined(self._own, given, type(self).__name__)

    def setup_environment(self) -> None:
        self.accelerator.setup_device(self.root_device)

    def init_context(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(self.root_device)
        stack.enter_context(self.precision.init_context())
        return stack

    def place(self, module: nn.Module, steps: Mapping[str, Callable[..., Any]]) -> None:
        self.undo_transforms()
        self.module = self.precision.convert(module).to(self.root_device)
        for transform in self.transforms:
            transform.select(module, plan_of(module))
        for transform in self.transforms:
            transform.change(module)
        context = self.precision.step_context(self.root_device.type)
        for name, step in steps.items():
            entered = in_context(step, context)
            for transform in self.transforms:
                entered = transform.enter(name, entered)
            setattr(self, name, entered)
        self.forward_backward = self.around_batch(partial(type(self).forward_backward, self))  # type: ignore[method-assign]

    def optimizer(self, optimizer: Optimizer) -> Optimizer:
        self._optimizers.append(optimizer)
        return optimizer

    def teardown(self) -> None:
        """Move the module and the optimizers' states to the CPU, as Lightning's users expect after a run."""
        self.undo_transforms()
        optimizers, self._optimizers = self._optimizers, []
        if self.root_device.type == "cpu":
            return
        if self.module is not None:
            self.module.cpu()
        for optimizer in optimizers:
            for parameter, state in optimizer.state.items():
                optimizer.state[parameter] = to_device(state, torch.device("cpu"))
        self.accelerator.teardown()

    def describe(self) -> str:
        labels = ", ".join(transform.label for transform in self.transforms)
        return super().describe() + (f" ({labels})" if labels else "")

    def forward_backward(self, batch: Any, batch_idx: int, backward: Backward, sync: bool) -> Any:
        output = self.training_step(batch, batch_idx)
        backward(output)
        return output

    def clip_gradients(self, optimizer: Optimizer, value: float, algorithm: str) -> Tensor | None:
        parameters: list[Tensor] = []
        for group in optimizer.param_groups:
            parameters += group["params"]
        if algorithm == "value":
            clip_grad_value_(parameters, value)
            return None
        return clip_grad_norm_(parameters, value)

    def module_state(self) -> dict[str, Any]:
        return self._placed.state_dict()

    def load_module_state(self, state: Mapping[str, Any], strict: bool = True) -> None:
        self._placed.load_state_dict(state, strict=strict)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        return optimizer.state_dict()

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        optimizer.load_state_dict(state)

    def parameter_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)

    def place_parameter_tensors(self, tensors: Mapping[str, Any]) -> dict[str, Tensor]:
        return {name: value.to(like.device, copy=True) for name, value, like in with_parameters(self._placed, tensors)}


def in_context(
    step: Callable[..., Any], context: Callable[[], AbstractContextManager[Any]] | None
) -> Callable[..., Any]:
    """Return `step`, run inside of `context()` when there is one."""
    if context is None:
        return step

    def step_in_context(*args: Any) -> Any:
        with context():
            return step(*args)

    return step_in_context
