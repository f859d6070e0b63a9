"""Fabric: strategies, precisions, launchers and checkpoints for a training loop of your own."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.optim import Optimizer

from lightlib import report
from lightlib.accelerators.accelerator import Accelerator
from lightlib.accelerators.resolve import choose
from lightlib.core.processes import Processes
from lightlib.core.setup.plugins import (
    Plugin,
    arguments_of,
    attach_plugins,
    environment_of,
    loggers_of,
    plugins_of,
    precision_of,
    strategy_of,
)
from lightlib.core.setup.settings import integer
from lightlib.data.seed import seed_everything
from lightlib.fabric import checkpoints, data_parallel, gradients
from lightlib.fabric.arguments import LAUNCHED_BY_COMMAND, checked_arguments
from lightlib.fabric.empty import without_initialization
from lightlib.fabric.events import callbacks_of
from lightlib.fabric.placement import Blank, Placement
from lightlib.fabric.refusals import refuse_pipelines
from lightlib.fabric.replaced import Replaced
from lightlib.fabric.setting_up import SettingUp
from lightlib.fabric.wrapped import FabricModule
from lightlib.loggers.fabric_logger import FabricLogger
from lightlib.precision.precision import Precision
from lightlib.signatures import PrecisionName
from lightlib.strategies.strategy import Strategy

Run = TypeVar("Run", bound=Callable[..., Any])


class Fabric(SettingUp):
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
        accelerator, devices, plugins = arguments_of(strategy, accelerator, devices, plugins)
        self.accelerator, self.devices = choose(accelerator, devices)
        strategy = data_parallel.named(strategy, self.accelerator)
        environment = environment_of(devices, list(self.devices), nodes, plugins)
        if devices == "auto" and environment.local_size != len(self.devices):
            self.accelerator, self.devices = choose(self.accelerator, environment.local_size)
        self.strategy = strategy_of(strategy, environment)
        refuse_pipelines(self.strategy)
        self._blank = Blank(self.strategy)
        found = precision_of(plugins_of(plugins, precision))
        self.strategy.use(self.accelerator, list(self.devices), found, environment)
        attach_plugins(plugins, self.strategy)
        own_loop = self.strategy.extension.own_loop
        self._replaced = Replaced() if own_loop is None else own_loop(self)
        report.rank_zero_only.rank = environment.rank
        self.callbacks = callbacks_of(callbacks)
        self._loggers = loggers_of(False if loggers is None else loggers, os.getcwd(), False, FabricLogger)
        self._placements: list[Placement] = []
        self._scaler = None
        self._loaders = 0
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
        by, placement = self._replaced.backward, None if model is None else gradients.placement_of("backward", model)
        if by is None:
            gradients.backward(self._placements, self._scaler, tensor, args, kwargs, placement)
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
        placement, by = gradients.placement_of("clip_gradients", module), self._replaced.clip
        inner = gradients.wrapped_optimizer(optimizer).optimizer
        if by is None:
            return gradients.clip(self._scaler, placement.strategy, inner, limits)
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
        if self._replaced.sync is not None:
            with self._replaced.sync(placement.called, enabled):
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
        if self._replaced.init_module is not None:
            context: AbstractContextManager[Any] = self._replaced.init_module(empty_init)
            return context
        context = self.strategy.init_context()
        return without_initialization(context) if empty_init else context

    def init_tensor(self) -> AbstractContextManager[Any]:
        """Return a context that creates tensors on the device and in the dtype of the precision."""
        self._ready("init_tensor")
        if self._replaced.init_tensor is not None:
            context: AbstractContextManager[Any] = self._replaced.init_tensor()
            return context
        return gradients.tensor_context(self.device, self.strategy.precision)

    def sharded_model(self) -> AbstractContextManager[Any]:
        """Return :meth:`init_module`, its newer name."""
        return self.init_module()

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
        if self._replaced.save is None:
            checkpoints.save(self, self._scaler, path, state, filter)
        else:
            self._replaced.save(path, state, filter)
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
        if self._replaced.load is None:
            rest = checkpoints.load(self, self._scaler, path, state, strict, weights_only)
        else:
            rest = self._replaced.load(path, state, strict, weights_only)
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
        if self._replaced.load is None:
            checkpoints.load_raw(self, path, obj, strict, weights_only)
        else:
            self._replaced.load(path, obj, strict, weights_only)

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
