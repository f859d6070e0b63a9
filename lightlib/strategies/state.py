"""State by fully qualified name: gathered from any placement, and sharded to any placement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from lightlib.checkpoint.directory.tensors import LazyTensor, read_tensors
from lightlib.errors import CheckpointError, MisconfigurationException
from lightlib.strategies.by_parameter import with_parameters
from lightlib.tree import map_tensors

__all__ = [
    "has_dtensors",
    "load_module_state",
    "load_optimizer_state",
    "mark_placed",
    "module_state",
    "optimizer_state",
    "parameter_tensors",
    "place_parameter_tensors",
    "placed_by",
    "refuse_placed",
    "sharded_optimizer_state",
]

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
            f"{type(module).__name__} is sharded over processes by the strategy of another Trainer.",
            expected="one Trainer for all fits of a module, or a newly built module.",
            fix="use the same Trainer again; or save_checkpoint and load_from_checkpoint in between.",
        )


def module_state(module: nn.Module, partial: bool, order: Sequence[str] = ()) -> dict[str, Any]:
    """Return the full state of `module` on rank 0, on the CPU.

    On other ranks it is empty, unless each process has the full module anyway: then a hook that reads a checkpoint
    finds the same on all.

    Args:
        module: As it is sharded over all processes, each of which must call this.
        partial: Whether processes hold different parameters (stages of a pipeline, experts).
        order: The names of the module's state before it was sharded.
    """
    state = module.state_dict()
    if not partial and not any(isinstance(value, DTensor) for value in state.values()):
        return dict(state)
    kept = partial or distributed.get_rank() == 0
    own = {name: _whole(value, kept) for name, value in state.items()}
    if partial:
        merged = _with_missing(own)
        own = {name: merged[name] for name in (*order, *merged) if name in merged}
    return own if distributed.get_rank() == 0 else {}


def _whole(value: Any, kept: bool) -> Any:
    """Return the full tensor on the CPU; None where it is not kept. Every process takes part in gathering."""
    if not isinstance(value, DTensor):
        return value
    full = value.full_tensor()
    return full.cpu() if kept else None


def _with_missing(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return, on rank 0, `own` and the missing entries, each from the first process that has it."""
    names: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(names, list(own))
    owner: dict[str, int] = {}
    for rank, held in enumerate(names):
        for name in held:
            owner.setdefault(name, rank)
    rank = distributed.get_rank()
    mine = {
        name: map_tensors(lambda tensor: tensor.detach().cpu(), value)
        for name, value in own.items()
        if owner[name] == rank
    }
    parts: list[Any] | None = [None] * len(names) if rank == 0 else None
    distributed.gather_object(mine, parts, dst=0)
    if parts is None:
        return {}
    merged = {name: value for part in parts for name, value in part.items()}
    return {**merged, **own}


def load_module_state(module: nn.Module, state: Mapping[str, Any], strict: bool, known: Sequence[str]) -> None:
    """Load a full state; each process keeps its shard.

    Args:
        module: As it is sharded.
        state: By name, the same on every process.
        strict: Whether the names must match.
        known: The names of the module's state before it was sharded: entries of other ranks are not unexpected.
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
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    moved = value.detach().to(like.device)
    return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)


def parameter_tensors(tensors: Mapping[str, Tensor], partial: bool, order: Sequence[str]) -> dict[str, Tensor]:
    """Return full tensors by parameter name, on rank 0 and the CPU; empty on other ranks.

    Args:
        tensors: Placed as the parameters of this process are. Each process must call this.
        partial: As in :func:`module_state`.
        order: All parameters in the module's order.
    """
    first = distributed.get_rank() == 0
    full = {name: _whole(value, partial or first) for name, value in tensors.items()}
    if partial:
        merged = _with_missing(full)
        full = {name: merged[name] for name in (*order, *merged) if name in merged}
    return full if first else {}


def place_parameter_tensors(module: nn.Module, tensors: Mapping[str, Any], known: Sequence[str]) -> dict[str, Tensor]:
    """Return copies of the tensors of this process's parameters, placed as the parameters are.

    Args:
        module: As it is sharded.
        tensors: By parameter name, full, the same on every process.
        known: The names of the module's state before it was sharded.

    Raises:
        ValueError: A name or a shape does not fit.
    """
    matched = with_parameters(module, tensors, set(known))
    return {name: _cut(value, like).detach().to(like.device).clone() for name, value, like in matched}


def optimizer_state(
    optimizer: Optimizer, names: list[list[str]], partial: bool, order: Sequence[str]
) -> dict[str, Any]:
    """Return the full state of `optimizer` on rank 0 as one device would have it; empty on other ranks.

    Args:
        optimizer: Each process has the same groups.
        names: Of this process's parameters, for each group.
        partial: As in :func:`module_state`.
        order: All parameters in the module's order.
    """
    if hasattr(optimizer, "consolidate_state_dict"):  # ZeroRedundancyOptimizer
        optimizer.consolidate_state_dict(0)
        return optimizer.state_dict() if distributed.get_rank() == 0 else {}
    by_name, groups = _named(optimizer, names, partial, order)
    kept = partial or distributed.get_rank() == 0
    by_name = {name: _entry(entry, kept) for name, entry in by_name.items()}
    if partial:
        by_name = _with_missing(by_name)
    if distributed.get_rank() != 0:
        return {}
    return _by_index(by_name, groups)


def sharded_optimizer_state(
    optimizer: Optimizer, names: list[list[str]], partial: bool, order: Sequence[str]
) -> dict[str, Any]:
    """Return the local shard of the state of `optimizer`, numbered as :func:`optimizer_state` numbers all of it.

    A ZeroRedundancyOptimizer gives the full state, on rank 0.

    Args:
        optimizer, names, partial, order: As in :func:`optimizer_state`.
    """
    if hasattr(optimizer, "consolidate_state_dict"):
        return optimizer_state(optimizer, names, partial, order)
    return _by_index(*_named(optimizer, names, partial, order))


def _named(
    optimizer: Optimizer, names: list[list[str]], partial: bool, order: Sequence[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the local state by name, and the groups with the names of all processes."""
    saved = optimizer.state_dict()
    flat = [name for group in names for name in group]
    by_name = {flat[index]: entry for index, entry in saved["state"].items()}
    groups = [{**group, "params": list(own)} for group, own in zip(saved["param_groups"], names, strict=True)]
    if partial:
        every: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(every, names)
        place = {name: index for index, name in enumerate(order)}
        for index, group in enumerate(groups):
            merged = {name for one in every for name in one[index]}
            group["params"] = sorted(merged, key=lambda name: place.get(name, len(place)))
    return by_name, groups


def _entry(entry: Mapping[str, Any], kept: bool) -> dict[str, Any]:
    return {key: _whole(value, kept) for key, value in entry.items()}


def _by_index(by_name: Mapping[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Return torch's form, in which parameters are numbered through all groups; names go along."""
    index: dict[str, int] = {}
    for group in groups:
        for name in group["params"]:
            index[name] = len(index)
    numbered = [{**g, "params": [index[n] for n in g["params"]], "param_names": list(g["params"])} for g in groups]
    return {"state": {index[name]: entry for name, entry in by_name.items()}, "param_groups": numbered}


def load_optimizer_state(
    optimizer: Optimizer, saved: Mapping[str, Any], names: list[list[str]], order: Sequence[str]
) -> None:
    """Load a full state; each process keeps its shard.

    Args:
        optimizer: Of this process.
        saved: As :func:`optimizer_state` or an optimizer on one device returned it, the same on every process.
        names: Of this process's parameters, for each group.
        order: All parameters in the module's order: how they are numbered where no names were saved.

    Raises:
        CheckpointError: The groups differ, or a parameter has no state in a state that has that of other parameters.
    """
    if hasattr(optimizer, "consolidate_state_dict"):
        _load_zero(optimizer, read_tensors(saved))
        return
    groups = read_tensors(saved["param_groups"])
    if len(groups) != len(optimizer.param_groups):
        raise CheckpointError(
            f"The checkpoint's optimizer has {len(groups)} groups, this one has {len(optimizer.param_groups)}.",
            expected="the same groups in the same order.",
            fix="resume with the same configure_optimizers.",
        )
    by_name: dict[str, Any] = {}
    for group in groups:
        held = group.get("param_names") or [order[index] for index in group["params"]]
        by_name |= {n: saved["state"][i] for n, i in zip(held, group["params"], strict=True) if i in saved["state"]}
    state: dict[int, Any] = {}
    numbered = []
    count = 0
    for group, own, live in zip(groups, names, optimizer.param_groups, strict=True):
        for offset, (name, parameter) in enumerate(zip(own, live["params"], strict=True)):
            if name in by_name:
                state[count + offset] = {key: _cut(value, parameter) for key, value in by_name[name].items()}
        numbered.append({**_unnamed(group), "params": list(range(count, count + len(own)))})
        count += len(own)
    optimizer.load_state_dict({"state": state, "param_groups": numbered})


def _load_zero(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Load the state of a ZeroRedundancyOptimizer; it keeps its groups, which schedules write to."""
    live = optimizer.param_groups
    optimizer.load_state_dict({**saved, "param_groups": [_unnamed(group) for group in saved["param_groups"]]})
    for group, loaded in zip(live, optimizer.param_groups, strict=True):
        group.update(loaded)
    optimizer.param_groups = live  # torch has replaced them


def _unnamed(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "param_names"}
