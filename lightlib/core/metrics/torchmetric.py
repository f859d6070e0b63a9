"""Torchmetrics: recognises them without importing the package, and saves and loads their states."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor


def is_metric(value: Any) -> bool:
    """Whether `value` is a torchmetrics.Metric; does not import torchmetrics to find out."""
    torchmetrics = sys.modules.get("torchmetrics")
    return torchmetrics is not None and isinstance(value, torchmetrics.Metric)


def forward_value(metric: Any) -> Any:
    """Return the value of the metric's last `forward`."""
    value = getattr(metric, "_forward_cache", None)
    return value.detach().clone() if isinstance(value, Tensor) else value


def metric_state(metric: Any) -> dict[str, Any]:
    """Return the state of a metric for a checkpoint."""
    return {"states": dict(metric.metric_state), "updates": metric.update_count}


def load_metric_state(metric: Any, state: dict[str, Any]) -> None:
    """Load a state from `metric_state` onto the metric's device."""
    for name, value in state["states"].items():
        setattr(
            metric, name, [v.to(metric.device) for v in value] if isinstance(value, list) else value.to(metric.device)
        )
    metric._update_count = state["updates"]  # noqa: SLF001  torchmetrics has no setter
    metric._computed = None  # noqa: SLF001  likewise
