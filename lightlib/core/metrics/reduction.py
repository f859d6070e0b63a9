"""What `self.log` collected, reduced over processes and over the parts of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightlib.core.metrics.errors import lacks_metric
from lightlib.core.metrics.results import Results, Slot, Table
from lightlib.strategies.strategy import Strategy

__all__ = ["Reduction", "in_parts"]

Key = tuple[str, str, int]


class Reduction:
    """Reduces the slots of a table over the processes of a run; every process calls it at the same moment.

    What each process has summed is exchanged as one object, so processes need not have logged the same names, or
    anything at all. Processes that read the same data count once.

    Args:
        strategy: Whose processes they are.
        metric_at: Returns the torchmetric at an attribute of the module.
    """

    def __init__(self, strategy: Strategy, metric_at: Callable[[str], Any]) -> None:
        self._strategy, self._metric_at = strategy, metric_at

    def __call__(self, table: Table) -> None:
        """Give each slot that was logged per epoch, and has not been reduced yet, its value over all processes."""
        due = {key: slot for key, slot in table.slots.items() if slot.on_epoch and slot.count and not slot.shared}
        mine = {key: _sums(slot) for key, slot in due.items()}
        parts = self._strategy.collectives.all_gather_object((self._strategy.data_place, mine))
        for key in sorted({key for _, sums in parts for key in sums}):
            one_per_place: dict[int, dict[str, Any]] = {}
            for place, sums in parts:
                if key in sums:
                    one_per_place.setdefault(place, sums[key])
            some = next(iter(one_per_place.values()))
            slot = table.slots.get(key) or _slot_like(some)
            table.slots[key] = slot
            if some["metric"]:
                value = self._metric(key, slot, some, parts)
            else:
                value = _merged([one_per_place[place] for place in sorted(one_per_place)])
            slot.share(value)

    def _metric(self, key: Key, slot: Slot, some: dict[str, Any], parts: list[Any]) -> Any:
        """Let torchmetrics synchronise by its own rules where the metric was updated, and tell everybody the value."""
        strategy = self._strategy
        places = {place for place, sums in parts if key in sums}
        everywhere = len({place for place, _ in parts})
        if some["attribute"] is None and len(places) < everywhere:
            raise lacks_metric(slot.name)
        whole = strategy.data.size == strategy.world_size
        holders = strategy.data.all_gather_object(slot.metric is not None and bool(slot.count)) if not whole else [True]
        value = None
        if any(holders):  # a process without a batch takes part with an empty metric
            if slot.metric is None:
                slot.metric = self._metric_at(some["attribute"])
            if slot.metric.process_group is None and not whole:
                slot.metric.process_group = strategy.data.group
                if strategy.data.size == 1:  # all others read the same batches
                    slot.metric.distributed_available_fn = _nobody
            slot.count = max(slot.count, 1)
            _fill_lists(slot.metric, [sums[key]["lists"] for _, sums in parts if key in sums])
            value = slot.compute_metric()
        if not whole:
            value = next((one for one in strategy.collectives.all_gather_object(value) if one is not None), None)
        return value


def _nobody() -> bool:
    return False


def _sums(slot: Slot) -> dict[str, Any]:
    slot.fold()
    fields = ("name", "suffix", "bar", "logger", "on_step", "on_epoch", "reduction", "weight", "rank_zero", "attribute")
    found = {field: getattr(slot, field) for field in fields}
    total = slot.total.item() if isinstance(slot.total, Tensor) else slot.total
    return found | {"total": total, "metric": slot.metric is not None, "lists": _lists(slot.metric)}


def _lists(metric: Any) -> dict[str, Any]:
    """Return dtype and shape, but for the first dimension, of what a torchmetric keeps in lists (AUROC, for one)."""
    states = {} if metric is None else metric.metric_state
    return {
        name: (state[0].dtype, tuple(state[0].shape[1:]))
        for name, state in states.items()
        if isinstance(state, list) and state and isinstance(state[0], Tensor) and state[0].ndim
    }


def _fill_lists(metric: Any, described: list[dict[str, Any]]) -> None:
    """Give a torchmetric that was not updated here empty tensors like those of other processes, to be joined."""
    for name, state in metric.metric_state.items():
        known = next((lists[name] for lists in described if name in lists), None)
        if isinstance(state, list) and not state and known is not None:
            dtype, shape = known
            state.append(torch.empty((0, *shape), dtype=dtype, device=metric.device))


def _slot_like(sums: dict[str, Any]) -> Slot:
    """Return a slot for what only other processes have logged."""
    name = sums["name"].removesuffix(sums["suffix"])
    slot = Slot(name, sums["suffix"], *(sums[f] for f in ("bar", "logger", "on_step", "on_epoch", "reduction")))
    slot.attribute, slot.rank_zero = sums["attribute"], sums["rank_zero"]
    return slot


def _merged(parts: list[dict[str, Any]]) -> Any:
    """Return the value of one name from the sums of all processes, always added in the same order."""
    first = parts[0]
    if first["rank_zero"]:
        parts = parts[:1]
    totals = [part["total"] for part in parts]
    if first["reduction"] == "mean":
        weight = sum(part["weight"] for part in parts)
        return sum(totals) / weight if weight else float("nan")
    if first["reduction"] == "sum":
        return sum(totals)
    numbers = [total for total in totals if total == total]
    if len(numbers) < len(totals):
        return float("nan")  # as torch.minimum
    return min(numbers) if first["reduction"] == "min" else max(numbers)


def in_parts(results: Results, step: Callable[..., Any], batches_done: Callable[[], int]) -> Callable[..., Any]:
    """Return `step` for a strategy that calls it once per micro-batch: what it logs is said of the whole batch.

    A value of the step is the mean (sum, least, largest) over the micro-batches so far, and in the means of the epoch
    each micro-batch weighs as much as it has samples. A torchmetric's value of the step is that of the last one.

    Args:
        results: Where the step logs.
        step: Called with a micro-batch and the number of the batch.
        batches_done: Returns how many batches were done before this one, by which a new batch is known.
    """
    totals: dict[Key, tuple[Any, int]] = {}
    current = -1

    def step_of_a_part(part: Any, *args: Any) -> Any:
        nonlocal current
        if batches_done() != current:
            current = batches_done()
            totals.clear()
        table = results.train
        whole, before = table.batch, {key: slot.last for key, slot in table.slots.items()}
        table.batch, table.batch_size = part, None
        for slot in table.slots.values():
            slot.last = None
        try:
            return step(part, *args)
        finally:
            table.batch, table.batch_size = whole, None
            for key, slot in table.slots.items():
                if slot.last is None:
                    slot.last = before.get(key)
                elif slot.metric is None:
                    slot.last = _of_parts(totals, key, slot)

    return step_of_a_part


def _of_parts(totals: dict[Key, tuple[Any, int]], key: Key, slot: Slot) -> Any:
    """Return the value of the parts so far, the newest of which is `slot.last`."""
    value, count = slot.last, 1
    if key in totals:
        total, count = totals[key][0], totals[key][1] + 1
        lesser = slot.reduction == "min"
        if slot.reduction in ("mean", "sum"):
            value = total + value
        elif isinstance(value, Tensor):
            value = value.minimum(total) if lesser else value.maximum(total)
        elif value == value and (total != total or (total < value) == lesser):
            value = total
    totals[key] = value, count
    return value / count if slot.reduction == "mean" else value
