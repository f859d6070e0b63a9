"""Torchmetrics: recognises them without importing the package; saves, loads and merges states."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightlib.tree import map_tensors


def is_metric(value: Any) -> bool:
    """Whether `value` is a torchmetrics.Metric; does not import torchmetrics to find out."""
    torchmetrics = sys.modules.get("torchmetrics")
    return torchmetrics is not None and issubclass(type(value), torchmetrics.Metric)


def forward_value(metric: Any) -> Any:
    """Return the value of the metric's last `forward`."""
    value = getattr(metric, "_forward_cache", None)
    return value.detach().clone() if isinstance(value, Tensor) else value


def metric_state(metric: Any) -> dict[str, Any]:
    """Return the state of a metric for a checkpoint, without the graphs that its tensors may have."""
    return {"states": map_tensors(Tensor.detach, dict(metric.metric_state)), "updates": metric.update_count}


def load_metric_state(metric: Any, state: dict[str, Any]) -> None:
    """Load a state from `metric_state` onto the metric's device."""
    for name, value in state["states"].items():
        setattr(
            metric, name, [v.to(metric.device) for v in value] if isinstance(value, list) else value.to(metric.device)
        )
    metric._update_count = state["updates"]  # noqa: SLF001  torchmetrics has no setter
    metric._computed = None  # noqa: SLF001  likewise


def parts_of(metric: nn.Module) -> list[Any]:
    """Return a metric and those within it, as wrappers and sums of metrics have them."""
    return [part for part in metric.modules() if is_metric(part)]


def keep_local(outer: nn.Module) -> None:
    """Let a metric compute its value from its own state, also where there are several processes."""
    for metric in parts_of(outer):
        metric.distributed_available_fn = _not_distributed


def load_merged_states(metric: Any, states: Sequence[dict[str, Any]]) -> None:
    """Load the union of several states from `metric_state`, by the reductions that the metric declares.

    States without an update are left out, for their defaults would count in a mean.
    """
    used = [state for state in states if state["updates"]] or list(states[:1])
    if len(used) == 1:
        load_metric_state(metric, used[0])
        return
    merged = {
        name: _merged([state["states"][name] for state in used], reduction)
        for name, reduction in metric._reductions.items()  # noqa: SLF001  torchmetrics has no getter
    }
    load_metric_state(metric, {"states": merged, "updates": sum(state["updates"] for state in used)})


def _merged(values: list[Any], reduction: Any) -> Any:
    if isinstance(values[0], list):  # the values of each batch
        joined = [value for each in values for value in each]
        return reduction(joined) if reduction is not None and joined else joined
    stacked = torch.stack(values)
    return stacked if reduction is None else reduction(stacked)


def _not_distributed() -> bool:
    return False
