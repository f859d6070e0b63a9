"""Memory that each process will hold: parameters, gradients and optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedParameter

from lightlib.tree import tensors_in

# How many tensors of its parameter's size an optimizer of torch keeps, by the settings of the group.
_TENSORS: dict[str, Callable[[Mapping[str, Any]], int]] = {
    "ASGD": lambda group: 1,
    "Adadelta": lambda group: 2,
    "Adagrad": lambda group: 1,
    "Adam": lambda group: 2 + bool(group.get("amsgrad")),
    "AdamW": lambda group: 2 + bool(group.get("amsgrad")),
    "Adamax": lambda group: 2,
    "Muon": lambda group: 1,
    "NAdam": lambda group: 2,
    "RAdam": lambda group: 2,
    "RMSprop": lambda group: 1 + bool(group.get("centered")) + bool(group.get("momentum")),
    "Rprop": lambda group: 2,
    "SGD": lambda group: int(bool(group.get("momentum"))),
    "SparseAdam": lambda group: 2,
}


@dataclass
class TrainingMemory:
    """Bytes of one process while it trains.

    Attributes:
        parameters, gradients: The shards that this process holds.
        optimizer_state: None where it is not known before the first step.
    """

    parameters: int
    gradients: int
    optimizer_state: int | None


def expected_memory(module: nn.Module, optimizers: Iterable[Any], *, as_it_is: bool = False) -> TrainingMemory:
    """Return the memory of this process from the first optimizer step on.

    The optimizer state is measured if there is any, else computed for this kind of optimizer. Parameters that FSDP has
    gathered are dropped first, unless `as_it_is`.

    Example:
        >>> import torch
        >>> layer = nn.Linear(3, 2)
        >>> expected_memory(layer, [torch.optim.AdamW(layer.parameters())])
        TrainingMemory(parameters=32, gradients=32, optimizer_state=64)
    """
    if not as_it_is:
        reshard(module)
    parameters = list(module.parameters())
    state: int | None = 0
    for optimizer in optimizers:
        optimizer_state = _state_of(optimizer)
        state = None if optimizer_state is None or state is None else state + optimizer_state
    return TrainingMemory(sum(map(_bytes, parameters)), sum(_bytes(p) for p in parameters if p.requires_grad), state)


def reshard(module: nn.Module) -> None:
    """Drop parameters that FSDP has gathered; it leaves the outermost ones gathered after a forward."""
    for part in module.modules():
        if hasattr(part, "reshard") and hasattr(part, "unshard"):
            part.reshard()  # type: ignore[operator]


def _state_of(optimizer: Any) -> int | None:
    optimizer = getattr(optimizer, "optim", optimizer)  # with ZeRO, the one that has this process's part
    present = sum(map(_bytes, tensors_in(optimizer.state)))
    if present:
        return present
    kinds = (kind for kind in type(optimizer).__mro__ if kind.__module__.startswith("torch.optim"))
    count = next((_TENSORS[kind.__name__] for kind in kinds if kind.__name__ in _TENSORS), None)
    if count is None:
        return None
    groups = optimizer.param_groups
    if not any(group["params"] for group in groups):  # ZeRO-3 has taken them away
        return None
    return sum(count(group) * _bytes(p) for group in groups for p in group["params"] if p.requires_grad)


def _bytes(tensor: Any) -> int:
    if isinstance(tensor, UninitializedParameter):
        return 0
    part = local_part(tensor)
    return int(part.numel() * part.element_size())


def local_part(tensor: Any) -> Any:
    """Return the shard of a tensor that this process holds: with FSDP or ZeRO-3, or the full tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else getattr(tensor, "ds_tensor", tensor)


def described(several: Sequence[TrainingMemory], total: float) -> str:
    """Return the memory of all processes as text, from the least to the most.

    Args:
        several: Of each process.
        total: The bytes of all parameters of the module.

    Example:
        >>> described([TrainingMemory(40, 40, 80), TrainingMemory(60, 60, 120)], 100)
        'parameters 40 to 60 B of 100 B, gradients 40 to 60 B, optimizer state 80 to 120 B'
    """
    states = [memory.optimizer_state for memory in several]
    known_states = [state for state in states if state is not None]
    state = (
        f"optimizer state {_span(known_states)}"
        if len(known_states) == len(states)
        else "the optimizer's state from its first step"
    )
    return (
        f"parameters {_span([memory.parameters for memory in several])} of {size(total)}, "
        f"gradients {_span([memory.gradients for memory in several])}, {state}"
    )


def _span(values: Sequence[int]) -> str:
    least, most = size(min(values)), size(max(values))
    if least == most:
        return most
    number, _, unit = least.partition(" ")
    return f"{number if most.endswith(f' {unit}') else least} to {most}"


def size(count: float) -> str:
    """Write a number of bytes in about three digits.

    Example:
        >>> size(0), size(848), size(2_444_000), size(140e9)
        ('0 B', '848 B', '2.44 MB', '140 GB')
    """
    return three_digits(count, ("B", "kB", "MB", "GB", "TB", "PB"))


def three_digits(value: float, units: Sequence[str]) -> str:
    """Write a number in about three digits with one of the units, each of which is a thousand of the one before."""
    unit = 0
    while value >= 999.5 and unit < len(units) - 1:
        value, unit = value / 1000, unit + 1
    digits = 0 if not unit or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {units[unit]}".rstrip()
