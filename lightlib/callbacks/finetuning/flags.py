"""Flags: which parameters of a module are trained, and which batch norms track their statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from lightlib.torch_private import AnyBatchNorm

Flags = dict[str, dict[str, bool]]


def flags_of(module: nn.Module) -> Flags:
    """Return the flags of the parameters and batch norms of this process, by name."""
    norms = ((name, part) for name, part in module.named_modules() if isinstance(part, AnyBatchNorm))
    return {
        "requires_grad": {name: parameter.requires_grad for name, parameter in module.named_parameters()},
        "track_running_stats": {name: part.track_running_stats for name, part in norms},
    }


def joined(flags: Iterable[Flags]) -> Flags:
    """Return the flags of several processes as one; stages of a pipeline have different parameters."""
    together: Flags = {"requires_grad": {}, "track_running_stats": {}}
    for flag in flags:
        for kind, names in flag.items():
            together[kind] |= names
    return together


def set_flags(module: nn.Module, flags: Mapping[str, Mapping[str, Any]], later: Mapping[str, Any]) -> None:
    """Set the flags of those parameters and batch norms that this process has.

    Args:
        later: User state that is restored when training begins: the flags that it has are left to it, so that the
            changes since the start of training stay those of an uninterrupted run.
    """
    parameters, values = later.get("requires_grad", {}), later.get("values", {})
    for name, parameter in module.named_parameters():
        trains = flags.get("requires_grad", {}).get(name, parameter.requires_grad)
        if parameters.get(name, parameter.requires_grad) != trains:
            parameter.requires_grad_(bool(trains))
    parts = dict(module.named_modules())
    for name, tracks in flags.get("track_running_stats", {}).items():
        part = parts.get(name)
        if isinstance(part, AnyBatchNorm) and "track_running_stats" not in values.get(f"module.{name}", {}):
            set_tracking(part, bool(tracks))


def set_tracking(norm: nn.Module, tracks: bool) -> None:
    """Let a batch norm update its running statistics in training mode, or not."""
    norm.track_running_stats = tracks  # type: ignore[assignment]
