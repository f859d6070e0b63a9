"""Reduces the values of `self.log` over processes and over the micro-batches of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightlib.core.metrics.results import Results
from lightlib.core.metrics.slots import Slot, Table, widened
from lightlib.errors import LoggingError
from lightlib.strategies.pipeline.micro_batches import size_of
from lightlib.strategies.strategy import Strategy

Key = tuple[str, str, int]


class Reduction:
    """Reduces the slots of a table over the processes of a run; every process calls it at the same moment.

    Processes exchange their sums as one object, so they need not log the same names, or anything at all. Processes
    that read the same data count once.
    """

    def __init__(self, strategy: Strategy, metric_at: Callable[[str], Any]) -> None:
        self._strategy, self._metric_at = strategy, metric_at

    def __call__(self, table: Table) -> None:
        """Set the reduced value of each slot that was logged per epoch and is not reduced yet."""
        due = {key: slot for key, slot in table.slots.items() if slot.on_epoch and slot.count and not slot.shared}
        local = {key: _sums(slot) for key, slot in due.items()}
        gathered = self._strategy.collectives.all_gather_object((self._strategy.data_place, local))
        for key in sorted({key for _, sums in gathered for key in sums}):
            by_place: dict[int, dict[str, Any]] = {}
            for place, sums in gathered:
                if key in sums:
                    by_place.setdefault(place, sums[key])
            first = next(iter(by_place.values()))
            slot = table.slots.get(key) or _slot_like(first)
            slot.join_ranks(
                [loader for sums in by_place.values() for loader in sums["loaders"]],
                any(sums["is_double"] for sums in by_place.values()),
            )
            table.slots[key] = slot
            if first["metric"]:
                value = self._metric(key, slot, first, gathered)
            else:
                value = _merged([by_place[place] for place in sorted(by_place)])
            slot.share(value)

    def _metric(self, key: Key, slot: Slot, first: dict[str, Any], gathered: list[Any]) -> Any:
        """Let torchmetrics synchronise over the processes that read different data; return the value to all."""
        strategy = self._strategy
        places = {place for place, sums in gathered if key in sums}
        num_places = len({place for place, _ in gathered})
        if first["attribute"] is None and len(places) < num_places:
            raise LoggingError(
                f"self.log({slot.name!r}, …) got a torchmetric that is no attribute of the module, and a process "
                "without a batch did not log it.",
                expected="a metric that every process can find.",
                fix="build it in __init__: self.metric = …, and log self.metric.",
            )
        all_differ = strategy.data.size == strategy.world_size  # no two processes read the same data
        updated = slot.metric is not None and bool(slot.count)
        value = None
        if all_differ or any(strategy.data.all_gather_object(updated)):
            # a process without a batch takes part with an empty metric
            slot.join(self._metric_at(first["attribute"]) if slot.metric is None else slot.metric)
            if slot.metric.process_group is None and not all_differ:
                slot.metric.process_group = strategy.data.group
                if strategy.data.size == 1:  # every process reads the same batches
                    slot.metric.distributed_available_fn = _not_distributed
            _fill_lists(slot.metric, [sums[key]["lists"] for _, sums in gathered if key in sums])
            value = slot.compute_metric()
        if not all_differ:
            values = strategy.collectives.all_gather_object(value)
            value = next((value for value in values if value is not None), None)
        return value


class EachValue:
    """Reduces each value that was logged with `sync_dist` by a function, name by name and on every process."""

    def __init__(self, reduce: Callable[[Any, str], Any]) -> None:
        self._reduce = reduce

    def __call__(self, table: Table) -> None:
        """Set the reduced value of each slot that was logged per epoch and is not reduced yet."""
        for slot in table.slots.values():
            if slot.synced and slot.on_epoch and slot.count and not slot.shared and slot.metric is None:
                slot.fold()
                value = self._reduce(as_floats(slot.total), slot.reduction)
                if slot.reduction == "mean":
                    value = value / self._reduce(as_floats(slot.weight), slot.reduction)
                slot.share(value.item() if value.is_cpu else value)


def as_floats(value: Any) -> Tensor:
    """Return a number as a floating-point tensor that holds it exactly, if its device can."""
    return widened(value) if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def reduced(reduce: Callable[..., Any], value: Any, how: str) -> Any:
    """Return a step value reduced over processes: a number as a number, a tensor of a device as a tensor."""
    return reduce(value, reduce_op=how) if isinstance(value, Tensor) else reduce(as_floats(value), reduce_op=how).item()


def _not_distributed() -> bool:
    return False


def _sums(slot: Slot) -> dict[str, Any]:
    state = slot.state_dict()
    total = slot.total.item() if isinstance(slot.total, Tensor) else slot.total
    more = {"total": total, "last": None, "name": slot.name, "rank_zero": slot.rank_zero, "attribute": slot.attribute}
    more |= {"loaders": sorted(slot.loaders), "lists": _lists(slot.metric)}
    return {**state, **more, "metric": slot.metric is not None}


def _lists(metric: Any) -> dict[str, Any]:
    """Return dtype and shape, without the first dimension, of a torchmetric's list states (AUROC has some)."""
    states = {} if metric is None else metric.metric_state
    return {
        name: (state[0].dtype, tuple(state[0].shape[1:]))
        for name, state in states.items()
        if isinstance(state, list) and state and isinstance(state[0], Tensor) and state[0].ndim
    }


def _fill_lists(metric: Any, described: list[dict[str, Any]]) -> None:
    """Add empty tensors, shaped as on other processes, to the list states of a torchmetric not updated here."""
    for name, state in metric.metric_state.items():
        template = next((lists[name] for lists in described if name in lists), None)
        if isinstance(state, list) and not state and template is not None:
            dtype, shape = template
            state.append(torch.empty((0, *shape), dtype=dtype, device=metric.device))


def _slot_like(sums: dict[str, Any]) -> Slot:
    name = sums["name"].removesuffix(sums["suffix"])
    slot = Slot(name, sums["suffix"], *(sums[f] for f in ("bar", "logger", "on_step", "on_epoch", "reduction")))
    slot.attribute, slot.rank_zero = sums["attribute"], sums["rank_zero"]
    return slot


def _merged(parts: list[dict[str, Any]]) -> Any:
    """Return the value of one name from the sums of all processes, added in a fixed order."""
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
    """Return `step` for a strategy that calls it once per micro-batch, so that its values describe the full batch.

    A step value is the mean (sum, minimum, maximum) over the micro-batches so far. In means, each micro-batch weighs as
    much as it has samples. The step value of a torchmetric is that of the last micro-batch.

    Args:
        batches_done: Returns the number of batches done before this one, which identifies a new batch.
    """
    totals: dict[Key, tuple[Any, float]] = {}
    current, first = -1, 1

    def step_of_a_part(part: Any, *args: Any) -> Any:
        nonlocal current, first
        size = size_of(part) or 1
        if batches_done() != current:
            current, first = batches_done(), size
            totals.clear()
        table = results.train
        batch, before = table.batch, {key: slot.last for key, slot in table.slots.items()}
        table.batch, table.batch_size = part, None
        for slot in table.slots.values():
            slot.last = None
        try:
            return step(part, *args)
        finally:
            table.batch, table.batch_size = batch, None
            for key, slot in table.slots.items():
                if slot.last is None:
                    slot.last = before.get(key)
                elif slot.metric is None:
                    slot.last = _of_parts(totals, key, slot, size / first)

    return step_of_a_part


def _of_parts(totals: dict[Key, tuple[Any, float]], key: Key, slot: Slot, weight: float) -> Any:
    """Return the value over the micro-batches so far; `slot.last` is that of the latest, with a weight in means."""
    value, weights = slot.last * weight if slot.reduction == "mean" else slot.last, weight
    if key in totals:
        total, weights = totals[key][0], totals[key][1] + weight
        is_min = slot.reduction == "min"
        if slot.reduction in ("mean", "sum"):
            value = total + value
        elif isinstance(value, Tensor):
            value = value.minimum(total) if is_min else value.maximum(total)
        elif value == value and (total != total or (total < value) == is_min):
            value = total
    totals[key] = value, weights
    return value / weights if slot.reduction == "mean" else value
