"""MeshStrategy: a mesh of processes, with one axis of parallelism per dimension, around one module."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from typing import Any, Literal

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import Optimizer

from lightlib.accelerators.accelerator import Accelerator
from lightlib.errors import MisconfigurationException, check_word
from lightlib.launch.environment.detect import Environment
from lightlib.precision.precision import Precision
from lightlib.strategies import batch_norm, clip, state_by_name
from lightlib.strategies.axes.axis import Axis, AxisContext, LocalParameters, Step
from lightlib.strategies.axes.context import Context
from lightlib.strategies.axes.expert import Expert
from lightlib.strategies.axes.manual import ByHand
from lightlib.strategies.axes.optimizer_checks import refuse_on_parts
from lightlib.strategies.axes.parallel_plan import plan_of
from lightlib.strategies.axes.replicate import Replicate
from lightlib.strategies.axes.replicated import step_together, unscale
from lightlib.strategies.axes.shard import Shard
from lightlib.strategies.axes.tensor.tensor_axis import Tensor as TensorAxis
from lightlib.strategies.axes.transforms import ActivationCheckpoint, Compile, Transform
from lightlib.strategies.axis_arguments import axis_of, checked, joined, transform_of
from lightlib.strategies.combinations import check_combination, filled, in_order
from lightlib.strategies.group import consistency
from lightlib.strategies.group.collectives import ProcessGroup
from lightlib.strategies.group.process_group import join, refuse_without_collectives
from lightlib.strategies.pipeline.pipeline_axis import Pipeline
from lightlib.strategies.single import in_context
from lightlib.strategies.strategy import Backward, Strategy
from lightlib.torch_private import flattened_mesh, found_inf

_FORMATS = ("file", "directory")
_LAUNCHERS = ("subprocess", "spawn", "fork", "forkserver")


class MeshStrategy(Strategy):
    """Shards and replicates a module along several axes at once; ``"ddp"``, ``"fsdp"``, … are presets of it.

    A size is a number, or an axis with options such as ``Pipeline(2, schedule="1f1b")``; one size may be -1: as many
    as there are processes left. The default is 1. The mesh has the slowest link outermost, in the order of the
    arguments.

    Args:
        pipeline: Stages: each has some of the layers, and micro-batches flow through them.
        replicate: Replicas of the module, each of which reads its own shard of the data (DDP).
        shard: Shards of parameters, gradients and optimizer state; each process reads its own shard of the data
            (FSDP2). Together with `replicate`: HSDP.
        context: Processes that shard the sequences of one batch.
        tensor: Processes that shard the matrices of each layer, for one batch.
        expert: Processes (of the data ones) that shard the experts.
        activation_checkpointing: True, or an ActivationCheckpoint: activations are computed again in backward.
        compile: True, or a Compile: torch.compile for each block.
        extra_axes: Custom axes, also with dimensions of their own; applied before `shard` and `replicate`.
        checkpoint_format: ``"file"`` (default): checkpoints are gathered on the first process. ``"directory"``: every
            process writes its shard. Either is read by any strategy.
        timeout: How long a process waits in a collective, and how long all may stand still before the hanging rank is
            named. Default: 30 minutes.
        process_group_backend: ``"nccl"``, ``"gloo"``, …; default: what suits the device.
        launcher: ``"subprocess"`` (default), ``"spawn"``, ``"fork"`` or ``"forkserver"``: how processes are started
            on this machine, unless a launcher (torchrun, SLURM, …) has.

    Raises:
        MisconfigurationException: The sizes do not multiply to the number of processes, or do not go together.

    Example:
        >>> MeshStrategy(pipeline=2, shard=-1).sizes["shard"]
        -1
    """

    reads_parts = True
    per_machine = False  # whether `shard` is the machines and `tensor` the devices of each
    names_for_user: Mapping[str, str] = {}  # users' names of dimensions of `device_mesh`

    def __init__(
        self,
        pipeline: int | Pipeline = 1,
        replicate: int | Replicate = 1,
        shard: int | Shard = 1,
        context: int | Context = 1,
        tensor: int | TensorAxis = 1,
        *,
        expert: int | Expert = 1,
        activation_checkpointing: bool | ActivationCheckpoint = False,
        compile: bool | Compile = False,  # noqa: A002  torch's name
        extra_axes: Iterable[Axis] = (),
        checkpoint_format: Literal["file", "directory"] = "file",
        timeout: timedelta | float | None = None,
        process_group_backend: str | None = None,
        launcher: Literal["subprocess", "spawn", "fork", "forkserver"] = "subprocess",
    ) -> None:
        super().__init__()
        self._replicate: Replicate = axis_of("replicate", replicate, Replicate)
        self._shard: Shard = axis_of("shard", shard, Shard)
        # The order in which axes are applied. One of `shard` and `replicate` comes last, and averages gradients.
        self._inner: tuple[Axis, ...] = (
            axis_of("pipeline", pipeline, Pipeline),
            axis_of("tensor", tensor, TensorAxis),
            axis_of("context", context, Context),
            axis_of("expert", expert, Expert),
        )
        self._own: tuple[Transform, ...] = (
            *transform_of(activation_checkpointing, ActivationCheckpoint),
            *transform_of(compile, Compile),
        )
        self._extra = tuple(checked(axis) for axis in extra_axes)
        self.transform(())
        self._dimensions = {axis.name: axis for axis in in_order((*self._given, self._replicate, self._shard))}
        self.sizes = {name: axis.size for name, axis in self._dimensions.items()}
        self.timeout = timeout if isinstance(timeout, timedelta) or timeout is None else timedelta(seconds=timeout)
        check_word(type(self).__name__, "launcher", launcher, _LAUNCHERS, fix="leave it out: 'subprocess'.")
        check_word(type(self).__name__, "checkpoint_format", checkpoint_format, _FORMATS)
        self.checkpoint_format = checkpoint_format
        self.backend, self.launcher = process_group_backend, launcher
        self.axes: tuple[Axis, ...] = ()
        self.names: list[str] = []
        self._keys: list[str] = []
        self._optimizers: list[Optimizer] = []
        self._undo: list[Callable[[], None]] = []
        self._site: AxisContext | None = None
        self._mesh: Any = None
        self._background: Any = None

    def __getstate__(self) -> dict[str, Any]:
        if self._mesh is not None:
            raise MisconfigurationException(
                f"A Trainer with the strategy {self.describe()} cannot be copied or pickled: its processes have met.",
                expected="a Trainer that has not run, or one with one device.",
                fix="copy the module, or trainer.save_checkpoint('run.ckpt') and a new Trainer.",
            )
        return super().__getstate__()

    def transform(self, given: Sequence[Transform]) -> None:
        self.transforms = joined(self._own, given, type(self).__name__)
        self._given: tuple[Axis, ...] = (*self._inner, *self.transforms, *self._extra)
        check_combination((*self._given, self._replicate, self._shard))

    # where it runs
    @property
    def root_device(self) -> torch.device:
        return self.local_device

    @property
    def forked(self) -> str:  # type: ignore[override]  # it follows from the sizes
        if "zero" in self._replicate.options:
            return 'DDPStrategy(zero=True, start_method="fork")'
        sizes = {name: size for name, size in self.sizes.items() if size != 1}
        if sizes.keys() <= {"replicate"}:
            return '"ddp_notebook"'
        return f'MeshStrategy({", ".join(f"{name}={size}" for name, size in sizes.items())}, launcher="fork")'

    @property
    def keeps_layers(self) -> bool:  # type: ignore[override]  # it follows from the sizes
        return "zero" not in self._replicate.options and not any(
            axis.size != 1 for axis in (*self._dimensions.values(), *self._given) if axis.name != "replicate"
        )

    def use(
        self, accelerator: Accelerator, devices: list[torch.device], precision: Precision, environment: Environment
    ) -> None:
        refuse_without_collectives(type(self).__name__, accelerator)
        super().use(accelerator, devices, precision, environment)
        if self.per_machine and self._mesh is None:
            self.sizes["shard"] = environment.num_nodes
        filled(self.sizes, self.world_size)  # a wrong product is refused before any process is started

    def setup_environment(self) -> None:
        if self._mesh is not None:
            return
        self.sizes = filled(self.sizes, self.world_size)
        self.accelerator.setup_device(self.root_device)
        self.collectives = join(self.environment, self.accelerator, self.root_device, self.backend, self.timeout)
        kind, shape = self.root_device.type, tuple(self.sizes.values())
        self._mesh = self.device_mesh = init_device_mesh(kind, shape, mesh_dim_names=tuple(self.sizes))
        if self.names_for_user:
            shape = tuple(self.sizes[name] for name in self.names_for_user.values())
            self.device_mesh = init_device_mesh(kind, shape, mesh_dim_names=tuple(self.names_for_user))
        for name, axis in self._dimensions.items():
            axis.resize(self.sizes[name])
        self.axes = self._chosen()
        self.lockstep = any(axis.lockstep for axis in self.axes)
        self.in_parts |= any(axis.runs_microbatches for axis in self.axes)
        self.inference_mode = not any(axis.keeps_gathered or axis.shards_parameters for axis in self.axes)
        self._number_data()

    def _number_data(self) -> None:
        """Number this process among those that read different data, and make the group that averages over them."""
        batches = [name for name, axis in self._dimensions.items() if axis.splits_batch]
        split = [name for name, axis in self._dimensions.items() if axis.splits_batch or axis.splits_samples]
        self.data_rank, self.data_size = self._rank_along(batches)
        self.data_place, size = self._rank_along(split)
        if size == self.world_size:
            self.data = self.collectives
        elif size > 1:
            group = flattened_mesh(self._mesh, tuple(split), "data").get_group()
            self.data = ProcessGroup(self.root_device, group, self.accelerator)

    def _rank_along(self, names: Iterable[str]) -> tuple[int, int]:
        """Return the rank of this process along several dimensions together, and their size."""
        rank, size = 0, 1
        for name in names:
            rank = rank * self.sizes[name] + self._mesh[name].get_local_rank()
            size *= self.sizes[name]
        return rank, size

    def _chosen(self) -> tuple[Axis, ...]:
        """Return the axes in the order in which they are applied."""
        first = tuple(axis for axis in self._given if axis.active)
        copies = math.prod(axis.size for axis in self._dimensions.values() if axis.splits_batch or axis.splits_samples)
        # FSDP2 averages the gradients of replicas too, where parameters are DTensors or differ between processes.
        if self._shard.active or self._shard.asked:
            return (*first, self._shard)
        if copies > 1:
            apart = any(axis.shards_parameters or axis.divides_parameters for axis in first)
            return (*first, self._shard if apart else self._replicate)
        return first

    def init_context(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        contexts = [context for axis in self.axes if (context := axis.init_context()) is not None]
        for context in contexts or [self.root_device]:
            stack.enter_context(context)
        stack.enter_context(self.precision.init_context())
        return stack

    def describe(self) -> str:
        every = (*self._given, self._replicate, self._shard)
        sizes = {**self.sizes, **{axis.name: axis.size for axis in every if axis.order is None}}
        words = [f"{name} {size}" for name, size in sizes.items() if size != 1]
        words += [axis.summary for axis in every if axis.summary]
        labels = [" × ".join(words) or "one process", *(transform.label for transform in self.transforms)]  # noqa: RUF001  multiplication
        return f"{super().describe()} ({', '.join(labels)})"

    # the module
    def place(self, module: nn.Module, steps: Mapping[str, Step]) -> None:
        self.undo_transforms()
        if module is not self.module:
            self._place(module)
        assert self._site is not None
        for axis in self.axes:
            if isinstance(axis, Transform):  # again, after an earlier run
                axis.apply(module, self._site)
        for name, step in steps.items():
            entered = in_context(step, self._site.context)
            for axis in self.axes:
                entered = axis.enter(name, entered)
            setattr(self, name, entered)
        forward_backward: Step = self._forward_backward
        for axis in self.axes:
            forward_backward = axis.around(forward_backward)
        self.forward_backward = self.around_batch(forward_backward)  # type: ignore[method-assign]

    def _place(self, module: nn.Module) -> None:
        state_by_name.refuse_placed(module)
        consistency.check_equal(module, self.collectives)
        self.axes = self._chosen()
        if state_by_name.has_dtensors(module):  # made by configure_model
            kept = tuple(axis for axis in self.axes if not axis.replaced_by_hand)
            self.axes = (*kept, ByHand([axis.name for axis in kept if axis.order is not None]))
        self.names = [name for name, _ in module.named_parameters()]
        self._keys = list(module.state_dict())
        site = AxisContext(
            mesh=self._mesh,
            device=self.root_device,
            accelerator=self.accelerator,
            precision=self.precision,
            plan=plan_of(module),
            names=self.names,
            collectives=self.collectives,
            sizes=dict(self.sizes),
            splits_batch=tuple(name for name, axis in self._dimensions.items() if axis.splits_batch),
            splits_samples=tuple(name for name, axis in self._dimensions.items() if axis.splits_samples),
            automatic=bool(getattr(module, "automatic_optimization", True)) and not self.reduces_after_batch,
            casts=any(axis.casts for axis in self.axes),
            around=self.around,
            send=lambda: self.send(),  # noqa: PLW0108  the run sets it later
            receive=lambda message: self.receive(message),  # noqa: PLW0108  likewise
        )
        for axis in self.axes:
            axis.check(module, site)
        if self.sync_batchnorm:
            batch_norm.synchronize(module, self.root_device, self.data)
        if not any(parameter.is_meta for parameter in module.parameters()):
            self.precision.convert(module)
        consistency.share_values(module, self.root_device)
        for axis in self.axes:
            axis.apply(module, site)
        if not any(parameter.is_meta for parameter in module.parameters()):
            module.to(self.root_device)
        state_by_name.mark_placed(
            module, self, (lambda _: True) if self.divides_parameters else state_by_name.has_dtensors
        )
        self.module, self._site = module, site

    def optimizer(self, optimizer: Optimizer) -> Any:
        refuse_on_parts(optimizer)
        for axis in self.axes:
            optimizer = axis.optimizer(optimizer)
        self._undo.append(step_together(optimizer))
        self._optimizers.append(optimizer)
        return optimizer

    def teardown(self) -> None:
        """Release the resources of the run; processes, mesh and the placed module stay for the next one."""
        self._optimizers = []
        for undo in self._undo:
            undo()
        self._undo = []
        self.undo_transforms()
        for axis in self.axes:
            axis.teardown()

    # a batch
    def _forward_backward(self, batch: Any, batch_idx: int, backward: Backward, sync: bool) -> Any:
        output = self.training_step(batch, batch_idx)
        backward(output)
        return output

    def forward_backward(self, batch: Any, batch_idx: int, backward: Backward, sync: bool) -> Any:
        return self._forward_backward(batch, batch_idx, backward, sync)

    def clip_gradients(self, optimizer: Optimizer, value: float, algorithm: str) -> Tensor | None:
        return clip.clip(optimizer, value, algorithm, self._local)

    def norms(self, groups: Sequence[Sequence[tuple[Tensor, Tensor]]]) -> Tensor:
        return clip.norms(groups, self.root_device, self._local)

    @property
    def around(self) -> tuple[str, ...]:  # type: ignore[override]  # it follows from the axes
        return tuple(axis.name for axis in self.axes if not isinstance(axis, Transform))

    @property
    def _local(self) -> list[LocalParameters]:
        return [parameters for axis in self.axes if (parameters := axis.local_parameters()) is not None]

    def sync_gradients(self, optimizer: Optimizer) -> None:
        for axis in self.axes:
            axis.sync_gradients(optimizer)

    def share_buffers(self) -> None:
        dimensions = self._dimensions.values()
        if self.module is None or not all(axis.shares_buffers for axis in dimensions):
            return
        for axis in dimensions:
            if axis.size > 1 and (axis.splits_batch or axis.splits_samples):
                consistency.share_buffers(self.module, self._mesh[axis.name].get_group())

    def own_buffers(self) -> dict[str, Tensor]:
        sent = any(axis.sends_buffers for axis in self.axes)
        if self.module is None or self.data.size == 1 or sent:
            return {}
        return consistency.own_buffers(self.module, self.data.group)

    def load_own_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        consistency.load_own_buffers(self._placed, buffers)

    def unscale(self, scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
        unscale(scaler, optimizer, self.root_device)
        if any(not axis.equal_gradients for axis in self.axes):
            for flag in found_inf(scaler, optimizer):
                distributed.all_reduce(flag, distributed.ReduceOp.MAX)

    # state
    def module_state(self) -> dict[str, Any]:
        return state_by_name.module_state(self._placed, self.divides_parameters, self._keys)

    def load_module_state(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        state_by_name.load_module_state(self._placed, state_dict, strict, self._keys)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        return state_by_name.optimizer_state(
            optimizer, self.parameter_names(optimizer), self.divides_parameters, self.names
        )

    def load_optimizer_state(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        state_by_name.load_optimizer_state(optimizer, state_dict, self.parameter_names(optimizer), self.names)

    def state_dict(self) -> dict[str, Any]:
        return {axis.name: axis_state for axis in self.axes if (axis_state := axis.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for axis in self.axes:
            if axis.name in state_dict:
                axis.load_state_dict(state_dict[axis.name])

    def sharded_module_state(self) -> dict[str, Any]:
        return dict(self._placed.state_dict())

    def sharded_optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        return state_by_name.sharded_optimizer_state(
            optimizer, self.parameter_names(optimizer), self.divides_parameters, self.names
        )

    def parameter_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return state_by_name.gathered(tensors, self.divides_parameters, self.names)

    def sharded_parameter_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)

    def place_parameter_tensors(self, tensors: Mapping[str, Any]) -> dict[str, Tensor]:
        return state_by_name.place_parameter_tensors(self._placed, tensors, self._keys)

    def background_group(self) -> Any:
        if self._background is None and self.world_size > 1:
            self._background = distributed.new_group(backend="gloo")
        return self._background

    @property
    def divides_parameters(self) -> bool:  # type: ignore[override]  # it follows from the axes
        """Whether processes hold different parameters."""
        return any(axis.divides_parameters for axis in self.axes)

    @property
    def is_last_stage(self) -> bool:
        """Whether this process sees the loss and the outputs of the steps."""
        return all(axis.sees_loss for axis in self.axes)
