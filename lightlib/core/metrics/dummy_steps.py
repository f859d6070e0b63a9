"""Dummy steps: run with all their effects on logs and metrics discarded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from lightlib.core.metrics.results import Results
from lightlib.core.metrics.slots import Table
from lightlib.core.metrics.torchmetric import is_metric


def run_dummy_step(
    results: Results,
    module: nn.Module,
    step: Callable[..., Any],
    batch: Any,
    i: int,
    loader: int,
    several: bool,
    training: bool = False,
) -> None:
    """Run a step and discard its output, its logged values and its torchmetrics' updates.

    An evaluation keeps ranks in lockstep by it when they have different numbers of batches.

    Args:
        step: Uses parameters sharded over all processes, so all must run it equally often.
        training: Whether it is the `training_step`.
    """
    table = results.table
    results.use(Table(training=training, endings=table.endings, loader=loader, batch=batch))
    logged = [slot.metric for slot in table.slots.values() if slot.metric is not None]
    metrics = {id(part): part for part in (*module.modules(), *logged) if is_metric(part)}
    copies: dict[int, Any] = {}
    kept = [(metric, _state(metric, copies)) for metric in metrics.values()]
    try:
        step(batch, i, loader) if several else step(batch, i)
    finally:
        results.use(table)
        for metric, state in kept:
            for name in vars(metric).keys() - state.keys():
                del vars(metric)[name]
            vars(metric).update(state)


def _state(metric: Any, copies: dict[int, Any]) -> dict[str, Any]:
    """Return copies of a metric's attributes that an update cannot change; shared values stay shared."""

    def copied(value: Any) -> Any:
        if isinstance(value, Tensor):
            return copies.setdefault(id(value), value.clone())
        return copies.setdefault(id(value), list(value)) if isinstance(value, list) else value

    state = {name: copied(value) for name, value in vars(metric).items()}
    return {**state, "_buffers": {name: copied(value) for name, value in state["_buffers"].items()}}
