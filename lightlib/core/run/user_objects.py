"""User objects: the objects a user gives to a run, by name, with the attributes to save."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler

from lightlib import registry
from lightlib.callbacks.callback import Callback
from lightlib.checkpoint.file.archive import not_plain
from lightlib.core.metrics.torchmetric import is_metric
from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module
from lightlib.core.values.attributes import (
    SnapshotContext,
    attributes_of,
    dict_of,
    give,
    has_protocol,
    is_a,
    is_users_object,
    of_class,
)
from lightlib.core.values.class_source import LIBRARIES, is_of_torch, root_of, saves, stored, updated
from lightlib.core.values.classes import data_of_class, functions_of_class, users_classes
from lightlib.core.values.digest import is_container
from lightlib.core.values.hparams import HyperparametersMixin
from lightlib.data.sharding import is_plain_batches
from lightlib.data.workers import unwrapped
from lightlib.loggers.hyperparameters import is_config, put, unresolved
from lightlib.torch_private import buffers_of, non_persistent_buffers

if TYPE_CHECKING:
    from lightlib.core.run.run import Run

_RUNS = frozenset(
    ("_trainer", "_results", "_hparams", "_device", "_toggled", "_hparams_initial", "_hparams_name", "_log_hyperparams",
     "device_mesh", "trainer", "_pl_module", "_placed_by")
)  # fmt: skip
_PARTS = {"dataset": "data set", "sampler": "sampler", "batch_sampler": "batch sampler", "collate_fn": "collate_fn"}
_HPARAMS = "hparams."
_DEEPEST = 6


@dataclass(frozen=True, eq=False)
class Owner:
    """One of the user's objects.

    Attributes:
        place: Its name in messages and checkpoints: ``"module.encoder"``.
        kind: ``"module"``, ``"callback"``, ``"data module"``, ``"data set"``, ``"loader"``, ``"optimizer"``,
            ``"schedule"``, ``"logger"`` or ``"class"``: how to save it by hand.
        without: The names of attributes that are not the user's.
        read: Whether a training loader reads it: then its state at the start of the epoch is saved too.
        in_workers: Whether worker processes use copies of it, whose changes this process never sees.
        by_protocol: Whether its `state_dict`, which nothing else calls, is saved instead of its attributes.
    """

    place: str
    held: Any
    kind: str
    without: Collection[str] = ()
    read: bool = False
    in_workers: bool = False
    by_protocol: bool = False

    def attributes(self) -> Iterator[tuple[str, Any]]:
        """Yield the attributes that the user's state protocol does not cover."""
        if self.by_protocol:
            yield "state_dict()", self.held
            return
        if is_a(self.held, type):
            yield from data_of_class(self.held)
            return
        kind: type = type(self.held)
        settings_alone = is_a(self.held, nn.Module) and is_of_torch(kind)
        hparams = dict_of(self.held).get("_hparams", {}) if is_a(self.held, HyperparametersMixin) else {}
        for name, value in unresolved(hparams).items():
            if not_plain(value) is None:
                yield f"{_HPARAMS}{name}", value
        for name, value in attributes_of(self.held).items():
            excluded = name in self.without or name in _RUNS or saves(kind, name)
            if not excluded and not (settings_alone and type(value) not in (bool, int, float, str)):
                yield name, value
        if is_a(self.held, nn.Module):
            buffers = buffers_of(self.held)
            for name in non_persistent_buffers(self.held):
                yield name, buffers[name]

    def current(self) -> dict[str, Any]:
        """Return all that can be restored in place: of a class also the functions that have no attributes yet."""
        functions = functions_of_class(self.held) if is_a(self.held, type) else ()
        return {**dict(functions), **dict(self.attributes())}

    def assign(self, name: str, value: Any) -> None:
        """Set an attribute, a hyperparameter or a buffer of the object."""
        if value is self.held:
            return
        if name.startswith(_HPARAMS):
            name, hparams = name.removeprefix(_HPARAMS), self.held.hparams
            if not is_config(hparams):
                hparams[name] = value
            elif unresolved(hparams).get(name) != value:  # otherwise its nodes stay the same objects
                put(hparams, name, value)
            return
        buffers = buffers_of(self.held) if is_a(self.held, nn.Module) else {}
        if name in buffers:
            buffers[name] = value
        else:
            give(self.held, name, value)


def parts_of_module(module: nn.Module, device: Any, roots: Iterable[str]) -> SnapshotContext:
    """Return the modules, parameters and buffers that every checkpoint holds, by name and by `id`."""
    parts: dict[str, Any] = {"": module}
    parts |= {name: part for name, part in module.named_modules() if name}
    parts |= dict(module.named_parameters())
    for place, part in module.named_modules():
        unsaved = non_persistent_buffers(part)
        prefix = f"{place}." if place else ""
        parts |= {f"{prefix}{name}": buffer for name, buffer in buffers_of(part).items() if name not in unsaved}
    names = {id(part): name for name, part in parts.items() if part is not None}
    return SnapshotContext(names=names, parts=parts, device=device, roots=frozenset(roots))


def loaders_of(run: Run) -> Iterator[tuple[str, Any, bool, bool]]:
    """Yield for each of the user's loaders: its name, the loader, whether it trains, and whether its state is saved."""
    if run.train_data is not None and run.train_data.is_loaded:
        for number, (loader, source) in enumerate(zip(run.train_data.given, run.train_data.sources, strict=True)):
            yield f"training loader{f' {number}' if number else ''}", loader, True, source.has_state
    if "val" in run.evaluations.loaded:
        for number, loader in enumerate(run.evaluations.loaded["val"].given):
            yield f"validation loader{f' {number}' if number else ''}", loader, False, False


def owners_of(run: Run) -> list[Owner]:
    """Return the user's objects of a run: data sets and samplers, the module and its parts, data module, callbacks."""
    owners = [owner for loader in loaders_of(run) for owner in _owners_of_loader(*loader)]
    for name, part in run.module.named_modules():
        if not is_metric(part):
            base = _names_of_base(Module if isinstance(part, Module) else nn.Module)
            owners.append(Owner(f"module.{name}" if name else "module", part, "module", base))
    if run.datamodule is not None:
        owners.append(Owner("datamodule", run.datamodule, "data module", _names_of_base(DataModule)))
    counts: dict[str, int] = {}
    for callback in run.callbacks:
        name = type(callback).__name__
        number = counts[name] = counts.get(name, -1) + 1
        kind: Any = type(callback)
        if root_of(kind) != "lightlib":
            from_lightlib = any(root_of(base) == "lightlib" and base is not Callback for base in kind.__mro__)
            without = attributes_of(callback).keys() - stored(kind) if from_lightlib else ()
            owners.append(Owner(f"{name}[{number}]" if number else name, callback, "callback", without))
    owners += [*_owners_of_optimization(run), *_owners_of_loggers(run)]
    first: dict[int, Owner] = {}
    for owner in owners:
        first.setdefault(id(owner.held), owner)
    return list(first.values())


_SET_BY_TORCH = frozenset(("step", "_opt_called", "_zero_grad_profile_name", "_warned_capturable_if_run_uncaptured"))


def _owners_of_optimization(run: Run) -> Iterator[Owner]:
    """Yield the optimizers and schedules of classes that the user wrote, without the parts in their `state_dict`."""
    for number, optimizer in enumerate(run.optimization.optimizers):
        kind: type = type(optimizer)
        if issubclass(kind, Optimizer) and root_of(kind) not in LIBRARIES:
            base = _names_of_optimizer() | _SET_BY_TORCH
            yield Owner(f"optimizer {number}" if number else "optimizer", optimizer, "optimizer", base)
    for number, config in enumerate(run.optimization.schedules.configs):
        kind = type(config.scheduler)
        saver = of_class(kind, "state_dict")
        if saver is not None and root_of(saver) not in LIBRARIES and root_of(kind) not in LIBRARIES:
            yield Owner(f"schedule {number}" if number else "schedule", config.scheduler, "schedule", ("optimizer",))


def _owners_of_loggers(run: Run) -> Iterator[Owner]:
    """Yield the user's loggers, with the attributes that their methods update: clients and files are left out."""
    for number, logger in enumerate(run.loggers.loggers):
        kind: type = type(logger)
        if root_of(kind) not in LIBRARIES:
            without = attributes_of(logger).keys() - updated(kind)
            yield Owner(f"{kind.__name__}[{number}]" if number else kind.__name__, logger, "logger", without)


@cache
def _names_of_base(kind: Any, *arguments: Any) -> frozenset[str]:
    return frozenset(vars(kind(*arguments)))


@cache
def _names_of_optimizer() -> frozenset[str]:
    return frozenset(vars(Optimizer([torch.zeros(1)], {})))


def _owners_of_loader(name: str, loader: Any, trains: bool, saved: bool) -> Iterator[Owner]:
    if not is_a(loader, DataLoader):
        if not saved and is_users_object(loader):
            yield Owner(name, loader, "loader", read=trains)
        return
    if root_of(type(loader)) not in LIBRARIES and not saved:
        yield Owner(name, loader, "loader", _names_of_base(DataLoader, (0,)), trains)
    for part, word in _PARTS.items():
        attribute = dict_of(loader).get(part)
        attribute = unwrapped(attribute) if part == "dataset" else _with_state(attribute)
        of_library = root_of(type(attribute)) in registry.names("streams")
        by_loader = part == "dataset" and (saved or (of_library and not trains)) and _has(attribute, "state_dict")
        skipped = (
            attribute is None or is_plain_batches(attribute) or is_a(attribute, (type, nn.Module, Callback, DataModule))
        )
        if skipped or by_loader or not (attributes_of(attribute) or is_container(attribute)):
            continue
        kind = "data set" if part == "dataset" else "loader"
        in_workers = part == "dataset" and bool(loader.num_workers)
        # the state of a stream is the position of its next pass, and each pass begins at the start
        by_protocol = (
            has_protocol(attribute) and not in_workers and (of_library or not is_a(attribute, IterableDataset))
        )
        yield Owner(f"{word} of the {name}", attribute, kind, (), trains, in_workers, by_protocol)


def _with_state(value: Any) -> Any:
    """Return the object of a bound method, and the function of a `functools.partial`."""
    while is_a(value, (partial, MethodType)):
        value = value.func if is_a(value, partial) else value.__self__
    return value


def _has(owner: Any, name: str) -> bool:
    try:
        return hasattr(owner, name)
    except Exception:  # noqa: BLE001  the user's `__getattr__`
        return False


def within(owners: list[Owner], context: SnapshotContext, types: dict[str, type] | None) -> Iterator[Owner]:
    """Yield the owners, and the user's objects that they hold.

    Args:
        context: The run's own parts, which are not searched.
        types: The types by place when training began, None at that moment. An object of another type is a value.
    """
    ids = {id(owner.held) for owner in owners}
    queue = [(owner, 0) for owner in owners]
    for owner, depth in queue:  # it grows while it is read: breadth first
        yield owner
        kind: type = type(owner.held)
        for base in users_classes(kind):
            if id(base) not in ids:
                ids.add(id(base))
                queue.append((Owner(f"class {base.__module__}.{base.__qualname__}", base, "class"), depth))
        if depth >= _DEEPEST or owner.by_protocol or (is_of_torch(kind) and not _holds_data(owner.held)):
            continue
        for name, value in owner.attributes():
            place = f"{owner.place}.{name}"
            if (
                id(value) in ids
                or not _is_owner(value, context)
                or (types is not None and types.get(place) is not type(value))
            ):
                continue
            ids.add(id(value))
            inner = Owner(place, value, owner.kind, read=owner.read, in_workers=owner.in_workers)
            queue.append((inner, depth + 1))


def _is_owner(value: Any, context: SnapshotContext) -> bool:
    if id(value) in context.names or has_protocol(value) or is_container(value) or is_a(value, FunctionType):
        return False
    return _holds_data(value) or is_users_object(value)


def _holds_data(value: Any) -> bool:
    """Whether a value is a data set or sampler of torch, which may hold the user's."""
    return is_a(value, (Dataset, Sampler, BatchSampler)) and not is_metric(value)
