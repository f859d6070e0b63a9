"""Fabric: strategies, precisions, launchers and checkpoints for a training loop of your own."""

from __future__ import annotations

import builtins
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, SupportsFloat, TypeVar, cast

import torch
from torch import nn
from torch.optim import Optimizer

from lightlib import report
from lightlib.accelerators.accelerator import Accelerator
from lightlib.core.processes import Processes
from lightlib.core.setup import plugins as setup
from lightlib.core.setup.plugins import Plugin
from lightlib.core.setup.settings import integer
from lightlib.data.seed import rng_state, seed_everything, set_rng_state
from lightlib.errors import MisconfigurationException, owned_by
from lightlib.fabric import checkpoints, data_parallel, gradients
from lightlib.fabric.communication import as_tensors, check_function, needs_function
from lightlib.fabric.empty import without_initialization
from lightlib.fabric.events import callbacks_of, calls_of, numbers_of
from lightlib.fabric.fabric_call import LAUNCHED_BY_COMMAND, checked_arguments
from lightlib.fabric.fabric_calls import FabricCalls
from lightlib.fabric.placed_objects import PlacedObjects
from lightlib.fabric.placement import StrategyCopies
from lightlib.fabric.refusals import OWNER, not_launched, refuse_pipelines
from lightlib.fabric.wrapped import FabricModule
from lightlib.launch.environment.detect import of_launcher
from lightlib.launch.start.spawn import launch_function
from lightlib.loggers.fabric_logger import FabricLogger
from lightlib.precision.precision import Precision
from lightlib.signatures import PrecisionName, Reduction, Schedule
from lightlib.strategies.strategy import Strategy
from lightlib.tree import map_tensors, to_device

Run = TypeVar("Run", bound=Callable[..., Any])
T = TypeVar("T")


class Fabric:
    """Runs a training loop of your own on any device, strategy and precision of the Trainer.

    Arguments have the names and meanings of Lightning 2.6's Fabric. A call of :meth:`setup` replaces moving, wrapping
    and casting, :meth:`backward` replaces ``loss.backward()``, and everything else in the loop stays as it is. The
    environment variables ``LIGHTLIB_<ARGUMENT>`` set defaults, as ``lightlib fabric run`` does.

    Args:
        accelerator: ``"auto"``, ``"cpu"``, ``"gpu"``, ``"cuda"``, ``"mps"``, a plugin's name, or an Accelerator.
        strategy: ``"auto"`` (one device, or ``"ddp"``), ``"ddp"``, ``"fsdp"``, ``"hsdp"``, ``"zero1"``, ``"tensor"``,
            ``"model_parallel"``, ``"deepspeed"``, a plugin's name, or a Strategy. Not a pipeline.
        devices: A number, a list of indices, ``"0,1"``, ``-1`` or ``"auto"``: one process per device.
        num_nodes: Number of machines. Default 1.
        precision: ``"32-true"`` (default), ``"64-true"``, ``"16-mixed"``, ``"bf16-mixed"``, ``"16-true"``,
            ``"bf16-true"``, ``"transformer-engine"``, or a Precision (:mod:`lightlib.precision`).
        plugins: A Precision; or an Environment or its name, which gives the rank of this process.
        callbacks: One object or several, of any type; see :meth:`call`.
        loggers: One or several :class:`~lightlib.loggers.FabricLogger`, which every logger is. Default: none.

    Raises:
        MisconfigurationException: An argument has a wrong value, or two contradict each other.

    Example:
        >>> fabric = Fabric(accelerator="cpu", devices=1)
        >>> model = nn.Linear(2, 1)
        >>> model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        >>> loader = fabric.setup_dataloaders([torch.ones(4, 2), torch.zeros(4, 2)])
        >>> for batch in loader:
        ...     optimizer.zero_grad()
        ...     fabric.backward(model(batch).square().mean())
        ...     optimizer.step()
    """

    @checked_arguments
    def __init__(
        self,
        *,
        accelerator: str | Accelerator = "auto",
        strategy: str | Strategy = "auto",
        devices: list[int] | str | int = "auto",
        num_nodes: int = 1,
        precision: PrecisionName | Precision | None = None,
        plugins: Plugin | list[Plugin] | None = None,
        callbacks: Any = None,
        loggers: FabricLogger | list[FabricLogger] | None = None,
    ) -> None:
        super().__init__()
        nodes = integer("num_nodes", num_nodes, 1)
        accelerator, devices, plugins = setup.arguments_of(strategy, accelerator, devices, plugins)
        self.accelerator, self.devices, environment = setup.hardware_of(accelerator, devices, nodes, plugins)
        self.strategy: Strategy = setup.strategy_of(data_parallel.named(strategy, self.accelerator), environment)
        refuse_pipelines(self.strategy)
        copies = StrategyCopies(self.strategy)
        chosen_precision = setup.precision_of(setup.plugins_of(plugins, precision))
        self.strategy.use(self.accelerator, list(self.devices), chosen_precision, environment)
        setup.attach_plugins(plugins, self.strategy)
        own_loop = self.strategy.extension.own_loop
        self._strategy_calls = FabricCalls() if own_loop is None else own_loop(self)
        self._placed = PlacedObjects(self, self.strategy, copies, self._strategy_calls)
        report.rank_zero_only.rank = environment.rank
        self.callbacks = callbacks_of(callbacks)
        self._loggers: list[FabricLogger] = setup.loggers_of(
            False if loggers is None else loggers, os.getcwd(), False, FabricLogger
        )
        self._launched = False
        self._processes = Processes(self)
        if os.environ.get(LAUNCHED_BY_COMMAND) == "1":
            self._begin()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "run" in vars(cls):
            cls.run = _launching(vars(cls)["run"])  # type: ignore[method-assign]  # with the same signature

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Override it with your program: calling it launches the processes and runs it in each of them.

        Example:
            >>> class Program(Fabric):
            ...     def run(self, epochs):
            ...         return f"{epochs} epochs on {self.device}"
            >>> Program(accelerator="cpu", devices=1).run(2)
            '2 epochs on cpu'
        """

    def __repr__(self) -> str:
        strategy = self.strategy
        where = f"{strategy.world_size} × {self.accelerator.describe(strategy.root_device)}"  # noqa: RUF001  a multiplication sign is meant
        return f"<{type(self).__name__}: {where}, {strategy.precision.name}, {strategy.describe()}>"

    # where it runs
    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self.strategy.root_device

    @property
    def global_rank(self) -> int:
        """The rank of this process among all."""
        return self.strategy.global_rank

    @property
    def local_rank(self) -> int:
        """The rank of this process on its machine."""
        return self.strategy.local_rank

    @property
    def node_rank(self) -> int:
        """The number of this machine."""
        return self.strategy.node_rank

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return self.strategy.world_size

    @property
    def is_global_zero(self) -> bool:
        """Whether this process has rank 0, which writes files and prints."""
        return self.strategy.is_global_zero

    # launching
    def launch(self, function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Start the other processes unless a launcher has, connect to them, and call ``function(fabric, …)`` in each.

        A script is run again in each process (strategy ``"ddp"`` and most strategies), up to and beyond this call. With
        ``"ddp_spawn"``, ``"ddp_fork"`` or ``"ddp_notebook"`` the function runs in new processes. With one process
        `launch` may be left out.

        Args:
            function: Called with this Fabric first. Default: nothing is called.
            args, kwargs: Its further arguments.

        Returns:
            What the function returns here, or on rank 0 if it ran in new processes.

        Raises:
            ArgumentTypeError: `function` cannot be called with a Fabric.
            MisconfigurationException: There is no function, and the strategy can only run one.

        Example:
            >>> def train(fabric, epochs):
            ...     return f"{epochs} epochs on rank {fabric.global_rank}"
            >>> Fabric(accelerator="cpu").launch(train, 3)
            '3 epochs on rank 0'
        """
        if function is not None:
            check_function(function)
        with owned_by(OWNER):
            spawns = self.strategy.launcher not in (None, "subprocess") and not self.strategy.environment.launched
            if spawns and not self._launched:
                if function is None:
                    raise needs_function(self.strategy)
                return self._spawned(function, args, kwargs)
            self._begin()
        return None if function is None else function(self, *args, **kwargs)

    def _begin(self) -> None:
        """Connect this process to the other ranks, which see from now on whether it fails or hangs."""
        if self._launched:
            return
        self._processes.ready()
        self._launched = True
        watch = self._processes.watch
        if watch is not None:
            watch.start(self._position, lambda kind: None, self._described)

    def _ready(self, call: str) -> None:
        """Raise if `launch` had to come before; with one process it is not needed."""
        if self._launched:
            return
        if self.strategy.world_size > 1:
            raise not_launched(call, self.strategy)
        self._begin()

    def _position(self) -> tuple[int, ...]:
        return (sum(placement.forwards for placement in self._placed.placements),)

    def _described(self) -> str:
        return f"forward pass {self._position()[0]}"

    def _spawned(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        environment, method = self.strategy.environment, self.strategy.launcher
        assert method is not None
        call = partial(_in_child, self, function, args, kwargs, rng_state())
        return launch_function(call, environment.local_size, method, environment)

    def __getstate__(self) -> dict[str, Any]:  # for a new process
        return {name: value for name, value in vars(self).items() if name != "_processes"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._processes = Processes(self)

    # set-up
    def setup(
        self,
        module: nn.Module,
        *optimizers: Optimizer,
        scheduler: Schedule | None = None,
        move_to_device: bool = True,
        _reapply_compile: bool = True,
    ) -> Any:
        """Place a module and its optimizers on the strategy.

        The module's parameters keep their names, and the optimizer its groups; with FSDP and tensor parallelism the
        parameters become sharded, in the optimizer as well.

        Args:
            module: The module, also one of `torch.compile`. It is changed in place.
            optimizers: Optimizers of its parameters. None for a module that is only evaluated.
            scheduler: A learning-rate schedule of one of them, which is returned as it is.
            move_to_device: Move the module to the device. Default True; False only where the device is the CPU.

        Returns:
            The wrapped module; with optimizers a tuple ``(module, *optimizers)``, and `scheduler` last if it is given.

        Raises:
            ArgumentTypeError: An argument has another type.
            MisconfigurationException: `launch` was not called, an object is set up already, an optimizer has
                parameters of another module, or the strategy cannot place the module.

        Example:
            >>> fabric = Fabric(accelerator="cpu")
            >>> model = nn.Linear(2, 1)
            >>> model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
            >>> fabric.backward(model(torch.ones(4, 2)).mean())
            >>> optimizer.step()
            >>> [name for name, _ in model.named_parameters()]
            ['weight', 'bias']
        """
        originals = module, optimizers, scheduler
        self._ready("setup")
        wrapped, stepped, scheduler = self._placed.set_up("setup", originals, move_to_device, _reapply_compile)
        self.call("on_after_setup", fabric=self, module=wrapped)
        if not optimizers:
            return wrapped
        return (wrapped, *stepped) if scheduler is None else (wrapped, *stepped, scheduler)

    def setup_module(
        self, module: nn.Module, move_to_device: bool = True, _reapply_compile: bool = True
    ) -> FabricModule:
        """Place a module on the strategy, and return it wrapped; see :meth:`setup`.

        Optimizers that are built from the parameters of the result go to :meth:`setup_optimizers`.
        """
        self._ready("setup_module")
        return self._placed.set_up("setup_module", (module, (), None), move_to_device, _reapply_compile)[0]

    def setup_optimizers(self, *optimizers: Optimizer) -> Any:
        """Let the strategy step optimizers of modules that are set up.

        Args:
            optimizers: Of the parameters of one module each. On one device and with DDP, also of several.

        Returns:
            The wrapped optimizer, or a tuple of several.

        Raises:
            ArgumentTypeError: There is none, or an argument is no optimizer.
            MisconfigurationException: One is set up already, or has parameters of a module that is not set up.

        Example:
            >>> fabric = Fabric(accelerator="cpu")
            >>> model = fabric.setup_module(nn.Linear(2, 1))
            >>> optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
        """
        self._ready("setup_optimizers")
        stepped = self._placed.set_up_optimizers(optimizers)
        return stepped[0] if len(stepped) == 1 else stepped

    def setup_dataloaders(
        self, *dataloaders: Any, use_distributed_sampler: bool = True, move_to_device: bool = True
    ) -> Any:
        """Let loaders give each process its shard of the data, on its device, with a position that can be saved.

        Sharding, random numbers of workers and resuming are those of training data in the Trainer (``docs/data.md``).

        Args:
            dataloaders: DataLoaders, or iterables of batches. They are not changed.
            use_distributed_sampler: Shard the data over processes. Default True.
            move_to_device: Move the batches to the device. Default True.

        Returns:
            The wrapped loader, or a list of several.

        Raises:
            ArgumentTypeError: There is none, or one is no loader.
            MisconfigurationException: One is set up already, empty, or sharded for other processes.

        Example:
            >>> from torch.utils.data import DataLoader
            >>> loader = Fabric(accelerator="cpu").setup_dataloaders(DataLoader(range(4), batch_size=2))
            >>> list(loader)
            [tensor([0, 1]), tensor([2, 3])]
        """
        self._ready("setup_dataloaders")
        wrapped = self._placed.set_up_loaders(dataloaders, use_distributed_sampler, move_to_device)
        return wrapped[0] if len(wrapped) == 1 else wrapped

    # a step
    def backward(self, tensor: torch.Tensor, *args: Any, model: FabricModule | None = None, **kwargs: Any) -> None:
        """Compute gradients in place of ``tensor.backward()``: scaled if the precision needs it, or by an engine.

        Args:
            tensor: The loss: one element that depends on parameters.
            args, kwargs: Of ``tensor.backward``.
            model: Whose loss it is; needed only with DeepSpeed and several models.

        Raises:
            MisconfigurationException: The tensor cannot be differentiated, or `model` is needed.
        """
        by = self._strategy_calls.backward
        placement = None if model is None else gradients.placement_of("backward", model)
        if by is None:
            gradients.backward(self._placed.placements, self._placed.scaler, tensor, args, kwargs, placement)
        else:
            by(tensor, None if placement is None else placement.called, *args, **kwargs)

    def clip_gradients(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        clip_val: float | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> torch.Tensor | None:
        """Clip the gradients of an optimizer, unscaled and over all shards.

        Args:
            module: The wrapped module.
            optimizer: The wrapped optimizer, whose parameters are clipped.
            clip_val: The largest absolute value.
            max_norm: The largest norm of all gradients together. Exactly one of the two is given.
            norm_type: The kind of norm. Default 2.0; another one only where parameters are not sharded.
            error_if_nonfinite: Raise if the norm is infinite or NaN (default). With a loss scaler such a step is
                skipped anyway, and nothing is raised.

        Returns:
            The norm before clipping, a 0-d tensor; None for `clip_val`.

        Raises:
            MisconfigurationException: Both or none of the limits were given, or the norm cannot be computed.
            RuntimeError: The norm is infinite or NaN.

        Example:
            >>> fabric, model = Fabric(accelerator="cpu"), nn.Linear(2, 1)
            >>> model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
            >>> fabric.backward(3 * model.bias.sum())
            >>> fabric.clip_gradients(model, optimizer, max_norm=1.0)
            tensor(3.)
            >>> model.bias.grad
            tensor([1.0000])
        """
        limits = gradients.Limits(clip_val, max_norm, norm_type, error_if_nonfinite)
        placement, by = gradients.placement_of("clip_gradients", module), self._strategy_calls.clip
        inner = gradients.wrapped_optimizer(optimizer).optimizer
        if by is None:
            return gradients.clip(self._placed.scaler, placement.strategy, inner, limits)
        norm: torch.Tensor | None = by(placement.called, inner, limits)
        return norm

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which operations outside of a module's forward run in the precision.

        Example:
            >>> with Fabric(accelerator="cpu", precision="bf16-mixed").autocast():
            ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
            torch.bfloat16
        """
        context = self.strategy.precision.step_context(self.device.type)
        return nullcontext() if context is None else context()

    @contextmanager
    def no_backward_sync(self, module: FabricModule, enabled: bool = True) -> Iterator[None]:
        """Return a context in which gradients are accumulated without reducing them over processes.

        Both forward and backward belong inside; the last batch before a step belongs outside, or gets
        ``enabled=False``.

        Args:
            module: The wrapped module.
            enabled: False changes nothing. Default True.

        Raises:
            ArgumentTypeError: The module is not wrapped.

        Example:
            >>> fabric = Fabric(accelerator="cpu")
            >>> model = fabric.setup(nn.Linear(2, 1))
            >>> for i in range(4):
            ...     with fabric.no_backward_sync(model, enabled=i % 4 != 3):
            ...         fabric.backward(model(torch.ones(1, 2)).sum())
        """
        placement = gradients.placement_of("no_backward_sync", module)
        if self._strategy_calls.sync is not None:
            with self._strategy_calls.sync(placement.called, enabled):
                yield
            return
        before, placement.sync = placement.sync, placement.sync and not enabled
        try:
            yield
        finally:
            placement.sync = before

    # building
    def init_module(self, empty_init: bool | None = None) -> AbstractContextManager[Any]:
        """Return a context that creates modules on the device and in the dtype of the precision.

        Args:
            empty_init: True leaves the weights uninitialized, because a checkpoint replaces them. Default: they are
                initialized.

        Example:
            >>> with Fabric(accelerator="cpu", precision="bf16-true").init_module():
            ...     nn.Linear(2, 1).weight.dtype
            torch.bfloat16
        """
        self._ready("init_module")
        if self._strategy_calls.init_module is not None:
            context: AbstractContextManager[Any] = self._strategy_calls.init_module(empty_init)
            return context
        context = self.strategy.init_context()
        return without_initialization(context) if empty_init else context

    def init_tensor(self) -> AbstractContextManager[Any]:
        """Return a context that creates tensors on the device and in the dtype of the precision."""
        self._ready("init_tensor")
        if self._strategy_calls.init_tensor is not None:
            context: AbstractContextManager[Any] = self._strategy_calls.init_tensor()
            return context
        return gradients.tensor_context(self.device, self.strategy.precision)

    def sharded_model(self) -> AbstractContextManager[Any]:
        """Return :meth:`init_module`, its newer name."""
        return self.init_module()

    # exchanging
    def barrier(self, name: str | None = None) -> None:
        """Return when every process has called this."""
        self._ready("barrier")
        self.strategy.barrier(name)

    def broadcast(self, obj: T, src: int = 0) -> T:
        """Return the object of rank `src`, on every process."""
        self._ready("broadcast")
        return self.strategy.broadcast(obj, src)

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Return the values of all processes, stacked along a new first dimension; unchanged with one process.

        Args:
            data: A tensor, a number, or a collection of them; of the same shapes on every process.
            group: Of torch.distributed. Default: all processes.
            sync_grads: Whether gradients flow through. Default False.

        Raises:
            ArgumentTypeError: `data` holds neither tensors nor numbers.

        Example:
            >>> Fabric(accelerator="cpu").all_gather({"loss": 0.5})
            {'loss': tensor(0.5000)}
        """
        self._ready("all_gather")
        tensors = as_tensors("all_gather", data, self.device)
        return map_tensors(lambda tensor: self.strategy.all_gather(tensor, group, sync_grads), tensors)

    def all_reduce(self, data: Any, group: Any = None, reduce_op: Reduction | None = "mean") -> Any:
        """Return the values reduced over all processes, the same on each.

        Args:
            data: A tensor, a number, or a collection of them; of the same shapes on every process.
            group: Of torch.distributed. Default: all processes.
            reduce_op: ``"mean"`` (default), ``"sum"``, ``"min"`` or ``"max"``.

        Raises:
            ArgumentTypeError: `data` holds neither tensors nor numbers.

        Example:
            >>> Fabric(accelerator="cpu").all_reduce(torch.tensor([1.0, 2.0]), reduce_op="sum")
            tensor([1., 2.])
        """
        self._ready("all_reduce")
        tensors, how = as_tensors("all_reduce", data, self.device), str(reduce_op or "sum")
        reduce = self._strategy_calls.all_reduce or self.strategy.reduce
        return map_tensors(lambda tensor: reduce(tensor, group, how), tensors)

    @contextmanager
    def rank_zero_first(self, local: bool = False) -> Iterator[None]:
        """Return a context that rank 0 runs through first, then all other ranks.

        Args:
            local: The first process of each machine goes first, where machines share no disk. Default False.

        Example:
            >>> with Fabric(accelerator="cpu").rank_zero_first():
            ...     print("downloaded once")
            downloaded once
        """
        self._ready("rank_zero_first")
        rank = self.local_rank if local else self.global_rank
        if rank > 0:
            self.strategy.collectives.barrier("rank_zero_first")
        try:
            yield
        finally:
            if rank == 0:
                self.strategy.collectives.barrier("rank_zero_first")

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first process of each machine."""
        if self.local_rank == 0:
            report.print_by(builtins.print, *args, **kwargs)

    def to_device(self, obj: Any) -> Any:
        """Return a module, or the tensors in a collection, on the device of this process.

        Example:
            >>> Fabric(accelerator="cpu").to_device({"x": torch.ones(1)})
            {'x': tensor([1.])}
        """
        self._ready("to_device")
        if isinstance(obj, nn.Module) and self._strategy_calls.to_device is not None:
            self._strategy_calls.to_device(obj)
            return obj
        return obj.to(self.device) if isinstance(obj, nn.Module) else to_device(obj, self.device)

    # checkpoints
    def save(
        self,
        path: str | Path,
        state: Mapping[str, Any],
        filter: Mapping[str, Callable[[str, Any], bool]] | None = None,  # noqa: A002  Lightning's name
    ) -> None:
        """Write modules, optimizers, loaders and plain values to `path`, completely or not at all. All processes call.

        A state with a loader also holds the random numbers of each process, so that :meth:`load` continues exactly.

        Args:
            path: A local path or a URL: a file, or a directory where the strategy writes shards.
            state: Wrapped or plain modules, optimizers and loaders, objects with `state_dict` and `load_state_dict`,
                and plain values, by name.
            filter: By the names of `state`: functions ``(key, value) -> bool`` that choose the entries to save.

        Raises:
            ArgumentTypeError: An argument has another type.
            MisconfigurationException: A name of `filter` is none of `state`.
            CheckpointWriteError: It could not be written; an earlier file is unchanged.

        Example:
            >>> fabric = Fabric(accelerator="cpu")
            >>> model = fabric.setup(nn.Linear(2, 1))
            >>> fabric.save("model.ckpt", {"model": model, "step": 3}, filter={"model": lambda key, _: key != "bias"})
            >>> sorted(fabric.load("model.ckpt")["model"])
            ['weight']
        """
        self._ready("save")
        if self._strategy_calls.save is None:
            checkpoints.save(self._placed, path, state, filter)
        else:
            self._strategy_calls.save(path, state, filter)
        self.strategy.barrier("save")

    def load(
        self,
        path: str | Path,
        state: dict[str, Any] | None = None,
        strict: bool = True,
        *,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Restore the objects in `state` from a checkpoint, and replace its plain values. All processes call it.

        Args:
            path: What :meth:`save` wrote with any strategy, Lightning's `Fabric.save`, or a dict by `torch.save`.
            state: As in :meth:`save`; it may name a part of the checkpoint. Default: nothing is restored.
            strict: Whether each name in `state`, and each key of a module, must be in the checkpoint. Default True.
            weights_only: False reads a checkpoint that holds arbitrary Python objects, which may run any code.

        Returns:
            The rest of the checkpoint; without `state` all of it.

        Raises:
            CheckpointError: It is missing, damaged, or does not fit. It is found before anything is changed, except
                for the keys of a module's state.

        Example:
            >>> fabric = Fabric(accelerator="cpu")
            >>> fabric.save("run.ckpt", {"step": 3, "name": "first"})
            >>> state = {"step": 0}
            >>> fabric.load("run.ckpt", state), state
            ({'name': 'first'}, {'step': 3})
        """
        self._ready("load")
        if self._strategy_calls.load is None:
            rest = checkpoints.load(self._placed, path, state, strict, weights_only)
        else:
            rest = self._strategy_calls.load(path, state, strict, weights_only)
        self.strategy.barrier("load")
        return rest

    def load_raw(
        self, path: str | Path, obj: nn.Module | Optimizer, strict: bool = True, *, weights_only: bool | None = None
    ) -> None:
        """Load a file that holds the state of one module or optimizer, as ``torch.save(module.state_dict(), path)``.

        Args:
            path: The file.
            obj: A wrapped or plain module or optimizer.
            strict: Whether the keys of a module must match. Default True.
            weights_only: False reads arbitrary Python objects, which may run any code.

        Raises:
            ArgumentTypeError: `obj` is neither.
            CheckpointError: The file is missing, damaged, or does not fit.
        """
        self._ready("load_raw")
        if self._strategy_calls.load is None:
            checkpoints.load_raw(self._placed, path, obj, strict, weights_only)
        else:
            self._strategy_calls.load(path, obj, strict, weights_only)

    # events
    def call(self, hook_name: str, *args: Any, **kwargs: Any) -> None:
        """Call the method `hook_name` of every callback that has it, in their order.

        Args:
            hook_name: The name of the method.
            args: Passed to each.
            kwargs: Passed to each, as far as its signature names them.

        Raises:
            ArgumentTypeError: `hook_name` is not a string.
            MisconfigurationException: A callback's method needs an argument that is not passed.

        Example:
            >>> import lightlib
            >>> class Report:
            ...     def on_epoch_end(self, epoch):
            ...         print("epoch", epoch)
            >>> fabric = lightlib.Fabric(accelerator="cpu", callbacks=Report())
            >>> fabric.call("on_epoch_end", epoch=3, loss=0.5)
            epoch 3
        """
        for hook in calls_of(self.callbacks, hook_name, args, kwargs):  # none is called unless all can be
            hook()

    # logging
    @property
    def loggers(self) -> list[FabricLogger]:
        """All loggers."""
        return self._loggers

    @property
    def logger(self) -> FabricLogger:
        """The first logger.

        Raises:
            MisconfigurationException: There is none.
        """
        if not self._loggers:
            raise MisconfigurationException(
                "fabric.logger was read, but this Fabric has no logger.",
                expected="at least one logger.",
                fix="Fabric(loggers=CSVLogger('logs'))",
            )
        return self._loggers[0]

    def log(self, name: str, value: SupportsFloat, step: int | None = None) -> None:
        """Pass one value to all loggers; see :meth:`log_dict`."""
        self.log_dict({name: value}, step)

    def log_dict(self, metrics: Mapping[str, SupportsFloat], step: int | None = None) -> None:
        """Pass values to all loggers, which write on rank 0.

        Args:
            metrics: Numbers and tensors with one element, by name. Reduce them first if they differ between ranks.
            step: The x-axis. Default: the loggers count themselves.

        Raises:
            ArgumentTypeError: `metrics` is no mapping.
            MisconfigurationException: A tensor has several elements.

        Example:
            >>> from lightlib.loggers import CSVLogger
            >>> fabric = Fabric(accelerator="cpu", loggers=CSVLogger("logs"))
            >>> fabric.log_dict({"loss": torch.tensor(0.5), "rate": 0.1}, step=0)
        """
        numbers = numbers_of(metrics)
        for logger in self._loggers:
            logger.log_metrics(numbers, step)

    @staticmethod
    def seed_everything(seed: int | str | None = None, workers: bool | None = None, verbose: bool = True) -> int:
        """Seed Python, NumPy and torch, and return the seed; see :func:`lightlib.seed_everything`."""
        return seed_everything(seed, workers is None or workers, verbose)


def _launching(run: Run) -> Run:
    """Return an override of `Fabric.run` that launches first."""

    @functools.wraps(run)
    def launched(self: Fabric, *args: Any, **kwargs: Any) -> Any:
        if self._launched:
            return run(self, *args, **kwargs)
        return self.launch(_run, args, kwargs)

    return cast("Run", launched)


def _run(fabric: Fabric, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return fabric.run(*args, **kwargs)


def _in_child(
    fabric: Fabric,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    random_numbers: dict[str, Any],
    rank: int,
) -> Any:
    """Run the function as rank `rank`; rank 0 returns its result to the process that started it."""
    set_rng_state(random_numbers)  # a new interpreter has a different state
    environment, strategy = of_launcher(), fabric.strategy
    assert environment is not None, "launch_function sets it"
    report.rank_zero_only.rank = environment.rank
    strategy.use(strategy.accelerator, list(strategy.devices), strategy.precision, environment)
    returned = fabric.launch(function, *args, **kwargs)
    return map_tensors(lambda tensor: tensor.detach().cpu(), returned) if rank == 0 else None
