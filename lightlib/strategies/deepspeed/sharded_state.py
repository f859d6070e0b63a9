"""State that DeepSpeed has sharded: gathered by name, and sharded again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, distributed, nn

from lightlib.errors import CheckpointError
from lightlib.strategies.deepspeed.engine import EngineOptimizer
from lightlib.strategies.state_by_name import entries_by_name, numbered, renamed


def is_sharded(module: nn.Module) -> bool:
    """Whether ZeRO-3 has taken the parameters of `module` apart."""
    return any(hasattr(parameter, "ds_id") for parameter in module.parameters())


def _is_first() -> bool:
    return not distributed.is_initialized() or distributed.get_rank() == 0


# the module
def module_state(module: nn.Module, deepspeed: Any, optimizer: EngineOptimizer | None, half: bool) -> dict[str, Any]:
    """Return the full state of `module` on rank 0; an empty one on other ranks.

    If `half`, parameters are the float32 copies of the optimizer.
    """
    trained = optimizer.trained if optimizer is not None else set()
    state = dict(module.state_dict())
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if name not in state:
            continue
        if half and optimizer is not None and id(parameter) in trained and optimizer.is_sharded:
            whole = deepspeed.utils.safe_get_full_fp32_param(parameter)
            if whole is not None:
                state[name] = whole.detach().cpu() if _is_first() else None
        elif hasattr(parameter, "ds_id"):
            with deepspeed.zero.GatheredParameters([parameter]):
                state[name] = parameter.detach().cpu().clone() if _is_first() else None
    return state if _is_first() else {}


def load_module_state(module: nn.Module, state: Mapping[str, Any], strict: bool, deepspeed: Any) -> None:
    """Load a full state, the same on every process; names and shapes that do not match are refused in torch's words."""
    if not is_sharded(module):
        module.load_state_dict(state, strict=strict)
        return
    parameters = dict(module.named_parameters(remove_duplicate=False))
    expected = module.state_dict()
    wrong = []
    missing, unexpected = [n for n in expected if n not in state], [n for n in state if n not in expected]
    if strict and unexpected:
        wrong.append(f"Unexpected key(s) in state_dict: {', '.join(map(repr, unexpected))}.")
    if strict and missing:
        wrong.append(f"Missing key(s) in state_dict: {', '.join(map(repr, missing))}.")
    for name, parameter in parameters.items():
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        if name in state and tuple(state[name].shape) != shape:
            wrong.append(
                f"size mismatch for {name}: copying a param with shape {tuple(state[name].shape)} from checkpoint, "
                f"the shape in current model is {shape}."
            )
    if wrong:
        raise RuntimeError("\n\t".join([f"Error(s) in loading state_dict for {type(module).__name__}:", *wrong]))
    module.load_state_dict({name: value for name, value in state.items() if name not in parameters}, strict=False)
    for name, parameter in parameters.items():
        if name not in state:
            continue
        with torch.no_grad(), deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            if _is_first():
                parameter.data.copy_(state[name])


def set_masters(module: nn.Module, state: Mapping[str, Any], optimizer: EngineOptimizer, deepspeed: Any) -> None:
    """Give the float32 copies that the engine optimizes the values of `state`, which parameters have only rounded."""
    if not optimizer.is_sharded:
        return
    trained = optimizer.trained
    for name, parameter in module.named_parameters():
        if id(parameter) not in trained or name not in state:
            continue
        value = state[name].detach().float()
        if hasattr(parameter, "ds_id"):
            deepspeed.utils.safe_set_local_fp32_param(parameter, _part(value, parameter))
        elif hasattr(parameter, "_hp_mapping"):
            deepspeed.utils.safe_set_full_fp32_param(parameter, value)


def _part(value: Tensor, parameter: Any) -> Tensor:
    """Return this process's part of `value`, filled up with zeros as ZeRO-3 does."""
    size = parameter.ds_tensor.numel()
    group = parameter.ds_process_group
    rank = distributed.get_rank(group)
    flat = value.detach().flatten()
    padded = flat.new_zeros(size * distributed.get_world_size(group))
    padded[: flat.numel()] = flat
    return padded[rank * size : (rank + 1) * size].to(parameter.ds_tensor.device)


# the optimizer
def optimizer_state(optimizer: EngineOptimizer, deepspeed: Any) -> dict[str, Any]:
    """Return the full state of `optimizer` on rank 0 as one device would have it; empty on other ranks.

    Raises:
        CheckpointError: DeepSpeed keeps it where it cannot be gathered.
    """
    if _is_plain(optimizer):
        saved = optimizer.optim.state_dict()
        for entry, named in zip(saved["param_groups"], optimizer.names, strict=True):
            entry["param_names"] = list(named)
        return saved if _is_first() else {}
    flats = _flats(optimizer, "saved")
    entries = [optimizer.optim.state[flat] for flat in flats if flat in optimizer.optim.state]
    _link(optimizer)
    by_name: dict[str, Any] = {}
    for parameters, names in zip(optimizer.parameters, optimizer.names, strict=True):
        for parameter, name in zip(parameters, names, strict=True):
            if entries and parameter.requires_grad:
                by_name[name] = _entry(parameter, entries[0], flats[0], deepspeed)
    pairs = zip(optimizer.optim.param_groups, optimizer.names, strict=True)
    groups = [{**group, "params": names, "param_names": list(names)} for group, names in pairs]
    return numbered(by_name, groups) if _is_first() else {}


def _entry(parameter: nn.Parameter, like: Mapping[str, Any], flat: Tensor, deepspeed: Any) -> dict[str, Any]:
    """Return the state of one parameter; `like` is that of a flat piece of several."""
    entry: dict[str, Any] = {}
    for key, value in like.items():
        if isinstance(value, Tensor) and value.shape == flat.shape and value.dim() > 0:
            value = deepspeed.utils.safe_get_full_optimizer_state(parameter, key)  # noqa: PLW2901  all of it
        if _is_first():
            entry[key] = value.detach().cpu().clone() if isinstance(value, Tensor) else value
    return entry


def load_optimizer_state(optimizer: EngineOptimizer, saved: Mapping[str, Any], deepspeed: Any) -> None:
    """Load a full state, of this or an optimizer on one device; each process keeps its shard.

    Raises:
        CheckpointError: The groups differ, or DeepSpeed keeps the state where it cannot be set.
    """
    inner = optimizer.optim
    groups, by_name = entries_by_name(saved, len(inner.param_groups), [n for names in optimizer.names for n in names])
    if _is_plain(optimizer):
        inner.load_state_dict(numbered(by_name, renamed(groups, optimizer.names)))
        return
    flats = _flats(optimizer, "loaded")
    for group, live in zip(groups, inner.param_groups, strict=True):
        live.update({key: value for key, value in group.items() if key not in ("params", "param_names")})
    if not by_name:
        return
    named = [
        (name, parameter)
        for names, parameters in zip(optimizer.names, optimizer.parameters, strict=True)
        for name, parameter in zip(names, parameters, strict=True)
        if name in by_name and parameter.requires_grad
    ]
    spread = [key for key, value in by_name[named[0][0]].items() if isinstance(value, Tensor) and value.dim() > 0]
    like = {key: value for key, value in by_name[named[0][0]].items() if key not in spread}
    for flat in flats:
        scalars = {key: value.clone() if isinstance(value, Tensor) else value for key, value in like.items()}
        inner.state[flat] = {**scalars, **{key: torch.zeros_like(flat) for key in spread}}
    _link(optimizer)
    for name, parameter in named:
        for key in spread:
            value = by_name[name][key]
            if hasattr(parameter, "ds_id"):
                deepspeed.utils.safe_set_local_optimizer_state(parameter, _part(value, parameter), key)
            else:
                deepspeed.utils.safe_set_full_optimizer_state(parameter, value.to(parameter.device), key)


def _is_plain(optimizer: EngineOptimizer) -> bool:
    """Whether the user's optimizer has one full tensor for each parameter: without ZeRO."""
    full = [p for group in optimizer.optim.param_groups for p in group["params"]]
    params = [p for group in optimizer.parameters for p in group]
    return len(full) == len(params) and all(a.shape == b.shape for a, b in zip(full, params, strict=True)) and not any(
        hasattr(p, "ds_id") or hasattr(p, "_hp_mapping") for p in params
    )  # fmt: skip


def _flats(optimizer: EngineOptimizer, action: str) -> list[Any]:
    """Return this process's flat pieces of all parameters, by which the user's optimizer knows its state.

    Raises:
        CheckpointError: They are somewhere else.
    """
    inner = optimizer.engine.optimizer
    flats = getattr(inner, "single_partition_of_fp32_groups", None) or getattr(
        inner, "fp32_partitioned_groups_flat", None
    )
    swapped = getattr(inner, "swap_optimizer", False)
    if not flats or swapped:
        where = "has swapped it out to NVMe" if swapped else f"keeps it in its {type(inner).__name__}"
        raise CheckpointError(
            f"The optimizer's state cannot be {action}: DeepSpeed {where}.",
            expected="a stage of ZeRO (1, 2 or 3), with the state in the memory of the GPU or CPU.",
            fix="ModelCheckpoint(save_weights_only=True), or another stage or offload device.",
        )
    return list(flats)


def _link(optimizer: EngineOptimizer) -> None:
    """Let DeepSpeed find the state of each parameter in the flat pieces (stages 1 and 2).

    It does so itself after the first group has stepped, and then forgets the groups that come after.
    """
    inner = optimizer.engine.optimizer
    link = getattr(inner, "_lazy_init_hp_params_optimizer_state", None)
    if link is not None and all(flat in optimizer.optim.state for flat in inner.single_partition_of_fp32_groups):
        inner._hp_optimizer_states_linked = False  # noqa: SLF001  not possible otherwise
        link()
