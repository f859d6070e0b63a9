"""SettingUp: modules, optimizers and loaders of a user's own loop, placed on the strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from lightlib.conventions import order
from lightlib.core.check import compiler_of
from lightlib.core.metrics.results import Results
from lightlib.core.module.module import Module
from lightlib.core.setup.loaders import check_loaders
from lightlib.data.distributed_loader import FABRIC, with_distributed_sampler
from lightlib.data.prefetch import Prefetch
from lightlib.data.sharding import DataShard
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.fabric.attached import Attached
from lightlib.fabric.events import DirectLog, Events
from lightlib.fabric.guard import BypassGuard
from lightlib.fabric.loader import FabricLoader
from lightlib.fabric.placement import Blank, Placement
from lightlib.fabric.refusals import (
    check_loader,
    check_module,
    check_optimizer,
    of_another_module,
    several_modules_of,
    twice,
)
from lightlib.fabric.replaced import Replaced
from lightlib.fabric.words import in_words_of_fabric
from lightlib.fabric.wrapped import FabricModule, FabricOptimizer
from lightlib.precision.scaler import Scaler
from lightlib.signatures import Schedule
from lightlib.strategies.deepspeed.strategy import DeepSpeedStrategy
from lightlib.strategies.state import has_dtensors


class SettingUp(Events):
    """Set-up of modules, optimizers and loaders; abstract base of :class:`lightlib.fabric.fabric.Fabric`."""

    _blank: Blank
    _replaced: Replaced
    _scaler: Scaler | None
    _loaders: int

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
            >>> import lightlib
            >>> fabric = lightlib.Fabric(accelerator="cpu")
            >>> model = nn.Linear(2, 1)
            >>> model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
            >>> fabric.backward(model(torch.ones(4, 2)).mean())
            >>> optimizer.step()
            >>> [name for name, _ in model.named_parameters()]
            ['weight', 'bias']
        """
        given = module, optimizers, scheduler
        wrapped, stepped, scheduler = self._set_up("setup", given, move_to_device, _reapply_compile)
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
        return self._set_up("setup_module", (module, (), None), move_to_device, _reapply_compile)[0]

    def _set_up(
        self, call: str, given: tuple[Any, tuple[Any, ...], Any], move_to_device: bool, compiles: bool
    ) -> tuple[FabricModule, list[FabricOptimizer], Any]:
        self._ready(call)
        module, optimizers, scheduler = given
        compiler = compiler_of(module)
        module = module if compiler is None else module._orig_mod  # noqa: SLF001  torch.compile keeps it there
        check_module(call, module)
        if isinstance(module, FabricModule) or any(p.module is module for p in self._placements):
            raise twice(call, "module")
        self._check_optimizers(call, optimizers)
        groups = [_Groups(optimizer, module) for optimizer in optimizers]
        for group in groups:
            if strange := [p for p in group.strange if self._placement_of(p) is None]:
                raise of_another_module(call, group.optimizer, strange)
        self._check_move(call, module, move_to_device)
        with in_words_of_fabric():
            placement, replacements, scheduler = self._placed(module, groups, scheduler)
            wrapped = FabricModule(placement, compiler if compiles else None)
            if isinstance(module, Module):
                self._attach(module, wrapped, placement)
            if BypassGuard.is_needed(placement):
                module.register_forward_pre_hook(BypassGuard(placement))
            stepped = [self._wrap(group.optimizer, one) for group, one in zip(groups, replacements, strict=True)]
            for group, optimizer in zip(groups, stepped, strict=True):
                group.restore_state(optimizer)
        return wrapped, stepped, scheduler

    def _placed(
        self, module: nn.Module, groups: list[_Groups], scheduler: Any
    ) -> tuple[Placement, list[Optimizer | None], Any]:
        """Place a module; the user's strategy may replace the called object, its optimizers and the schedule."""
        by, made = self._replaced, []

        def place() -> Placement:
            if by.strategy is not None:
                strategy = by.strategy()
            else:
                strategy = self._blank.strategy_like(self.strategy) if self._placements else self.strategy
            made.append(Placement(strategy, module, trains=not isinstance(strategy, DeepSpeedStrategy)))
            self._placements.append(made[0])
            for group in groups:
                group.point_to_placed_parameters()
            return made[0]

        if by.set_up is None:
            return place(), [None] * len(groups), scheduler
        called, stepped, scheduler = by.set_up(module, [group.optimizer for group in groups], scheduler, place)
        made[0].call_through(called)
        return made[0], stepped, scheduler

    def _attach(self, module: Module, wrapped: FabricModule, placement: Placement) -> None:
        """Let `call` call the hooks of a module of lightlib, and let its methods use this Fabric."""
        if not any(module is callback for callback in self.callbacks):
            self.callbacks.append(module)
        attached = Attached(self, wrapped, placement.optimizers)
        for part in module.modules():
            if isinstance(part, Module):
                part._attach(attached, cast("Results", DirectLog(self)))  # noqa: SLF001  lightlib's own

    def _check_move(self, call: str, module: nn.Module, move_to_device: bool) -> None:
        if not move_to_device and self.device.type != "cpu":
            raise MisconfigurationException(
                f"fabric.{call} got move_to_device=False on {self.device}.",
                expected="True: the strategy places the parameters of the module itself.",
                fix=f"leave it out, or build {type(module).__name__} on its devices and do not set it up.",
            )

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
            >>> import lightlib
            >>> fabric = lightlib.Fabric(accelerator="cpu")
            >>> model = fabric.setup_module(nn.Linear(2, 1))
            >>> optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
        """
        self._ready("setup_optimizers")
        if not optimizers:
            raise ArgumentTypeError(
                "fabric.setup_optimizers got no optimizer.",
                expected="one or more optimizers.",
                fix="fabric.setup_optimizers(optimizer)",
            )
        self._check_optimizers("setup_optimizers", optimizers)
        for optimizer in optimizers:
            strange = [p for p in _parameters(optimizer) if self._placement_of(p) is None]
            if strange:
                raise of_another_module("setup_optimizers", optimizer, strange)
        with in_words_of_fabric():
            by = self._replaced.set_up_optimizer
            stepped = tuple(self._wrap(one, None if by is None else by(one)) for one in optimizers)
        return stepped[0] if len(stepped) == 1 else stepped

    def _check_optimizers(self, call: str, optimizers: tuple[Any, ...]) -> None:
        for number, optimizer in enumerate(optimizers):
            check_optimizer(call, optimizer)
            again = any(optimizer is other for other in optimizers[:number])
            if again or type(optimizer) is FabricOptimizer or any(optimizer is one.user for one in self._optimizers):
                raise twice(call, "optimizer")

    @property
    def _optimizers(self) -> list[FabricOptimizer]:
        return [optimizer for placement in self._placements for optimizer in placement.optimizers]

    def _placement_of(self, parameter: nn.Parameter) -> Placement | None:
        return next((p for p in self._placements if any(parameter is one for one in p.module.parameters())), None)

    def _placements_of(self, optimizer: Optimizer) -> list[Placement]:
        found = [self._placement_of(parameter) for parameter in _parameters(optimizer)]
        return [p for p in self._placements if p in found]

    def _wrap(self, optimizer: Optimizer, replacement: Any = None) -> FabricOptimizer:
        """Wrap an optimizer; `replacement` is the one that the user's strategy steps in place of it."""
        placements = self._placements_of(optimizer)
        sharded = any(has_dtensors(p.module) or isinstance(p.strategy, DeepSpeedStrategy) for p in placements)
        if len(placements) > 1 and sharded:
            raise several_modules_of(optimizer, placements[0].strategy)
        strategy = placements[0].strategy
        replacement = strategy.optimizer(optimizer) if replacement is None else replacement
        scaler = self._scaler_for(replacement, strategy)
        hooks = self._calls_of("on_after_optimizer_step", (), {"strategy": strategy, "optimizer": replacement})
        wrapped = FabricOptimizer(optimizer, replacement, placements, scaler, hooks, self._replaced.step)
        placements[0].add(wrapped)
        return wrapped

    def _scaler_for(self, optimizer: Any, strategy: Any) -> Scaler | None:
        """Return the loss scaler, of which there is one, unless the module has an engine that scales itself."""
        if isinstance(strategy, DeepSpeedStrategy):
            return None
        if self._scaler is None:
            self._scaler = strategy.precision.loss_scaler(self.device.type)
            if self._scaler is not None and strategy.shares_overflow:
                grad_scaler = self._scaler.grad_scaler
                self._scaler.share_overflow_by(lambda one: strategy.share_overflow(grad_scaler, one))
        if self._scaler is not None:
            self._scaler.check(optimizer)
        return self._scaler

    # data
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
            >>> import lightlib
            >>> from torch.utils.data import DataLoader
            >>> loader = lightlib.Fabric(accelerator="cpu").setup_dataloaders(DataLoader(range(4), batch_size=2))
            >>> list(loader)
            [tensor([0, 1]), tensor([2, 3])]
        """
        self._ready("setup_dataloaders")
        if not dataloaders:
            raise ArgumentTypeError(
                "fabric.setup_dataloaders got no loader.",
                expected="one or more loaders.",
                fix="fabric.setup_dataloaders(loader)",
            )
        for loader in dataloaders:
            if isinstance(loader, FabricLoader):
                raise twice("setup_dataloaders", "loader")
            check_loader(loader)
        with in_words_of_fabric():
            check_loaders([loader for loader in dataloaders if isinstance(loader, DataLoader)], "train")
            wrapped = [self._loader(loader, use_distributed_sampler, move_to_device) for loader in dataloaders]
        return wrapped[0] if len(wrapped) == 1 else wrapped

    def _loader(self, loader: Any, shards: bool, moves: bool) -> FabricLoader:
        strategy, share, prefetch = self.strategy, None, None
        broadcast, gather = strategy.collectives.broadcast, strategy.collectives.all_gather_object
        if strategy.world_size > 1:
            deals = shards or strategy.data_size == 1  # with size 1 all read the same data
            share = DataShard(strategy.data_rank, strategy.data_size, broadcast, gather, deals)
        if shards and order().replaces_samplers and (share is not None or strategy.launcher is not None):
            loader = with_distributed_sampler(loader, share or DataShard(0, 1, broadcast, gather), FABRIC)
        if self._replaced.loader is not None:
            loader = self._replaced.loader(loader)
        move: Callable[[Any, int], Any] | None = None
        if moves and (self.device.type != "cpu" or torch.accelerator.is_available()):
            move = lambda batch, loader: strategy.batch_to_device(batch)  # noqa: E731
        if move is not None and strategy.accelerator.has_streams:
            prefetch = Prefetch(self.device, move)
        self._loaders += 1
        return FabricLoader(loader, move, share, self._loaders - 1, prefetch, self.device if moves else None)


class _Groups:
    """The parameters of an optimizer by their names, which stay while a strategy replaces the parameters.

    Attributes:
        strange: Parameters that the module does not have.
    """

    def __init__(self, optimizer: Optimizer, module: nn.Module) -> None:
        self.optimizer, self._module = optimizer, module
        self._device = next((parameter.device for parameter in module.parameters()), None)
        names = {id(parameter): name for name, parameter in module.named_parameters(remove_duplicate=False)}
        self._names = [[names.get(id(p)) for p in group["params"]] for group in optimizer.param_groups]
        self.strange = [p for p in _parameters(optimizer) if id(p) not in names]
        self._state = optimizer.state_dict() if optimizer.state else None

    def point_to_placed_parameters(self) -> None:
        """Let the optimizer hold the parameters that the module has now."""
        placed = dict(self._module.named_parameters(remove_duplicate=False))
        replaced = False
        for group, names in zip(self.optimizer.param_groups, self._names, strict=True):
            for index, name in enumerate(names):
                if name is not None and group["params"][index] is not placed[name]:
                    group["params"][index], replaced = placed[name], True
        moved = self._device is not None and any(p.device != self._device for p in placed.values())
        if not (replaced or moved):
            self._state = None  # it needs no placing
        elif self._state is not None:
            self.optimizer.state.clear()

    def restore_state(self, optimizer: FabricOptimizer) -> None:
        """Place the state that the optimizer had before."""
        if self._state is None:
            return
        groups = [
            {**group, "param_names": names}
            for group, names in zip(self._state["param_groups"], self._names, strict=True)
        ]
        sharded = optimizer.placements[0].strategy.world_size > 1
        optimizer.load_state_dict({**self._state, "param_groups": groups} if sharded else self._state)


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
