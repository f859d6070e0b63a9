"""Two steps of a fit on one process, simulated or measured: memory, messages and operations."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from lightlib.accelerators.cpu import CPUAccelerator
from lightlib.core.module.module import Module
from lightlib.core.optimization.configure import configure
from lightlib.core.progress.plan import Plan
from lightlib.errors import LightlibError
from lightlib.launch.environment.environment import Environment
from lightlib.precision.precision import Precision
from lightlib.simulation.fake import batch_without_values, module_without_values
from lightlib.simulation.mailbox import Mailbox
from lightlib.simulation.memory import MemoryCounter
from lightlib.simulation.place import Place
from lightlib.simulation.replicas import SimulatedReplicas
from lightlib.simulation.stand_in import StandIn
from lightlib.simulation.work import Work
from lightlib.simulation.world import joined, line_of, without_values
from lightlib.strategies.axes.replicate import Replicate
from lightlib.strategies.strategy import Strategy
from lightlib.torch_private import fake_errors, held_by_fsdp, shapes_of_dtensors_unseen
from lightlib.tree import tensors_in

_STEPS = 3  # in the first one optimizers make their state; the third is needed if only that has a larger peak


class SimulationError(LightlibError):
    """A step cannot be simulated: it needs values, or shapes that follow from values."""


@dataclass(frozen=True)
class Amounts:
    """The bytes of one process at a moment, by purpose.

    Attributes:
        parameters, gradients, optimizer_state: The shards that this process holds.
        gathered: Parameters that are gathered for a layer.
        buffers: Buffers of the module.
        activations: Everything else: what backward needs, the batch, and intermediate results.
    """

    parameters: int = 0
    gradients: int = 0
    optimizer_state: int = 0
    gathered: int = 0
    buffers: int = 0
    activations: int = 0


@dataclass(frozen=True)
class Counted:
    """The needs of one process of a fit.

    Attributes:
        peak: The largest number of bytes of all tensors at once.
        where: The phase and the layer of that moment.
        amounts: The bytes of that moment, by purpose.
        after: The bytes after the last step.
        sent: The bytes that the process sends in a step, by the kind of message.
        between: Those of them in groups with processes of several machines.
        flops: Floating-point operations of a step.
    """

    peak: int
    where: str
    amounts: Amounts
    after: int
    sent: Mapping[str, int] = field(default_factory=dict)
    between: int = 0
    flops: int = 0


def simulate(
    module: nn.Module,
    batch: Any,
    strategy: Strategy,
    devices: int = 1,
    nodes: int = 1,
    precision: Precision | None = None,
    *,
    rank: int = 0,
    samples: int | None = None,
    foreach: bool = False,
    mailbox: Mailbox | None = None,
) -> Counted:
    """Return the needs of the process `rank` of a fit, without its devices, processes and memory.

    Args:
        module: Stays as it is; it may be on the meta device.
        batch: Of one process; only shapes and dtypes matter.
        strategy: Unused so far.
        devices, nodes: Processes of each machine, and machines.
        precision: Default: ``"32-true"``.
        rank: The process.
        samples: Its number of samples. Default: that of `batch`.
        foreach: Whether optimizers that choose by the device work on lists of tensors, as on CUDA.
        mailbox: Shared by the processes of a pipeline, which are simulated one after the other.

    Raises:
        SimulationError: The step reads values of tensors.
        MisconfigurationException: The strategy refuses the module, the batch or the number of processes.

    Example:
        >>> from lightlib.strategies import SingleDeviceStrategy
        >>> from lightlib.testing import BoringModule
        >>> module = BoringModule()
        >>> batch = next(iter(module.train_dataloader()))
        >>> found = simulate(module, batch, SingleDeviceStrategy())
        >>> found.amounts.parameters, found.where
        (23940, 'backward of model.3.down')
    """
    size = devices * nodes
    place = Environment("simulated", rank, size, rank % devices, devices, rank // devices, nodes, launched=True)
    with ExitStack() as stack:
        stack.enter_context(_without_collections())
        if size > 1:
            stack.enter_context(joined(rank, size))
        strategy.use(CPUAccelerator(), [torch.device("cpu")], precision or Precision.named(32), place)
        strategy.setup_environment()
        stack.enter_context(without_values(mailbox or Mailbox()))
        try:
            copied = module_without_values(module)
            fake_batch = batch_without_values(batch, samples)
            return _Fit(copied, fake_batch, strategy, devices, foreach, simulated=True).run()
        except fake_errors() as error:
            raise _unknown(error) from error


def measure(module: nn.Module, batch: Any, strategy: Strategy) -> Counted:
    """Run the steps with values instead, on the CPU and on each process of a strategy that is set up.

    The module is trained, so pass a copy.
    """
    return _Fit(module.train(), batch, strategy, strategy.environment.local_size, False, simulated=False).run()


@contextmanager
def _without_collections() -> Iterator[None]:
    """Leave garbage alone: counts do not depend on when it is collected, and old objects are not looked at."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Fit:
    """The steps on one process."""

    def __init__(
        self, module: Any, batch: Any, strategy: Strategy, per_machine: int, foreach: bool, simulated: bool
    ) -> None:
        self.module, self.strategy, self.foreach, self.simulated = module, strategy, foreach, simulated
        self.batch = strategy.precision.convert_input(batch)
        self.counter, self.work, self.place = MemoryCounter(), Work(per_machine), Place()
        self.replicas: list[SimulatedReplicas] = []
        self.stand_in = StandIn(strategy, self._backward, self._step)
        self.at_peak = Amounts(), ""

    def run(self) -> Counted:
        """Return the counts of all steps, and the work of the last one."""
        self._build()
        # What was replaced is held by cycles, and is freed at any moment otherwise; in a simulation all of it is young.
        gc.collect(0 if self.simulated else 2)
        with shapes_of_dtensors_unseen(), self.work, self.counter, self.place.following(self.module):
            self.counter.add([*self.module.parameters(), *self.module.buffers(), *tensors_in([self.batch])])
            self.counter.add([bucket for replicas in self.replicas for bucket in replicas.buckets])
            self._configure()
            self.counter.restart(0, self._note, slack=1.01)  # the first step is another one: there is no state yet
            self._train(0)
            first, self.at_peak = self.at_peak, (Amounts(), "")
            for index in range(1, _STEPS):
                self.work.begin()
                self.counter.restart(self.counter.highest - 1, self._note)
                self._train(index)
                if self.at_peak[1]:
                    break
        amounts, where = first if self.counter.peak > self.counter.highest else self.at_peak
        state_bytes = sum(vars(amounts).values()) - amounts.activations
        amounts = replace(amounts, activations=self.counter.peak - state_bytes)
        return Counted(
            self.counter.peak, where, amounts, self.counter.current,
            dict(self.work.sent), self.work.between, self.work.flops,
        )  # fmt: skip

    def _build(self) -> None:
        module, strategy = self.module, self.strategy
        if isinstance(module, Module):
            module._attach(self.stand_in, None)  # noqa: SLF001  lightlib's own
        if hasattr(module, "configure_model"):
            with strategy.precision.init_context():
                module.configure_model()
        for part in module.modules():
            if hasattr(part, "log_dict"):
                vars(part).update(log=_nothing, log_dict=_nothing)
            if "torchmetrics" in sys.modules and isinstance(part, sys.modules["torchmetrics"].Metric):
                vars(part).update(update=_nothing, forward=lambda *_, **__: torch.zeros(()))
        for axis in getattr(strategy, "axes", ()):
            if isinstance(axis, Replicate) and self.simulated:
                axis.wrap_by(self._replicas)
        step, num_parameters = module.training_step, len(inspect.signature(module.training_step).parameters)
        strategy.place(module, {"training_step": lambda *args: step(*args[:num_parameters])})

    def _replicas(self, *args: Any, **kwargs: Any) -> Any:
        self.replicas.append(SimulatedReplicas(*args, **kwargs))
        return self.replicas[-1]

    def _configure(self) -> None:
        plan = Plan(num_batches=1000, max_epochs=1)
        optimizers, _ = configure(self.module, plan, empty=self.strategy.divides_parameters)
        for optimizer in optimizers:
            for group in optimizer.param_groups if self.foreach else ():
                if "foreach" in group and group["foreach"] is None and not group.get("fused"):
                    group["foreach"] = True
        self.stand_in.optimizers.extend(self.strategy.optimizer(optimizer) for optimizer in optimizers)

    def _train(self, index: int) -> None:
        self.place.begin("forward")
        output = self.strategy.forward_backward(self.batch, index, self._loss, True)
        del output
        if self.module.automatic_optimization:
            for optimizer in self.stand_in.optimizers:
                self._step(optimizer)
        for optimizer in self.stand_in.optimizers:
            optimizer.zero_grad()

    def _loss(self, output: Any, by: Callable[[Any], None] | None = None, parts: int = 1) -> None:
        if not self.module.automatic_optimization:
            return
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if loss is not None:
            (by or self._backward)(loss / parts if parts > 1 else loss)

    def _backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        self.place.begin("backward")
        loss.backward(*args, **kwargs)
        self.place.begin("backward")

    def _step(self, optimizer: Optimizer, closure: Any = None, **_: Any) -> Any:
        if closure is not None:
            closure()
        if not self.module.automatic_optimization:
            self.strategy.sync_gradients(optimizer)
        self.place.begin("optimizer step")
        return optimizer.step()

    def _note(self) -> None:
        counter, module, counted = self.counter, self.module, set[int]()
        states = [getattr(optimizer, "optim", optimizer).state for optimizer in self.stand_in.optimizers]
        gathered, shards = held_by_fsdp(module)
        parameters = [*module.parameters(), *shards]
        buckets = [bucket for replicas in self.replicas for bucket in replicas.buckets]
        state_bytes = {
            "gathered": counter.bytes_of(gathered, counted),
            "parameters": counter.bytes_of(parameters, counted),
            "gradients": counter.bytes_of([*buckets, *(p.grad for p in parameters if p.grad is not None)], counted),
            "optimizer_state": counter.bytes_of(states, counted),
            "buffers": counter.bytes_of(module.buffers(), counted),
        }
        self.at_peak = Amounts(**state_bytes, activations=counter.current - sum(state_bytes.values())), str(self.place)


def _nothing(*_: Any, **__: Any) -> None:
    """Log nothing."""


def _unknown(error: Exception) -> SimulationError:
    where = line_of(error)
    text = str(error).partition("\n")[0]
    return SimulationError(
        f"{where or 'The step'} needs a value, which simulated tensors do not have ({type(error).__name__}: {text}).",
        expected="a training_step whose operations depend on shapes alone: no .item(), no if on a tensor, no selection "
        "by a mask.",
        fix="move the line into a hook such as on_train_batch_end; or lightlib plan --measure, which runs the step on "
        "one device.",
    )
