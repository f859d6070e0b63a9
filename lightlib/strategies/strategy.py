"""Strategy: the interface that places parameters, runs batches, and reduces gradients and values."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from lightlib.accelerators.accelerator import Accelerator
from lightlib.errors import MisconfigurationException, owner
from lightlib.launch.environment.detect import Environment
from lightlib.precision.precision import Precision
from lightlib.strategies.axes.transforms import Compile, Transform
from lightlib.strategies.extension import Extension
from lightlib.strategies.group.collectives import Collectives, SingleProcess
from lightlib.tree import to_device

_OF_A_RUN = (
    "module",
    "training_step",
    "training_forward",
    "validation_step",
    "test_step",
    "predict_step",
    "forward_backward",
    "around_batch",
    "in_parts",
    "reduces_after_batch",
    "send",
    "receive",
)
T = TypeVar("T")
Backward = Callable[..., None]
Step = Callable[..., Any]


class Strategy(ABC):
    """Places one module on devices and runs its batches. It knows modules and batches, not the run.

    A concrete strategy is final: it implements every method itself and is not subclassed.

    Attributes:
        accelerator, devices, precision, environment: Set by `use`.
        collectives: The collectives over all processes.
        training_step, validation_step, test_step, predict_step: The module's steps, bound in `place`.
        training_forward: The training step without a backward, run as evaluation steps are; likewise.
        data_rank, data_size: The shard of the data that this process reads.
        data: The collectives of the processes that hold the same parameters and read different data: over them
            gradients, logged values and torchmetrics are reduced.
        data_place: This process's index among those.
        launcher: How to start the processes of this machine without a launcher: ``"subprocess"`` (the program is run
            again), ``"spawn"``, ``"fork"`` or ``"forkserver"``; None for a strategy of one process.
        sync_batchnorm: The Trainer's argument; set before `place`.
        timeout: How long a process waits for other ranks; None is the default.
        lockstep: Whether every process must run as many evaluation steps as every other, because parameters are
            gathered in `forward`.
        inference_mode: Whether evaluation may run in `torch.inference_mode`; otherwise it runs in `torch.no_grad`.
        in_parts: Whether `training_step` is called once for each micro-batch of a batch.
        divides_parameters: Whether processes hold different parameters, so that an optimizer may have none on some.
        forked: How to write this strategy with forked processes, as a notebook needs it; empty: not possible.
        steps_parameters: Whether the optimizers step the module's own parameters, and no copies of them.
        keeps_layers: Whether each process keeps the module's layers with all of their parameters.
        checkpoint_format: The format that `save_checkpoint` writes by default: ``"file"`` or ``"directory"``.
        reads_parts: Whether `load_module_state`, `load_optimizer_state` and `place_parameter_tensors` take tensors that
            are still in a checkpoint directory (:class:`lightlib.checkpoint.directory.tensors.LazyTensor`), and read
            only their local shards.
        transforms: Those of its arguments and of the Trainer, in the order in which they are applied.
        around: The axes that are used, without transforms.
        extension: Changes of a run by a strategy or a plugin of another framework; set by `extend`.
        reduces_after_batch: Whether the run calls `sync_gradients` after each batch, in place of DDP's reduction.
        around_batch: Wraps `forward_backward`; set by `train_in_parts`.
        send, receive: Return the message for ranks that did not see the loss of a batch; process it there. Set by
            the run, used by strategies with a loss on some processes only (a pipeline).
    """

    accelerator: Accelerator
    devices: Sequence[torch.device] = ()
    precision: Precision
    environment: Environment
    collectives: Collectives
    module: nn.Module | None = None
    training_step: Callable[..., Any]
    training_forward: Callable[..., Any]
    validation_step: Callable[..., Any]
    test_step: Callable[..., Any]
    predict_step: Callable[..., Any]
    global_rank: int = 0
    local_rank: int = 0
    node_rank: int = 0
    world_size: int = 1
    data_rank: int = 0
    data_size: int = 1
    data: Collectives
    data_place: int = 0
    sync_batchnorm: bool = False
    timeout: Any = None
    launcher: str | None = None
    forked: str = ""
    lockstep: bool = False
    inference_mode: bool = True
    device_mesh: Any = None
    in_parts: bool = False
    reduces_after_batch: bool = False
    divides_parameters: bool = False
    steps_parameters: bool = True
    keeps_layers: bool = True
    checkpoint_format: str = "file"
    reads_parts: bool = False
    transforms: tuple[Transform, ...] = ()
    around: tuple[str, ...] = ()
    extension: Extension = Extension()
    around_batch: Callable[[Step], Step] = staticmethod(lambda forward_backward: forward_backward)
    send: Callable[[], Any] = staticmethod(lambda: None)
    receive: Callable[[Any], None] = staticmethod(lambda message: None)

    def __getstate__(self) -> dict[str, Any]:  # a copy has the settings, but no module
        return {name: value for name, value in self.__dict__.items() if name not in _OF_A_RUN}

    @property
    @abstractmethod
    def root_device(self) -> torch.device:
        """The device of this process."""

    def use(
        self, accelerator: Accelerator, devices: list[torch.device], precision: Precision, environment: Environment
    ) -> None:
        """Use the devices and the environment that the Trainer chose. Nothing is started and no device is touched yet.

        Args:
            accelerator: The kind of device.
            devices: Those of this machine that the Trainer chose.
            precision: Which dtype is used where.
            environment: This process's place among all.
        """
        self.accelerator, self.devices, self.precision, self.environment = accelerator, devices, precision, environment
        self.global_rank, self.world_size = environment.rank, environment.world_size
        self.local_rank, self.node_rank = environment.local_rank, environment.node_rank
        self.data = SingleProcess()
        for name in ("in_parts", "reduces_after_batch", "around_batch"):  # of an earlier Trainer
            vars(self).pop(name, None)
        precision.check_strategy(self)

    def extend(self, **changes: Any) -> None:
        """Change some attributes of `extension`."""
        self.extension = replace(self.extension, **changes)

    def transform(self, given: Sequence[Transform]) -> None:
        """Take the transforms of the Trainer's arguments, in place of those it took before.

        Raises:
            MisconfigurationException: The strategy does not apply them, which is the default, or has them already.
        """
        if given:
            raise MisconfigurationException(
                f"{owner()}({given[0].argument}=…) with {type(self).__name__}: this strategy runs the layers itself.",
                expected="one device, or a strategy of lightlib's meshes, such as 'ddp' or 'fsdp'.",
                fix=f"leave out {given[0].argument}, or strategy='fsdp'.",
            )

    def undo_transforms(self) -> None:
        """Give all layers their own forwards back, which a transform may have changed after another one."""
        for transform in reversed(self.transforms):
            transform.teardown()

    @property
    def compiler(self) -> Callable[..., Any] | None:
        """The function that compiles the steps of the module; None if they are not compiled."""
        chosen = (
            transform
            for transform in self.transforms
            if isinstance(transform, Compile) and transform.takes_steps(self.around)
        )
        return next((transform.compiled for transform in chosen), None)

    def synchronize_batchnorm(self) -> None:
        """Use the mean and variance over all processes, as with the Trainer's argument; before `place`."""
        self.sync_batchnorm = True

    def train_in_parts(self, around: Callable[[Step], Step]) -> None:
        """Let `around` wrap `forward_backward`, to call it for micro-batches; before `place`."""
        self.in_parts = self.reduces_after_batch = True
        self.around_batch = around

    def exchange_by(self, send: Callable[[], Any], receive: Callable[[Any], None]) -> None:
        """Set the functions `send` and `receive`."""
        self.send, self.receive = send, receive

    @abstractmethod
    def setup_environment(self) -> None:
        """Set up the device and, with several processes, the process group. Called once per process."""

    @abstractmethod
    def init_context(self) -> AbstractContextManager[Any]:
        """Return the context in which `configure_model` builds: device and dtype."""

    @abstractmethod
    def place(self, module: nn.Module, steps: Mapping[str, Callable[..., Any]]) -> None:
        """Place `module`, in place and before any optimizer exists, and bind `steps` as attributes of this strategy."""

    @abstractmethod
    def optimizer(self, optimizer: Optimizer) -> Any:
        """Return the object on which the loop calls `step` and `zero_grad`.

        It has `scale_gradients(factor)` when the gradients are not in the parameters' `grad`.
        """

    @abstractmethod
    def forward_backward(self, batch: Any, batch_idx: int, backward: Backward, sync: bool) -> Any:
        """Run one batch forward and backward and return the step's output.

        Args:
            batch: On the device already.
            batch_idx: Its number in the epoch.
            backward: Called with the step's output for each backward pass.
            sync: Whether gradients are reduced over processes now: the last batch of an accumulation window.
        """

    def batch_to_device(self, batch: Any) -> Any:
        """Return `batch` on this process's device."""
        return to_device(batch, self.root_device, self.accelerator.has_streams)

    @abstractmethod
    def clip_gradients(self, optimizer: Optimizer, value: float, algorithm: str) -> Tensor | None:
        """Clip in place and return the norm before clipping, when the algorithm is ``"norm"``."""

    def norms(self, groups: Sequence[Sequence[tuple[Tensor, Tensor]]]) -> Tensor:
        """Return the 2-norm of each group of tensors over all processes, which all call this.

        Args:
            groups: Pairs of a parameter and a tensor that is placed as it is, such as its gradient. By default this
                process has all of them in full.
        """
        group_norms = [get_total_norm([tensor for _, tensor in group]) for group in groups]
        return torch.stack([norm.to(self.root_device) for norm in group_norms])

    @abstractmethod
    def module_state(self) -> dict[str, Any]:
        """Return the module's state by fully qualified name."""

    @abstractmethod
    def load_module_state(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Load the result of `module_state`, of this or any other strategy."""

    @abstractmethod
    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the state of one optimizer."""

    @abstractmethod
    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load the result of `optimizer_state`."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, apart from module and optimizers. Nothing by default."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load rank 0's result of `state_dict`, on every process and before the first batch."""

    def sharded_module_state(self) -> dict[str, Any]:
        """Return the local shard of the module's state by fully qualified name; all processes call it.

        By default it is the full state on rank 0.
        """
        return self.module_state()

    def sharded_optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the local shard of the state of one optimizer, numbered as the full state; all processes call it.

        By default it is the full state on rank 0.
        """
        return self.optimizer_state(optimizer)

    def parameter_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors by parameter name in full, on rank 0; all processes call it.

        Args:
            tensors: Some of this process's parameters, by fully qualified name, each with a tensor that has the shape
                and the placement of the parameter.

        Raises:
            MisconfigurationException: The strategy cannot gather them. This is the default.
        """
        raise self._without_parameter_tensors()

    def sharded_parameter_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the local shards of tensors by parameter name; all processes call it.

        By default it is the full tensors on rank 0.
        """
        return self.parameter_tensors(tensors)

    def place_parameter_tensors(self, tensors: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return copies of the tensors of this process's parameters, placed as the parameters are.

        Args:
            tensors: The full result of `parameter_tensors`, of this or any other strategy, the same on every process.

        Raises:
            ValueError: A name is no parameter's on any process, or a shape differs from the parameter's.
            MisconfigurationException: The strategy cannot place them. This is the default.
        """
        raise self._without_parameter_tensors()

    def _without_parameter_tensors(self) -> MisconfigurationException:
        name = type(self).__name__
        return MisconfigurationException(
            f"A callback has `sharded_state`, and {name} can neither gather nor place tensors by parameter.",
            expected="one device, DDP, FSDP, tensor parallelism, a pipeline, or a strategy that defines "
            "`parameter_tensors` and `place_parameter_tensors`.",
            fix="leave the callback out, or use strategy='fsdp'; to resume without the callback's tensors, "
            'fit(…, resume={"callbacks": False}).',
        )

    def background_group(self) -> Any:
        """Return a group for a background thread, next to the run's collectives; None with one process.

        The first call makes it, on the main thread of every process.
        """
        return None

    def describe(self) -> str:
        """Return a few words for the line with which a run begins: by default the name of the class."""
        name = type(self).__name__.removesuffix("Strategy")
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()

    def sync_gradients(self, optimizer: Optimizer) -> None:
        """Reduce the gradients of `optimizer` over processes, in manual optimization. Nothing by default."""

    def share_buffers(self) -> None:
        """Give all replicas of the module the buffers of a checkpoint, before a validation. Nothing by default.

        So its metrics are those of what is saved, and a run that is resumed there finds the same.
        """

    def own_buffers(self) -> dict[str, Tensor]:
        """Return the local buffers that differ from those in a checkpoint; all processes call it. None by default."""
        return {}

    def load_own_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Load the result of `own_buffers` on this process."""

    def unscale(self, scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
        """Divide the gradients of `optimizer` by the scale; all processes then know of an overflow on one of them."""
        scaler.unscale_(optimizer)

    def parameter_names(self, optimizer: Optimizer) -> list[list[str]]:
        """Return the fully qualified names of the parameters of each group, in the order of `optimizer_state`."""
        named = () if self.module is None else self.module.named_parameters()
        names = {id(parameter): name for name, parameter in named}
        return [[names.get(id(p), "") for p in group["params"]] for group in optimizer.param_groups]

    def teardown(self) -> None:
        """Give the devices back. Nothing by default."""

    @property
    def local_device(self) -> torch.device:
        """The device of the local rank; before `use` the CPU."""
        devices = self.devices or [torch.device("cpu")]
        return devices[min(self.local_rank, len(devices) - 1)]

    @property
    def _placed(self) -> nn.Module:
        assert self.module is not None, "place() comes first"
        return self.module

    @property
    def is_global_zero(self) -> bool:
        """Whether this process writes files and prints."""
        return self.global_rank == 0

    @property
    def runs_alone(self) -> bool:
        """Whether one process can call the module's forward alone."""
        return self.world_size == 1 or (self.data_size == self.world_size and not self.lockstep)

    def barrier(self, name: str | None = None) -> None:
        """Return when every process has called this."""
        self.collectives.barrier(name)

    def broadcast(self, obj: T, src: int = 0) -> T:
        """Return the object of process `src`, on every process."""
        return self.collectives.broadcast(obj, src)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: str = "mean") -> Any:
        """Return the mean, sum, min or max of `tensor` over all processes."""
        return self.collectives.reduce(tensor, group, reduce_op)

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """Return the tensors of all processes, stacked along a new first dimension; as it is with one process."""
        return self.collectives.all_gather(tensor, group, sync_grads)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002  (Lightning's name)
        """Return whether all (or any) of the processes decided so."""
        return self.collectives.reduce_boolean_decision(decision, all)
