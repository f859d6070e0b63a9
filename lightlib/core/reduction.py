"""What `self.log` collected, reduced over processes: exactly, at the end of an epoch, in one exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lightlib.core.logged import lacks_metric
from lightlib.core.results import Slot, Table
from lightlib.strategies.strategy import Strategy

__all__ = ["Reduction"]

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
            value = slot.compute_metric()
        if not whole:
            value = next(one for one in strategy.collectives.all_gather_object(value) if one is not None)
        return value


def _nobody() -> bool:
    return False


def _sums(slot: Slot) -> dict[str, Any]:
    slot.fold()
    fields = ("name", "suffix", "bar", "logger", "on_step", "on_epoch", "reduction", "weight", "rank_zero", "attribute")
    found = {field: getattr(slot, field) for field in fields}
    total = slot.total.item() if isinstance(slot.total, Tensor) else slot.total
    return found | {"total": total, "metric": slot.metric is not None}


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
