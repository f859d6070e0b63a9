"""PlacedObjects: modules, optimizers and loaders of a user's own loop, placed on the strategy."""

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
from lightlib.errors import ArgumentTypeError, MisconfigurationException, owned_by
from lightlib.fabric.events import DirectLog, calls_of
from lightlib.fabric.fabric_calls import FabricCalls
from lightlib.fabric.guard import BypassGuard
from lightlib.fabric.loader import FabricLoader
from lightlib.fabric.module_trainer import ModuleTrainer
from lightlib.fabric.placement import Placement, StrategyCopies
from lightlib.fabric.refusals import (
    OWNER,
    check_loader,
    check_module,
    check_optimizer,
    of_another_module,
    several_modules_of,
    twice,
)
from lightlib.fabric.wrapped import FabricModule, FabricOptimizer
from lightlib.precision.scaler import Scaler
from lightlib.strategies.deepspeed.deepspeed_strategy import DeepSpeedStrategy
from lightlib.strategies.state_by_name import has_dtensors
from lightlib.strategies.strategy import Strategy


class PlacedObjects:
    """The modules, optimizers and loaders that a Fabric has set up.

    Args:
        fabric: The Fabric, with its callbacks and loggers.
        copies: Makes a copy of its strategy for each module after the first one.
        calls: The calls that the strategy makes itself.

    Attributes:
        strategy: The strategy of the first module.
        placements: The modules on their strategies.
        scaler: The loss scaler, if the precision has one and there is an optimizer.
    """

    def __init__(self, fabric: Any, strategy: Strategy, copies: StrategyCopies, calls: FabricCalls) -> None:
        self._fabric, self.strategy, self._copies, self._strategy_calls = fabric, strategy, copies, calls
        self.placements: list[Placement] = []
        self.scaler: Scaler | None = None
        self._num_loaders = 0

    def set_up(
        self, call: str, given: tuple[Any, tuple[Any, ...], Any], move_to_device: bool, compiles: bool
    ) -> tuple[FabricModule, list[FabricOptimizer], Any]:
        """Place a module and its optimizers; `given` also holds the schedule. See `Fabric.setup`."""
        module, optimizers, scheduler = given
        compiler = compiler_of(module)
        module = module if compiler is None else module._orig_mod  # noqa: SLF001  torch.compile keeps it there
        check_module(call, module)
        if isinstance(module, FabricModule) or any(p.module is module for p in self.placements):
            raise twice(call, "module")
        self._check_optimizers(call, optimizers)
        groups = [_Groups(optimizer, module) for optimizer in optimizers]
        for group in groups:
            if strange := [p for p in group.strange if self._placement_of(p) is None]:
                raise of_another_module(call, group.optimizer, strange)
        self._check_move(call, module, move_to_device)
        with owned_by(OWNER):
            placement, replacements, scheduler = self._placed(module, groups, scheduler)
            wrapped = FabricModule(placement, compiler if compiles else None)
            if isinstance(module, Module):
                self._attach(module, wrapped, placement)
            if BypassGuard.is_needed(placement):
                module.register_forward_pre_hook(BypassGuard(placement))
            stepped = [
                self._wrap(group.optimizer, replacement)
                for group, replacement in zip(groups, replacements, strict=True)
            ]
            for group, optimizer in zip(groups, stepped, strict=True):
                group.restore_state(optimizer)
        return wrapped, stepped, scheduler

    def _placed(
        self, module: nn.Module, groups: list[_Groups], scheduler: Any
    ) -> tuple[Placement, list[Optimizer | None], Any]:
        """Place a module; the user's strategy may replace the called object, its optimizers and the schedule."""
        by, placements = self._strategy_calls, []

        def place() -> Placement:
            if by.strategy is not None:
                strategy = by.strategy()
            else:
                strategy = self._copies.strategy_like(self.strategy) if self.placements else self.strategy
            placements.append(Placement(strategy, module, trains=not isinstance(strategy, DeepSpeedStrategy)))
            self.placements.append(placements[0])
            for group in groups:
                group.point_to_placed_parameters()
            return placements[0]

        if by.set_up is None:
            return place(), [None] * len(groups), scheduler
        called, stepped, scheduler = by.set_up(module, [group.optimizer for group in groups], scheduler, place)
        placements[0].call_through(called)
        return placements[0], stepped, scheduler

    def _attach(self, module: Module, wrapped: FabricModule, placement: Placement) -> None:
        """Let `call` call the hooks of a module of lightlib, and let its methods use this Fabric."""
        if not any(module is callback for callback in self._fabric.callbacks):
            self._fabric.callbacks.append(module)
        module_trainer = ModuleTrainer(self._fabric, wrapped, placement.optimizers)
        for part in module.modules():
            if isinstance(part, Module):
                part._attach(module_trainer, cast("Results", DirectLog(self._fabric)))  # noqa: SLF001  lightlib's own

    def _check_move(self, call: str, module: nn.Module, move_to_device: bool) -> None:
        if not move_to_device and self.strategy.root_device.type != "cpu":
            raise MisconfigurationException(
                f"fabric.{call} got move_to_device=False on {self.strategy.root_device}.",
                expected="True: the strategy places the parameters of the module itself.",
                fix=f"leave it out, or build {type(module).__name__} on its devices and do not set it up.",
            )

    def set_up_optimizers(self, optimizers: tuple[Optimizer, ...]) -> tuple[FabricOptimizer, ...]:
        """Wrap optimizers of modules that are placed; see `Fabric.setup_optimizers`."""
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
        with owned_by(OWNER):
            by = self._strategy_calls.set_up_optimizer
            return tuple(self._wrap(optimizer, None if by is None else by(optimizer)) for optimizer in optimizers)

    def _check_optimizers(self, call: str, optimizers: tuple[Any, ...]) -> None:
        for number, optimizer in enumerate(optimizers):
            check_optimizer(call, optimizer)
            again = any(optimizer is other for other in optimizers[:number])
            if (
                again
                or type(optimizer) is FabricOptimizer
                or any(optimizer is wrapped.user for wrapped in self.optimizers)
            ):
                raise twice(call, "optimizer")

    @property
    def optimizers(self) -> list[FabricOptimizer]:
        """The wrapped optimizers, in the order of their modules."""
        return [optimizer for placement in self.placements for optimizer in placement.optimizers]

    def _placement_of(self, parameter: nn.Parameter) -> Placement | None:
        return next(
            (p for p in self.placements if any(parameter is candidate for candidate in p.module.parameters())), None
        )

    def placements_of(self, optimizer: Optimizer) -> list[Placement]:
        """Return the placements of the modules that have the parameters of an optimizer."""
        holders = [self._placement_of(parameter) for parameter in _parameters(optimizer)]
        return [p for p in self.placements if p in holders]

    def _wrap(self, optimizer: Optimizer, replacement: Any = None) -> FabricOptimizer:
        """Wrap an optimizer; `replacement` is the one that the user's strategy steps in place of it."""
        placements = self.placements_of(optimizer)
        sharded = any(has_dtensors(p.module) or isinstance(p.strategy, DeepSpeedStrategy) for p in placements)
        if len(placements) > 1 and sharded:
            raise several_modules_of(optimizer, placements[0].strategy)
        strategy = placements[0].strategy
        replacement = strategy.optimizer(optimizer) if replacement is None else replacement
        scaler = self._scaler_for(replacement, strategy)
        arguments = {"strategy": strategy, "optimizer": replacement}
        hooks = calls_of(self._fabric.callbacks, "on_after_optimizer_step", (), arguments)
        wrapped = FabricOptimizer(optimizer, replacement, placements, scaler, hooks, self._strategy_calls.step)
        placements[0].add(wrapped)
        return wrapped

    def _scaler_for(self, optimizer: Any, strategy: Any) -> Scaler | None:
        """Return the loss scaler, of which there is one, unless the module has an engine that scales itself."""
        if isinstance(strategy, DeepSpeedStrategy):
            return None
        if self.scaler is None:
            self.scaler = strategy.precision.loss_scaler(self.strategy.root_device.type)
            if self.scaler is not None:
                grad_scaler = self.scaler.grad_scaler
                self.scaler.unscale_by(
                    lambda wrapped: strategy.unscale(grad_scaler, wrapped), empty=strategy.divides_parameters
                )
        if self.scaler is not None:
            self.scaler.check(optimizer)
        return self.scaler

    def set_up_loaders(self, dataloaders: tuple[Any, ...], shards: bool, moves: bool) -> list[FabricLoader]:
        """Wrap loaders; see `Fabric.setup_dataloaders`."""
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
        with owned_by(OWNER):
            check_loaders([loader for loader in dataloaders if isinstance(loader, DataLoader)], "train")
            return [self._loader(loader, shards, moves) for loader in dataloaders]

    def _loader(self, loader: Any, shards: bool, moves: bool) -> FabricLoader:
        strategy, device, share, prefetch = self.strategy, self.strategy.root_device, None, None
        broadcast, gather = strategy.collectives.broadcast, strategy.collectives.all_gather_object
        if strategy.world_size > 1:
            deals = shards or strategy.data_size == 1  # with size 1 all read the same data
            share = DataShard(strategy.data_rank, strategy.data_size, broadcast, gather, deals)
        if shards and order().replaces_samplers and (share is not None or strategy.launcher is not None):
            loader = with_distributed_sampler(loader, share or DataShard(0, 1, broadcast, gather), FABRIC)
        if self._strategy_calls.loader is not None:
            loader = self._strategy_calls.loader(loader)
        move: Callable[[Any, int], Any] | None = None
        if moves and (device.type != "cpu" or torch.accelerator.is_available()):
            move = lambda batch, loader: strategy.batch_to_device(batch)  # noqa: E731
        if move is not None and strategy.accelerator.has_streams:
            prefetch = Prefetch(device, move)
        self._num_loaders += 1
        return FabricLoader(loader, move, share, self._num_loaders - 1, prefetch, device if moves else None)


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
