"""Dummy evaluation steps, which keep ranks in step when they have different numbers of batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from lightlib.core.metrics.errors import is_metric
from lightlib.core.metrics.results import Results, Table

__all__ = ["run_dummy_step"]


def run_dummy_step(
    results: Results, module: nn.Module, step: Callable[..., Any], batch: Any, i: int, loader: int, several: bool
) -> None:
    """Run an evaluation step of which nothing is kept: neither what it returns or logs, nor its torchmetrics' updates.

    Args:
        results: Logs into a table that is thrown away.
        module: Its torchmetrics are put back.
        step: With parameters that all processes hold together, so that all must run it as often.
        batch, i, loader: What it is called with.
        several: Whether it takes the number of the loader.
    """
    table = results.table
    results.table = scratch = Table(training=False)
    scratch.num_loaders, scratch.loader, scratch.batch = table.num_loaders, loader, batch
    logged = [slot.metric for slot in table.slots.values() if slot.metric is not None]
    metrics = {id(part): part for part in (*module.modules(), *logged) if is_metric(part)}
    copies: dict[int, Any] = {}
    kept = [(metric, _state(metric, copies)) for metric in metrics.values()]
    try:
        step(batch, i, loader) if several else step(batch, i)
    finally:
        results.table = table
        for metric, state in kept:
            for name in vars(metric).keys() - state.keys():
                del vars(metric)[name]
            vars(metric).update(state)


def _state(metric: Any, copies: dict[int, Any]) -> dict[str, Any]:
    """Return a metric's attributes such that an update leaves them as they are; what metrics share stays shared."""

    def copied(value: Any) -> Any:
        if isinstance(value, Tensor):
            return copies.setdefault(id(value), value.clone())
        return copies.setdefault(id(value), list(value)) if isinstance(value, list) else value

    state = {name: copied(value) for name, value in vars(metric).items()}
    return {**state, "_buffers": {name: copied(value) for name, value in state["_buffers"].items()}}
