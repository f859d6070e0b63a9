"""Checkpoints of a Fabric: modules, optimizers, loaders and plain values, in the Trainer's formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from lightlib.checkpoint import formats
from lightlib.checkpoint.directory.tensors import read_tensors
from lightlib.checkpoint.frozen import complete
from lightlib.checkpoint.storage import filesystem
from lightlib.checkpoint.storage.content import FORMAT, OURS
from lightlib.checkpoint.storage.label import Label
from lightlib.core.resume.save import write
from lightlib.data.seed import part_random_numbers, rng_state, set_rng_state
from lightlib.errors import (
    ArgumentTypeError,
    CheckpointError,
    MisconfigurationException,
    check_type,
    nearest,
    shown,
    wrong_type,
)
from lightlib.fabric.loader import FabricLoader
from lightlib.fabric.placed_objects import PlacedObjects
from lightlib.fabric.wrapped import FabricModule, FabricOptimizer
from lightlib.strategies.strategy import Strategy

_FABRIC = "fabric"  # the entry of a Fabric within `OURS`
_PARTS = ("state_dict", "optimizer_states", "values")  # of a directory: the first two may be sharded


# writing
def save(
    placed: PlacedObjects,
    path: Any,
    state: Any,
    filters: Any,
    storage_options: Any = None,
) -> None:
    """Write a checkpoint; see `Fabric.save`."""
    _check_path("save", path)
    check_state("save", state)
    check_filters(filters, state)
    strategy, kind = placed.strategy, placed.strategy.checkpoint_format
    parts: dict[str, dict[str, Any]] = {part: {} for part in _PARTS}
    names: dict[str, list[list[str]]] = {}
    for key, value in state.items():
        part, saved = _state_of(value, kind == "directory", strategy)
        if type(value) is FabricOptimizer and isinstance(saved, dict):
            saved, names[key] = _without_names(saved, value)
        chosen = filters.get(key) if filters else None
        if chosen is not None and isinstance(saved, Mapping):
            saved = {name: entry for name, entry in saved.items() if chosen(name, entry)}
        parts[part][key] = saved
    entry = {"keys": list(state), "optimizer_names": names, **_to_resume(placed, state)}
    ours = {"format": FORMAT, "torch": str(torch.__version__), "world_size": strategy.world_size, _FABRIC: entry}
    flat = {key: part[key] for key in state for part in parts.values() if key in part}
    content = {**(parts if kind == "directory" else flat), OURS: ours}
    write(content, os.fspath(path), Label(), kind, strategy, storage_options)
    if strategy.is_global_zero and strategy.extension.store is None and not filesystem.is_remote(os.fspath(path)):
        folder, name = os.path.split(os.path.abspath(filesystem.local_path(path)))
        filesystem.remove_leftovers(folder, of=name)  # of a process that was killed while it wrote this file


def _state_of(value: Any, sharded: bool, strategy: Strategy) -> tuple[str, Any]:
    """Return the part of a checkpoint to which a value of the user's belongs, and its state."""
    if isinstance(value, FabricModule):
        placed = vars(value)["_placement"].strategy
        return "state_dict", placed.sharded_module_state() if sharded else placed.module_state()
    if type(value) is FabricOptimizer:
        if sharded and not value.is_plain:
            return "optimizer_states", value.placements[0].strategy.sharded_optimizer_state(value.optimizer)
        return "optimizer_states", value.state_dict()
    if isinstance(value, FabricLoader):
        saved = value.state_dict()
        if strategy.world_size > 1 and not all(strategy.collectives.all_gather_object(value.is_sharded)):
            saved["ranks"] = strategy.collectives.all_gather_object(saved["data"])
        return "values", saved
    return "values", value.state_dict() if is_stateful(value) else value


def _without_names(state: dict[str, Any], optimizer: FabricOptimizer) -> tuple[dict[str, Any], list[list[str]]]:
    """Return the state in torch's form, and the names of the parameters of each group."""
    parameter_names = (
        [] if optimizer.is_plain else optimizer.placements[0].strategy.parameter_names(optimizer.optimizer)
    )
    groups = state.get("param_groups", [])
    names_by_group = [group.get("param_names", names) for group, names in zip(groups, parameter_names, strict=False)]
    plain = [{key: value for key, value in group.items() if key != "param_names"} for group in groups]
    return ({**state, "param_groups": plain} if groups else state), names_by_group


def _to_resume(placed: PlacedObjects, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rest of the state for an exact resume; random numbers only with a loader."""
    entry: dict[str, Any] = {"scaler": {} if placed.scaler is None else placed.scaler.state_dict()}
    modules = {key: vars(value)["_placement"].strategy for key, value in state.items() if _is_module(value)}
    entry["strategies"] = {key: saved for key, strategy in modules.items() if (saved := strategy.state_dict())}
    local: dict[str, Any] = {"place": placed.strategy.data_place}
    local["buffers"] = {key: buffers for key, strategy in modules.items() if (buffers := strategy.own_buffers())}
    if any(isinstance(value, FabricLoader) for value in state.values()):
        local["rng"] = {**rng_state(), **placed.strategy.accelerator.rng_state()}
    entry["ranks"] = placed.strategy.collectives.all_gather_object(local)
    return entry


# reading
def load(
    placed: PlacedObjects,
    path: Any,
    state: Any,
    strict: bool,
    weights_only: bool | None,
) -> dict[str, Any]:
    """Restore the objects in `state`, and return the rest of the checkpoint; see `Fabric.load`."""
    _check_path("load", path)
    content = _read(placed, path, weights_only)
    entry = unpacked(content)
    if not state:
        return {key: read_tensors(value) for key, value in content.items()}
    check_state("load", state)
    restore(path, content, state, strict, placed.strategy, entry.get("optimizer_names", {}))
    _resume(placed, state, entry)
    return {key: read_tensors(value) for key, value in content.items()}


def restore(
    path: Any,
    content: dict[str, Any],
    state: Any,
    strict: bool,
    strategy: Strategy,
    names: Mapping[str, list[list[str]]],
) -> None:
    """Restore the objects in `state` from the entries of a checkpoint, which are taken out of it.

    Args:
        names: The names of the parameters in the groups of each optimizer.
    """
    _check_fits(path, state, content, strict)
    if isinstance(module := state.get("state_dict"), (FabricModule, nn.Module)):  # of a file of the Trainer
        complete(content, module.state_dict, strategy.collectives.all_gather_object, strict)
    for key, value in list(state.items()):
        if key in content:
            saved = content.pop(key)
            with _reading(path, key):
                if isinstance(value, (FabricModule, FabricOptimizer, nn.Module, Optimizer)):
                    _load_tensors(value, saved, strict, names.get(key))
                elif isinstance(value, FabricLoader):
                    value.load_state_dict(_of_this_rank(read_tensors(saved), strategy))
                elif is_stateful(value):
                    value.load_state_dict(read_tensors(saved))
                else:
                    state[key] = read_tensors(saved)


def load_raw(placed: PlacedObjects, path: Any, obj: Any, strict: bool, weights_only: bool | None) -> None:
    """Load the state of one module or optimizer; see `Fabric.load_raw`."""
    _check_path("load_raw", path)
    if not isinstance(obj, (FabricModule, nn.Module, Optimizer)):
        fix = "fabric.load_raw('weights.pt', model); fabric.load reads several objects."
        raise wrong_type("fabric.load_raw", "obj", obj, "a module or an optimizer", fix=fix)
    restore_object(path, _read(placed, path, weights_only), obj, strict)


def restore_object(path: Any, content: dict[str, Any], obj: Any, strict: bool) -> None:
    """Load the state of one module or optimizer from the content of a file."""
    content.pop(OURS, None)
    with _reading(path, type(obj).__name__):
        _load_tensors(obj, content, strict, None)


def _read(placed: PlacedObjects, path: Any, weights_only: bool | None) -> dict[str, Any]:
    """Return the content on every process, or raise the first error on all of them."""
    content: dict[str, Any] = {}
    error: CheckpointError | None = None
    try:
        store = placed.strategy.extension.store
        if store is not None:
            content = store.load(os.fspath(path), weights_only)
        else:
            content = formats.read(os.fspath(path), "cpu", trust=formats.is_trusted(weights_only))
    except CheckpointError as raised:
        error = raised.with_traceback(None)
    errors = placed.strategy.collectives.all_gather_object(error)
    first = next((failure for failure in errors if failure is not None), None)
    if first is not None:
        raise first
    return content


def unpacked(content: dict[str, Any]) -> dict[str, Any]:
    """Take the entry of a Fabric out of a checkpoint, which then has the names of the user's state."""
    ours = content.get(OURS)
    entry: dict[str, Any] | None = ours.get(_FABRIC) if isinstance(ours, Mapping) else None
    if entry is None:
        return {}
    del content[OURS]
    if set(content) == set(_PARTS) and set(entry["keys"]) != set(_PARTS):
        parts = [content.pop(part) for part in _PARTS]
        content.update({key: part[key] for key in entry["keys"] for part in parts if key in part})
    return entry


def _check_fits(path: Any, state: Mapping[str, Any], content: Mapping[str, Any], strict: bool) -> None:
    missing = [key for key in state if key not in content]
    if strict and missing:
        raise CheckpointError(
            f"{os.fspath(path)!r} has no entry {missing[0]!r}.{nearest(missing[0], content)}",
            expected=f"the names of its entries: {', '.join(map(repr, content)) or 'it has none'}.",
            fix="correct the name, or fabric.load(path, state, strict=False) to leave it as it is.",
        )
    for key, value in state.items():
        stateful = isinstance(value, (FabricModule, FabricLoader)) or type(value) is FabricOptimizer
        if key in content and (stateful or is_stateful(value)) and not isinstance(content[key], Mapping):
            raise CheckpointError(
                f"{os.fspath(path)!r} has {shown(content[key])} under {key!r}.",
                expected=f"the state of a {type(value).__name__}.",
                fix="use the names with which the checkpoint was saved.",
            )


def _load_tensors(target: Any, saved: Any, strict: bool, names: list[list[str]] | None) -> None:
    """Load the state of a module or an optimizer; a wrapped one keeps its shard."""
    if isinstance(target, FabricModule):
        strategy = vars(target)["_placement"].strategy
        strategy.load_module_state(saved if strategy.reads_parts else read_tensors(saved), strict)
    elif type(target) is FabricOptimizer:
        strategy = target.placements[0].strategy
        tensors = saved if strategy.reads_parts and not target.is_plain else read_tensors(saved)
        if names and strategy.reads_parts and not target.is_plain:
            groups = [
                {**g, "param_names": param_names}
                for g, param_names in zip(tensors["param_groups"], names, strict=False)
            ]
            tensors = {**tensors, "param_groups": groups}
        target.load_state_dict(tensors)
    elif isinstance(target, nn.Module):
        target.load_state_dict(read_tensors(saved), strict=strict)
    else:
        target.load_state_dict(read_tensors(saved))


def _of_this_rank(saved: dict[str, Any], strategy: Strategy) -> dict[str, Any]:
    """Return the state of a loader on this process, where each one had its own."""
    ranks = saved.pop("ranks", None)
    if ranks is not None and len(ranks) == strategy.world_size:
        saved["data"] = ranks[strategy.global_rank]
    return saved


def _resume(placed: PlacedObjects, state: Mapping[str, Any], entry: Mapping[str, Any]) -> None:
    """Restore the rest of the state for an exact resume."""
    scaler = placed.scaler
    if scaler is not None and entry.get("scaler") and any(type(v) is FabricOptimizer for v in state.values()):
        scaler.load_state_dict(entry["scaler"])
    ranks, strategy = entry.get("ranks") or [], placed.strategy
    places = strategy.collectives.all_gather_object(strategy.data_place)
    same = places == [rank_state["place"] for rank_state in ranks]
    local: dict[str, Any] = ranks[strategy.global_rank if strategy.world_size > 1 else 0] if same else {}
    for key, value in state.items():
        if _is_module(value):
            strategy_of_module = vars(value)["_placement"].strategy
            strategy_of_module.load_state_dict(entry.get("strategies", {}).get(key, {}))
            strategy_of_module.load_own_buffers(local.get("buffers", {}).get(key, {}))
    if not any(isinstance(value, FabricLoader) for value in state.values()):
        return
    if "rng" in local:
        set_rng_state(local["rng"])
        strategy.accelerator.set_rng_state(local["rng"])
    elif ranks and "rng" in ranks[0]:
        part_random_numbers(ranks[0]["rng"], strategy.data_place)


# checks
def _is_module(value: Any) -> bool:
    return isinstance(value, FabricModule)


def is_stateful(value: Any) -> bool:
    """Whether a value saves and loads its own state."""
    return all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))


def _check_path(call: str, path: Any) -> None:
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise wrong_type(f"fabric.{call}", "path", path, "a path or a URL", "'run.ckpt'")


def check_state(call: str, state: Any) -> None:
    """Raise unless `state` is a dict of objects and values by name."""
    if not isinstance(state, Mapping) or isinstance(state, nn.Module):
        raise ArgumentTypeError(
            f"fabric.{call} got a {type(state).__name__} as the state.",
            expected="a dict of objects and values by name.",
            fix=f"fabric.{call}(path, {{'model': model, 'optimizer': optimizer}})",
        )
    wrong = next((key for key in state if not isinstance(key, str) or key == OURS), None)
    if wrong is not None:
        raise MisconfigurationException(
            f"fabric.{call} got a state with the name {shown(wrong)}.",
            expected=f"strings other than {OURS!r}, which holds what an exact resume needs.",
            fix="choose another name.",
        )


def check_filters(filters: Mapping[str, Callable[[str, Any], bool]] | None, state: Mapping[str, Any]) -> None:
    """Raise unless `filters` has functions for names of the state."""
    if filters is None:
        return
    expected = "a dict of functions by the names of the state"
    check_type("fabric.save", "filter", filters, Mapping, expected, "{'model': lambda key, value: 'frozen' not in key}")
    for key, chosen in filters.items():
        if key not in state:
            raise MisconfigurationException(
                f"fabric.save got a filter for {key!r}, which is not in the state.{nearest(str(key), state)}",
                expected=f"one of {', '.join(map(repr, state))}.",
                fix="correct the name, or leave the filter out.",
            )
        if not callable(chosen):
            fix = f"filter={{{key!r}: lambda key, value: True}}"
            raise wrong_type("fabric.save", f"filter[{key!r}]", chosen, "a function (key, value) -> bool", fix=fix)


@contextmanager
def _reading(path: Any, key: str) -> Iterator[None]:
    """Turn torch's errors about a state that does not fit into a CheckpointError."""
    try:
        yield
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, MisconfigurationException):
            raise
        raise CheckpointError(
            f"The entry {key!r} of {os.fspath(path)!r} does not fit: {error}",
            expected="the state of the same object: names, shapes and groups.",
            fix="build the object as in the saved run, or fabric.load(path, state, strict=False) to leave out keys.",
        ) from error
