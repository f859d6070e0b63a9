"""State by fully qualified name: gathered from any placement, and sharded to any placement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from lightlib.checkpoint.directory.tensors import LazyTensor, read_tensors
from lightlib.errors import CheckpointError, MisconfigurationException, owner
from lightlib.strategies.by_parameter import with_parameters
from lightlib.tree import map_tensors

_MARK = "_placed_by"


def has_dtensors(module: nn.Module) -> bool:
    """Return whether parameters of `module` are sharded as DTensors."""
    return any(isinstance(parameter, DTensor) for parameter in module.parameters())


class _Placement(NamedTuple):
    strategy: object
    is_sharded: Callable[[nn.Module], bool]


def mark_placed(module: nn.Module, strategy: object, is_sharded: Callable[[nn.Module], bool] = has_dtensors) -> None:
    """Mark `module` as placed by a strategy, so that another strategy refuses it while `is_sharded` holds."""
    object.__setattr__(module, _MARK, _Placement(strategy, is_sharded))  # a Module would register an attribute


def placed_by(module: nn.Module) -> object:
    """Return the strategy that has placed `module`, or None."""
    placement: _Placement | None = getattr(module, _MARK, None)
    return None if placement is None else placement.strategy


def refuse_placed(module: nn.Module) -> None:
    """Refuse a module that another strategy has sharded.

    Raises:
        MisconfigurationException: It is sharded.
    """
    placement: _Placement | None = getattr(module, _MARK, None)
    if placement is not None and placement.is_sharded(module):
        raise MisconfigurationException(
            f"{type(module).__name__} is sharded over processes by the strategy of another {owner()}.",
            expected=f"one {owner()} for all fits of a module, or a newly built module.",
            fix="use the same Trainer again; or save_checkpoint and load_from_checkpoint in between.",
        )


def module_state(module: nn.Module, partial: bool, order: Sequence[str] = ()) -> dict[str, Any]:
    """Return the full state of `module` on rank 0, on the CPU.

    On other ranks it is empty, unless each process has the full module anyway: then a hook that reads a checkpoint
    finds the same on all.
    """
    state = module.state_dict()
    if not partial and not any(isinstance(value, DTensor) for value in state.values()):
        return dict(state)
    return gathered(state, partial, order)


def gathered(own: Mapping[str, Any], partial: bool, order: Sequence[str] = ()) -> dict[str, Any]:
    """Return the full entries of all processes on rank 0, on the CPU; an empty dict on other ranks.

    Args:
        own: Those of this process, by name: tensors, or dicts of them. Each process must call this.
        partial: Whether processes hold different parameters (stages of a pipeline, experts).
        order: All names in the module's order.
    """
    first = distributed.get_rank() == 0
    full = {name: _full_value(value, partial or first) for name, value in own.items()}
    if partial:
        merged = _with_missing(full)
        full = {name: merged[name] for name in (*order, *merged) if name in merged}
    return full if first else {}


def _full_value(value: Any, kept: bool) -> Any:
    """Return the full tensor on the CPU; None where it is not kept. Every process takes part in gathering."""
    if isinstance(value, dict):
        return {key: _full_value(entry, kept) for key, entry in value.items()}
    if not isinstance(value, DTensor):
        return value
    full = value.full_tensor()
    return full.cpu() if kept else None


def _with_missing(local: Mapping[str, Any]) -> dict[str, Any]:
    """Return, on rank 0, `local` and the missing entries, each from the first process that has it."""
    names: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(names, list(local))
    owner = {name: rank for rank, rank_names in reversed([*enumerate(names)]) for name in rank_names}
    rank = distributed.get_rank()
    mine = {
        name: map_tensors(lambda tensor: tensor.detach().cpu(), value)
        for name, value in local.items()
        if owner[name] == rank
    }
    parts: list[Any] | None = [None] * len(names) if rank == 0 else None
    distributed.gather_object(mine, parts, dst=0)
    if parts is None:
        return {}
    merged = {name: value for part in parts for name, value in part.items()}
    return {**merged, **local}


def load_module_state(module: nn.Module, state: Mapping[str, Any], strict: bool, known: Sequence[str]) -> None:
    """Load a full state, the same on every process; each keeps its shard.

    The names that are `known` from before the module was sharded may be missing here: other ranks have them.
    """
    present = module.state_dict()
    elsewhere = set(known) - set(present)
    cut = {name: _cut(value, present.get(name)) for name, value in state.items() if name not in elsewhere}
    module.load_state_dict(cut, strict=strict)
    lacking = sorted(elsewhere - set(state))
    if strict and lacking:
        raise RuntimeError(f"Missing key(s) in state_dict: {', '.join(map(repr, lacking[:5]))}.")


def _cut(value: Any, like: Any) -> Any:
    """Return this process's part of `value`, placed as `like` is."""
    if isinstance(value, LazyTensor):
        if isinstance(like, DTensor) and value.shape == like.shape:
            return value.read_part(like)
        value = value.read()
    here = isinstance(value, DTensor)  # it is this process's part already
    if here or not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    moved = value.detach().to(like.device)
    return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)


def place_parameter_tensors(module: nn.Module, tensors: Mapping[str, Any], known: Sequence[str]) -> dict[str, Tensor]:
    """Return copies of the full `tensors` of this process's parameters, placed as the parameters are.

    Raises:
        ValueError: A name or a shape does not fit.
    """
    matched = with_parameters(module, tensors, set(known))
    return {name: _cut(value, like).detach().to(like.device).clone() for name, value, like in matched}


def optimizer_state(
    optimizer: Optimizer, names: list[list[str]], partial: bool, order: Sequence[str]
) -> dict[str, Any]:
    """Return the full state of `optimizer` on rank 0 as one device would have it; empty on other ranks.

    `names` are those of this process's parameters, for each group.
    """
    if hasattr(optimizer, "consolidate_state_dict"):  # ZeroRedundancyOptimizer
        optimizer.consolidate_state_dict(0)
        return optimizer.state_dict() if distributed.get_rank() == 0 else {}
    by_name, groups = _named(optimizer, names, partial, order)
    full = gathered(by_name, partial)
    return numbered(full, groups) if distributed.get_rank() == 0 else {}


def sharded_optimizer_state(
    optimizer: Optimizer, names: list[list[str]], partial: bool, order: Sequence[str]
) -> dict[str, Any]:
    """Return the local shard of the state of `optimizer`, numbered as :func:`optimizer_state` numbers all of it.

    A ZeroRedundancyOptimizer gives the full state, on rank 0.
    """
    if hasattr(optimizer, "consolidate_state_dict"):
        return optimizer_state(optimizer, names, partial, order)
    return numbered(*_named(optimizer, names, partial, order))


def _named(
    optimizer: Optimizer, names: list[list[str]], partial: bool, order: Sequence[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the local state by name, and the groups with the names of all processes."""
    saved = optimizer.state_dict()
    flat = [name for group in names for name in group]
    by_name = {flat[index]: entry for index, entry in saved["state"].items()}
    groups = [
        {**group, "params": list(group_names)} for group, group_names in zip(saved["param_groups"], names, strict=True)
    ]
    if partial:
        every: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(every, names)
        place = {name: index for index, name in enumerate(order)}
        for index, group in enumerate(groups):
            merged = {name for rank_names in every for name in rank_names[index]}
            group["params"] = sorted(merged, key=lambda name: place.get(name, len(place)))
    return by_name, [{**group, "param_names": group["params"]} for group in groups]


def numbered(by_name: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return torch's form of a state, in which parameters are numbered through all `groups` of names."""
    index = {name: number for number, name in enumerate(name for group in groups for name in group["params"])}
    state = {index[name]: entry for name, entry in by_name.items() if name in index}
    return {"state": state, "param_groups": [{**g, "params": [index[n] for n in g["params"]]} for g in groups]}


def load_optimizer_state(
    optimizer: Optimizer, saved: Mapping[str, Any], names: list[list[str]], order: Sequence[str]
) -> None:
    """Load a full state, of this or an optimizer on one device; each process keeps its shard.

    `names` are those of this process's parameters, for each group.

    Raises:
        CheckpointError: The groups differ.
    """
    if hasattr(optimizer, "consolidate_state_dict"):
        _load_zero(optimizer, read_tensors(saved))
        return
    groups, by_name = entries_by_name(saved, len(optimizer.param_groups), order)
    state = {
        name: {key: _cut(value, parameter) for key, value in by_name[name].items()}
        for group_names, live in zip(names, optimizer.param_groups, strict=True)
        for name, parameter in zip(group_names, live["params"], strict=True)
        if name in by_name
    }
    optimizer.load_state_dict(numbered(state, renamed(groups, names)))


def entries_by_name(
    saved: Mapping[str, Any], count: int, order: Sequence[str]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the groups of a saved optimizer state, and the state of each parameter by name.

    Where no names were saved, the parameters are numbered in this `order`.

    Raises:
        CheckpointError: There are not `count` groups.
    """
    groups: list[dict[str, Any]] = read_tensors(saved["param_groups"])
    if len(groups) != count:
        raise CheckpointError(
            f"The checkpoint's optimizer has {len(groups)} groups, this one has {count}.",
            expected="the same groups in the same order.",
            fix="resume with the same configure_optimizers.",
        )
    by_name: dict[str, Any] = {}
    for group in groups:
        group_names = group.get("param_names") or [order[index] for index in group["params"]]
        by_name |= {
            n: saved["state"][i] for n, i in zip(group_names, group["params"], strict=True) if i in saved["state"]
        }
    return groups, by_name


def _load_zero(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Load the state of a ZeroRedundancyOptimizer; it keeps its groups, which schedules write to."""
    live = optimizer.param_groups
    optimizer.load_state_dict({**saved, "param_groups": [_unnamed(group) for group in saved["param_groups"]]})
    for group, loaded in zip(live, optimizer.param_groups, strict=True):
        group.update(loaded)
    optimizer.param_groups = live  # torch has replaced them


def _unnamed(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "param_names"}


def renamed(groups: Sequence[Mapping[str, Any]], names: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Return saved groups with the names of this process's parameters."""
    return [{**_unnamed(group), "params": group_names} for group, group_names in zip(groups, names, strict=True)]
