"""Axis and AxisContext: the interface of a mesh dimension or module transform, and the parts it gets."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from lightlib.accelerators.accelerator import Accelerator
from lightlib.precision.precision import Precision
from lightlib.strategies.axes.parallel_plan import ParallelPlan
from lightlib.strategies.group.collectives import Collectives
from lightlib.torch_private import flattened_mesh

Step = Callable[..., Any]


class LocalParameters(NamedTuple):
    """Parameters that only this process holds, of those along one dimension.

    Attributes:
        group: The processes along the dimension.
        ids: The `id` of each of these parameters; None for all parameters.
    """

    group: Any
    ids: Container[int] | None = None

    def __contains__(self, parameter: object) -> bool:
        return self.ids is None or id(parameter) in self.ids


@dataclass
class AxisContext:
    """The surroundings of an axis while it works on a module.

    Attributes:
        mesh: The full mesh with all dimensions, also those of size 1.
        device: The local device.
        accelerator: The kind of that device.
        precision: The dtypes to compute, reduce and store in.
        plan: The module's `parallel_plan`.
        names: The names of all parameters in the module's order, before any axis changed it.
        collectives: Collectives over all processes.
        sizes: The size of each dimension by name.
        splits_batch: The dimensions whose processes read different batches, outermost first.
        splits_samples: The dimensions whose processes share the samples of one batch, outermost first.
        automatic: Whether the run uses automatic optimization (no `manual_backward`).
        casts: Whether an axis casts parameters, and the inputs of layers, by the precision.
        around: The axes that are used, without transforms.
        pipelined: The child module that the pipeline cuts, which other axes treat as one unit.
        sharded_separately: Modules to shard over other dimensions than the rest, each list with its mesh.
        send, receive: See :class:`Strategy`; looked up when called, as the run sets them after `apply`.
    """

    mesh: DeviceMesh
    device: torch.device
    accelerator: Accelerator
    precision: Precision
    plan: ParallelPlan
    names: list[str]
    collectives: Collectives
    sizes: dict[str, int]
    splits_batch: tuple[str, ...]
    splits_samples: tuple[str, ...]
    automatic: bool = True
    casts: bool = False
    around: tuple[str, ...] = ()
    pipelined: nn.Module | None = None
    sharded_separately: list[tuple[list[nn.Module], DeviceMesh]] = field(default_factory=list)
    send: Callable[[], Any] = field(default=lambda: None)
    receive: Callable[[Any], None] = field(default=lambda message: None)

    @property
    def context(self) -> Callable[[], AbstractContextManager[Any]] | None:
        """Factory of the context of a forward pass (autocast or a default dtype); None when none is needed."""
        return self.precision.step_context(self.device.type)

    def coordinate(self, name: str) -> int:
        """Return the local coordinate along one dimension."""
        return self.mesh[name].get_local_rank()

    def along(self, *names: str) -> DeviceMesh:
        """Return the processes along several dimensions, given outermost first, as a mesh of one dimension."""
        wide = [name for name in names if self.sizes[name] > 1] or list(names[:1])
        return self.mesh[wide[0]] if len(wide) == 1 else flattened_mesh(self.mesh, tuple(wide), "_".join(wide))

    def cut_at(self, part: nn.Module) -> None:
        """Record the child module that the pipeline cuts."""
        self.pipelined = part


class Axis:
    """A dimension of the mesh of processes, or a transform of the module. The defaults change nothing.

    Every attribute may be a class attribute, an attribute or a property.

    Attributes:
        name: The name of the dimension, also in messages and checkpoints. A transform may leave it empty.
        order: The position of the dimension in the mesh: a larger one is further inside, where ranks are neighbours
            and links are fast. The built-in ones: pipeline 10, replicate 20, shard 30, context 40, tensor 50. None: no
            dimension.
        size: The number of processes along the dimension; -1: all that are left.
        splits_batch: Whether processes along it read different batches. The data ranks, and the groups over which
            gradients and metrics are averaged, follow from it.
        splits_samples: Whether processes along it read the same batch but compute different shards of each sample:
            gradients and metrics are averaged over them.
        shards_parameters: Whether parameters become DTensors. FSDP2 then averages gradients, which
            DistributedDataParallel could not, and evaluation runs in `torch.no_grad`, not in inference mode.
        divides_parameters: Whether processes hold parameters of different names, which checkpoints must merge.
        casts: Whether it casts parameters, and the inputs of layers, by the precision.
        lockstep: Whether evaluation needs every process in each forward.
        keeps_gathered: Whether it keeps tensors from one step to the next, so that evaluation must run in
            `torch.no_grad` and not in `torch.inference_mode`.
        equal_gradients: Whether all processes end up with the same gradients, so that each sees an overflow.
        runs_microbatches: Whether `training_step` is called for each micro-batch of a batch.
        sees_loss: Whether this process sees the loss and the outputs of the steps.
        shares_buffers: Whether processes may get equal buffers before a validation; one False turns it off.
        sends_buffers: Whether each step begins with the buffers of rank 0.
        replaced_by_hand: Whether it is left out when `configure_model` has sharded the parameters itself.
        options: Names of options that other axes may refuse, such as ``"zero"``.
        refused: Axes and options that it does not work with: ``(name, reason, fix)`` each.
        summary: A few words on its options for the line with which a run begins.
    """

    name: str = ""
    order: float | None = None
    size: int = 1
    splits_batch: bool = False
    splits_samples: bool = False
    shards_parameters: bool = False
    divides_parameters: bool = False
    casts: bool = False
    lockstep: bool = False
    keeps_gathered: bool = False
    equal_gradients: bool = False
    runs_microbatches: bool = False
    sees_loss: bool = True
    shares_buffers: bool = True
    sends_buffers: bool = False
    replaced_by_hand: bool = False
    options: frozenset[str] = frozenset()
    refused: Sequence[tuple[str, str, str]] = ()
    summary: str = ""

    @property
    def active(self) -> bool:
        """Whether it is used: always for a transform, and for a dimension of more than one process."""
        return self.order is None or self.size != 1

    def resize(self, size: int) -> None:
        """Set the number of processes, once the value of -1 is known."""
        self.size = size

    # once per module
    def init_context(self) -> AbstractContextManager[Any] | None:
        """Return the context in which `configure_model` builds the module; None: with the device as default."""
        return None

    def check(self, module: nn.Module, site: AxisContext) -> None:
        """Refuse a module that this axis cannot handle. Nothing has been changed yet."""

    def apply(self, module: nn.Module, site: AxisContext) -> None:
        """Change the module in place. Names of parameters must stay."""

    def local_parameters(self) -> LocalParameters | None:
        """Return the parameters that only this process of the dimension holds; norms are summed over all."""
        return None

    # once per run
    def optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Return the optimizer to step, or refuse it."""
        return optimizer

    def enter(self, name: str, method: Step) -> Step:
        """Return how to call the step `name` of the module, given how it is called so far."""
        return method

    def around(self, step: Step) -> Step:
        """Return a function that runs a batch, ``step(batch, batch_idx, backward, sync)``, given the one so far."""
        return step

    def teardown(self) -> None:
        """Release the resources of one run."""

    # within a run
    def sync_gradients(self, optimizer: Optimizer) -> None:
        """Average the gradients of `optimizer`, in manual optimization before each of its steps."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, apart from that of module and optimizers."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`, on every process and before the first batch."""
