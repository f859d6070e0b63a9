"""Slots: the logged names of a stage, each with its last value and its sums over the epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lightlib.accelerators.lookup import of
from lightlib.core.metrics.batch_size import BatchSize
from lightlib.core.metrics.errors import as_number, not_scalar

EVERY_LOADER = -1  # in place of a loader's number: one slot of all loaders, which log one name
_FOLD_AT = 64
_FLAGS = ("bar", "logger", "on_step", "on_epoch", "reduction")
_SUMS = ("total", "weight", "last", "fresh", "count")


@dataclass(slots=True, eq=False)
class Slot:
    """One logged name: its last value, and its sums over the epoch.

    Values on the CPU become Python floats at once (double precision, nothing to synchronise). Values on a device are
    cloned and stay there until read, so that logging never makes the host wait for the device.
    """

    name: str
    suffix: str
    bar: bool
    logger: bool
    on_step: bool
    on_epoch: bool
    reduction: str
    arguments: tuple[Any, ...] | None = None
    metric: Any = None
    attribute: str | None = None
    last: Any = None
    fresh: bool = False
    is_new: bool = False  # logged since the last `take`
    pending: list[tuple[Tensor, float]] = field(default_factory=list)
    total: Any = None
    weight: float = 0.0
    count: int = 0
    rank_zero: bool = False  # logged by the first process only
    synced: bool = False  # logged with sync_dist
    shared: bool = False  # whether `value` is reduced over all processes
    value: Any = None
    is_double: bool = False  # logged as float64, so that its values are read as float64
    loaders: set[int] = field(default_factory=set)  # those that have logged it in this stage
    step_name: str = field(init=False)
    epoch_name: str = field(init=False)

    def __post_init__(self) -> None:
        forked = self.on_step and self.on_epoch
        self.step_name, self.epoch_name = (
            f"{self.name}{end if forked else ''}{self.suffix}" for end in ("_step", "_epoch")
        )
        self.name += self.suffix

    def add(self, value: Any, weight: float) -> None:
        """Add a value; `weight` is the batch size, which only means use."""
        if type(value) is Tensor or isinstance(value, Tensor):
            if value.numel() != 1:
                raise not_scalar(self.name, "tensor", value.shape)
            number = value.item() if value.is_cpu else value.detach().reshape(()).clone()
            if value.dtype is torch.float64:
                self.is_double = True
        else:
            number = value
        self.last = number
        self.fresh = self.is_new = True
        self.shared = False
        if self.on_epoch:
            if isinstance(number, Tensor):
                self.pending.append((number, weight))
                if len(self.pending) >= _FOLD_AT:
                    self.fold()
            else:
                self._accumulate(number, weight)

    def _accumulate(self, number: Any, weight: float) -> None:
        if self.reduction == "mean":
            number = number * weight if type(weight) is int and weight else _weighted(number, weight)
        total = self.total
        self.weight += weight
        self.count += 1
        if total is None:
            self.total = number
        elif self.reduction in ("mean", "sum"):
            self.total = total + number
        elif isinstance(number, Tensor):
            self.total = (torch.minimum if self.reduction == "min" else torch.maximum)(torch.as_tensor(total), number)
        elif number != number or (total == total and (number < total) == (self.reduction == "min")):
            self.total = number  # a NaN stays NaN, as in torch.minimum

    def fold(self) -> None:
        """Add the pending device values to the sums, without making the host wait."""
        pending, self.pending = self.pending, []
        for number, weight in pending:
            self._accumulate(widened(number), weight)

    def computed(self) -> Any:
        """Return the value of the epoch so far: a number, a 0-d tensor, or None if nothing was logged."""
        if self.shared:
            return self.value
        if self.metric is not None:
            return self.compute_metric() if self.count else None
        self.fold()
        if self.total is None:
            return None
        if self.reduction != "mean":
            return self.total
        return self.total / self.weight if self.weight else math.nan

    def compute_metric(self) -> Any:
        """Return the value of the metric if it is a single number, None if it has no value yet."""
        value = self.metric.compute()
        if isinstance(value, Tensor):
            if value.numel() != 1:
                raise not_scalar(self.name, "metric whose value is a tensor", value.shape)
            return value.reshape(())
        return None if value is None else as_number(self.name, value)

    def share(self, value: Any) -> None:
        self.value, self.shared = value, True

    def mark_read(self) -> None:
        self.fresh = False

    def receive(self, last: Any) -> None:
        self.last, self.fresh, self.is_new = last, True, True

    def take(self) -> Any:
        """Return the last value, which is no longer new."""
        self.is_new = False
        return self.last

    def join_ranks(self, loaders: Iterable[int], is_double: bool) -> None:
        """Note the loaders that other processes have logged it with, and their type."""
        self.loaders.update(loaders)
        self.is_double |= is_double

    def join(self, metric: Any) -> None:
        """Take part in the synchronisation of a torchmetric, also if it was not updated here."""
        self.metric, self.count = metric, max(self.count, 1)

    def state_dict(self) -> dict[str, Any]:
        self.fold()
        reduced = {"value": self.value} if self.shared and self.metric is None else {}
        return {name: getattr(self, name) for name in ("suffix", "is_double", *_FLAGS, *_SUMS)} | reduced

    @classmethod
    def from_state(cls, name: str, state: Mapping[str, Any]) -> Slot:
        sums = {name_of_sum: state[name_of_sum] for name_of_sum in _SUMS}
        flags = (state[flag] for flag in _FLAGS)
        slot = cls(name, state["suffix"], *flags, **sums)
        slot.is_double = bool(state.get("is_double"))
        slot.value, slot.shared = state.get("value"), "value" in state
        return slot

    def clear(self) -> None:
        if self.metric is not None:
            self.metric.reset()
        self.value, self.shared = None, False
        self.last, self.fresh, self.total, self.weight, self.count = None, False, None, 0.0, 0
        self.pending = []


def widened(value: Tensor) -> Tensor:
    """Return a number in float64, or in float32 on devices that have no float64."""
    return value.double() if of(value.device).has_float64 else value.float()


def _weighted(number: Any, weight: Any) -> Any:
    """Return the product; 0 for the weight 0, because the mean of an empty batch is NaN."""
    if isinstance(weight, Tensor):
        return torch.where(weight != 0, number * weight, 0.0)
    if weight:
        return number * weight
    return torch.zeros_like(number) if isinstance(number, Tensor) else 0.0


@dataclass(slots=True, eq=False)
class Table:
    """The slots of one stage, from its start to its end.

    Attributes:
        endings: Of the names of metrics, by loader; empty for a loader that is alone.
    """

    training: bool
    endings: Sequence[str] = ("",)
    loader: int = 0
    batch: Any = None
    batch_size: int | None = None
    epoch_end: bool = False
    sizes: BatchSize = field(default_factory=BatchSize)
    slots: dict[tuple[str, str, int], Slot] = field(default_factory=dict)

    @property
    def num_loaders(self) -> int:
        return len(self.endings)

    def size_of_batch(self) -> int:
        """Return the size of the current batch, which is determined once."""
        if self.batch_size is None:
            self.batch_size = self.sizes(self.batch, self.loader)
        return self.batch_size

    def metrics_of_module(self) -> list[str]:
        """Return the attributes of the module that hold the torchmetrics, which are reset when the stage ends."""
        return sorted({slot.attribute for slot in self.slots.values() if slot.attribute is not None})

    def begin_epoch(self) -> None:
        self.epoch_end = False

    def end_epoch(self) -> None:
        self.epoch_end = True

    def step_values(self) -> Iterable[tuple[Slot, Any]]:
        return ((slot, slot.last) for slot in self.slots.values() if slot.on_step and slot.last is not None)

    def new_step_values(self) -> Iterable[tuple[Slot, Any]]:
        """Return the step values logged since the last call."""
        new = (slot for slot in self.slots.values() if slot.is_new and slot.on_step and slot.last is not None)
        return ((slot, slot.take()) for slot in new)

    def epoch_values(self) -> Iterable[tuple[Slot, Any]]:
        values = ((slot, slot.computed()) for slot in self.slots.values() if slot.on_epoch)
        return ((slot, value) for slot, value in values if value is not None)

    def clear(self) -> None:
        for slot in self.slots.values():
            slot.clear()
        self.begin_epoch()
        self.batch = None

    def forget(self, hook: str) -> None:
        """Forget the values that a hook has logged; their torchmetrics keep their states."""
        self.slots = {key: slot for key, slot in self.slots.items() if key[0] != hook}

    def use_batch(self, batch: Any) -> None:
        """Weight logged values by the size of this batch."""
        self.batch, self.batch_size = batch, None

    def forget_batch(self) -> None:
        self.batch = None
