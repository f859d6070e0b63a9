"""Results: what `self.log` collects, reduced only when somebody reads it."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from lightlib import report
from lightlib.core.metrics.errors import (
    as_number,
    changed_arguments,
    check_batch_size,
    check_flags,
    check_kind,
    check_name,
    is_metric,
    metric_of,
    no_meaning,
    not_scalar,
    shared_metric,
    unknown_reduction,
    wrong_attribute,
)
from lightlib.core.metrics.rules import OUTSIDE, Rule
from lightlib.errors import LoggingError

__all__ = ["Results", "Slot", "Table", "batch_size_of"]

_FOLD_AT = 64
_SAVED = ("suffix", "bar", "logger", "on_step", "on_epoch", "reduction", "total", "weight", "last", "fresh", "count")
_REDUCTIONS: dict[Any, str] = {
    **{name: name for name in ("mean", "sum", "min", "max")},
    **{getattr(torch, name): name for name in ("mean", "sum", "min", "max")},
    **{getattr(builtins, name): name for name in ("sum", "min", "max")},
    "avg": "mean",
}


class Slot:
    """One logged name: its last value, and its sums over the epoch.

    Values on the CPU become Python floats at once (double precision, nothing to synchronise). Values on a device are
    cloned and wait there until somebody reads them, so that logging never makes the host wait for the device.
    """

    __slots__ = (
        "arguments", "attribute", "bar", "count", "epoch_name", "fresh", "last", "logger", "metric", "name", "on_epoch",
        "on_step", "pending", "rank_zero", "reduction", "shared", "step_name", "suffix", "total", "value", "weight",
    )  # fmt: skip

    def __init__(
        self, name: str, suffix: str, bar: bool, logger: bool, on_step: bool, on_epoch: bool, reduction: str
    ) -> None:
        forked = on_step and on_epoch
        self.suffix = suffix
        self.name = name + suffix
        self.step_name = f"{name}_step{suffix}" if forked else self.name
        self.epoch_name = f"{name}_epoch{suffix}" if forked else self.name
        self.bar, self.logger, self.on_step, self.on_epoch, self.reduction = bar, logger, on_step, on_epoch, reduction
        self.arguments: tuple[Any, ...] | None = None
        self.metric: Any = None
        self.attribute: str | None = None
        self.last: Any = None
        self.fresh = False
        self.pending: list[tuple[Tensor, float]] = []
        self.total: Any = None
        self.weight = 0.0
        self.count = 0
        self.rank_zero = False  # logged by the first process alone
        self.shared = False  # whether `value` is the value over all processes
        self.value: Any = None

    def add(self, value: Any, weight: float) -> None:
        """Take a value; `weight` is the batch size, of which only means make use."""
        if type(value) is Tensor or isinstance(value, Tensor):
            if value.numel() != 1:
                raise not_scalar(self.name, "tensor", value.shape)
            number = value.item() if value.is_cpu else value.detach().reshape(()).clone()
        else:
            number = value
        self.last = number
        self.fresh = True
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
            number = number * weight
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
            self.total = number  # a NaN stays a NaN, as in torch.minimum

    def fold(self) -> None:
        """Add the waiting device values to the sums; still without making the host wait."""
        pending, self.pending = self.pending, []
        for number, weight in pending:
            wide = number if number.device.type == "mps" else number.double()
            self._accumulate(wide, weight)

    def computed(self) -> Any:
        """Return the value of the epoch so far as a number, a 0-d tensor, or None when nothing was logged."""
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
        return _one_number(self.name, self.metric.compute())

    def share(self, value: Any) -> None:
        """Take the value over all processes in place of one's own."""
        self.value, self.shared = value, True

    def clear(self) -> None:
        if self.metric is not None:
            self.metric.reset()
        self.value, self.shared = None, False
        self.last, self.fresh, self.total, self.weight, self.count = None, False, None, 0.0, 0
        self.pending = []


class Table:
    """The slots of one stage, from its start to its end."""

    __slots__ = ("batch", "batch_size", "epoch_end", "loader", "num_loaders", "slots", "training")

    def __init__(self, training: bool) -> None:
        self.training = training
        self.slots: dict[tuple[str, str, int], Slot] = {}
        self.epoch_end = False
        self.batch: Any = None
        self.batch_size: int | None = None
        self.loader = 0
        self.num_loaders = 1

    def step_values(self) -> Iterable[tuple[Slot, Any]]:
        return ((slot, slot.last) for slot in self.slots.values() if slot.on_step and slot.last is not None)

    def epoch_values(self) -> Iterable[tuple[Slot, Any]]:
        values = ((slot, slot.computed()) for slot in self.slots.values() if slot.on_epoch)
        return ((slot, value) for slot, value in values if value is not None)

    def clear(self) -> None:
        for slot in self.slots.values():
            slot.clear()
        self.epoch_end, self.batch = False, None

    def forget_batch(self) -> None:
        """Let go of the last batch."""
        self.batch = None


class Results:
    """What `self.log` collects over a run, and the three dictionaries that users read."""

    def __init__(self, find_metric: Callable[[Any], str | None] = lambda metric: None) -> None:
        self.reduce_table: Callable[[Table], None] | None = None  # over processes; None is one process
        self.reduce_value: Callable[[Any, str], Any] | None = None  # likewise
        self.train = Table(training=True)
        self.table = self.train
        self.scope: Rule = OUTSIDE
        self.find_metric = find_metric
        self._homes: dict[str, tuple[str, int]] = {}  # where each torchmetric is logged
        self._callback: dict[str, Any] = {}
        self._logged: dict[str, Any] = {}
        self._bar: dict[str, Any] = {}

    # writing
    def use(self, table: Table) -> None:
        """Collect in this table from now on."""
        self.table = table

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool,
        logger: bool | None,
        on_step: bool | None,
        on_epoch: bool | None,
        reduce_fx: Any,
        enable_graph: bool,
        sync_dist: bool,
        sync_dist_group: Any,
        add_dataloader_idx: bool,
        batch_size: int | None,
        metric_attribute: str | None,
        rank_zero_only: bool,
    ) -> None:
        """Collect one value; the meaning of the arguments is that of `Module.log`."""
        table = self.table
        if type(name) is not str:
            check_name(name)
        arguments = (prog_bar, logger, on_step, on_epoch, reduce_fx, enable_graph, add_dataloader_idx)
        slot = table.slots.get((self.scope.hook, name, table.loader))
        if slot is None or slot.arguments != arguments:
            slot = self._declare(name, value, arguments, slot, metric_attribute)
        if slot.metric is not None:
            if value is not slot.metric:
                slot.metric = metric_of(slot.name, slot.metric, value, fresh=slot.count == 0)
            slot.count += 1
            slot.fresh, slot.shared = True, False
            if slot.on_step:
                slot.last = _forward_value(slot.metric)
            return
        if type(value) is not Tensor and not isinstance(value, (int, float)):
            value = as_number(name, value)
        if batch_size is not None and (type(batch_size) is not int or batch_size < 0):
            batch_size = check_batch_size(name, batch_size)
        if slot.on_epoch and slot.reduction == "mean":
            slot.add(value, self._batch_size() if batch_size is None else batch_size)
        else:
            slot.add(value, 1.0)
        if self.reduce_value is not None:
            slot.rank_zero = rank_zero_only
            if sync_dist and slot.on_step and not rank_zero_only:
                slot.last = self.reduce_value(slot.last, slot.reduction)

    def _batch_size(self) -> int:
        table = self.table
        if table.batch_size is None:
            table.batch_size = batch_size_of(table.batch)
        return table.batch_size

    def _declare(
        self, name: str, value: Any, arguments: tuple[Any, ...], known: Slot | None, attribute: str | None
    ) -> Slot:
        if known is not None and known.arguments is not None:
            raise changed_arguments(name, self.scope.hook, known.arguments, arguments)
        check_flags(name, arguments)
        on_step, on_epoch = self._when(name, arguments)
        table = self.table
        _, logger, _, _, reduce_fx, _, add_index = arguments
        if "/dataloader_idx_" in name and add_index:
            raise LoggingError(
                f"self.log got the name {name!r}, which contains '/dataloader_idx_'.",
                expected="a plain name; the suffix is added when there are several loaders.",
                fix=f"self.log({name.split('/dataloader_idx_', maxsplit=1)[0]!r}, …), or add_dataloader_idx=False.",
            )
        of_a_loader = table.num_loaders > 1 and self.scope.steps
        suffix = f"/dataloader_idx_{table.loader}" if of_a_loader and add_index else ""
        reduction = self._reduction(name, reduce_fx)
        slot = Slot(name, suffix, bool(arguments[0]), logger is not False, on_step, on_epoch, reduction)
        slot.arguments = arguments
        if is_metric(value):
            slot.metric, slot.attribute = value, self.find_metric(value)
            if attribute is not None and slot.attribute is None:
                raise wrong_attribute(name, attribute)
            home = ("training" if table.training else "evaluation", table.loader if of_a_loader else 0)
            if slot.attribute is not None and self._homes.setdefault(slot.attribute, home) != home:
                raise shared_metric(name, slot.attribute, self._homes[slot.attribute], home)
        else:
            check_kind(name, value)
        if known is not None:  # from a checkpoint: this is its first call since the resume
            slot.total, slot.weight, slot.last, slot.count = known.total, known.weight, known.last, known.count
        table.slots[self.scope.hook, name, table.loader] = slot
        return slot

    def _when(self, name: str, arguments: tuple[Any, ...]) -> tuple[bool, bool]:
        rule = self.scope
        if not rule.logs:
            raise no_meaning(name, self.scope.hook)
        on_step = rule.on_step if arguments[2] is None else arguments[2]
        on_epoch = (not rule.on_step) if arguments[3] is None else arguments[3]
        if on_step and not rule.steps:
            raise LoggingError(
                f"self.log({name!r}, on_step=True) was called in `{rule.hook}`, which is called once per epoch.",
                expected="on_step=False there.",
                fix=f"self.log({name!r}, …, on_step=False, on_epoch=True)",
            )
        if not on_step and not on_epoch:
            raise LoggingError(
                f"self.log({name!r}, on_step=False, on_epoch=False) would log nothing.",
                expected="at least one of the two to be True.",
                fix="set on_step=True, on_epoch=True, or leave out the call.",
            )
        return bool(on_step), bool(on_epoch)

    def _reduction(self, name: str, reduce_fx: Any) -> str:
        try:
            return _REDUCTIONS[reduce_fx.lower() if isinstance(reduce_fx, str) else reduce_fx]
        except (KeyError, TypeError):
            raise unknown_reduction(name, reduce_fx) from None

    # reading
    def end_epoch(self) -> None:
        """From here on the values of the epoch are read; those of its last step are kept."""
        self.reduce()
        self._collect()
        self.table.epoch_end = True

    def reduce(self) -> None:
        """Reduce over processes what was logged per epoch and has not been reduced yet; each process calls this."""
        if self.reduce_table is not None:
            self.reduce_table(self.table)

    def tell(self) -> dict[Any, Any]:
        """Return what was logged in the step that just ran, for processes that did not see it."""
        return {
            key: (slot.suffix, slot.bar, slot.logger, slot.on_step, slot.on_epoch, slot.reduction, slot.last)
            for key, slot in self.table.slots.items()
            if slot.fresh
        }

    def hear(self, told: Mapping[Any, Any]) -> None:
        """Take what `tell` returned on a process that saw the step; its sums stay there until they are reduced."""
        for key, (*how, last) in told.items():
            slot = self.table.slots.get(key) or Slot(key[1], *how)
            self.table.slots[key] = slot
            slot.last, slot.fresh = last, True

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        self._collect()
        return {name: torch.as_tensor(value) for name, value in self._callback.items()}

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        self._collect()
        return {name: torch.as_tensor(value) for name, value in self._logged.items()}

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        self._collect()
        return to_floats(self._bar)

    def _collect(self) -> None:
        table = self.table
        self._take(self.train, self.train.step_values(), step=True)
        if not table.training:
            self._take(table, table.step_values(), step=True)
        if table.epoch_end:
            self._take(table, table.epoch_values(), step=False)

    def _take(self, table: Table, values: Iterable[tuple[Slot, Any]], step: bool) -> None:
        for slot, value in values:
            name = slot.step_name if step else slot.epoch_name
            if slot.logger:
                self._logged[name] = value
            if slot.bar:
                self._bar[name] = value
            if table.training or not step:
                self._callback[slot.name] = value
                self._callback[name] = value

    def fresh_step_values(self) -> dict[str, Any]:
        """Return what was logged per step since the last call, for the loggers."""
        found: dict[str, Any] = {}
        for slot, value in self.table.step_values():
            if slot.fresh and slot.logger:
                found[slot.step_name] = value
            slot.fresh = False
        return found

    def waiting_names(self) -> list[str]:
        """Return the names of what was logged for loggers per step alone, and has not been handed over since."""
        steps = self.table.step_values()
        return [slot.name for slot, _ in steps if slot.fresh and slot.logger and not slot.on_epoch]

    def epoch_values(self, loggers_only: bool = True) -> dict[str, Any]:
        """Return the values of the epoch that has ended."""
        self._collect()
        return {slot.epoch_name: value for slot, value in self.table.epoch_values() if slot.logger or not loggers_only}

    def epoch_values_by_loader(self) -> list[dict[str, float]]:
        """Return the epoch's values, one dictionary per loader; what belongs to no loader is in each."""
        found: list[dict[str, Any]] = [{} for _ in range(self.table.num_loaders)]
        for (scope, _, loader), slot in self.table.slots.items():
            value = slot.computed() if slot.on_epoch else None
            if value is not None:
                for one in [found[loader]] if scope.endswith(("_step", "_batch_start", "_batch_end")) else found:
                    one[slot.epoch_name] = value
        return [to_floats(one) for one in found]

    def note(self, values: Mapping[str, float]) -> None:
        """Let callbacks read these numbers as well, beside what `self.log` collects."""
        self._callback.update(values)

    def dictionaries(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return what callbacks, loggers and the bar read."""
        self._collect()
        return self._callback, self._logged, self._bar

    def take_over(self, dictionaries: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> None:
        """Take what `dictionaries` returned in another process."""
        self._callback, self._logged, self._bar = dictionaries

    def forget(self) -> None:
        """Drop the three dictionaries: a new fit, validate or test begins."""
        self._callback, self._logged, self._bar = {}, {}, {}

    # state
    def state_dict(self) -> dict[str, Any]:
        """Return the sums of the training epoch so far, and what callbacks read, as tensors and plain values."""
        self._collect()
        slots = []
        for (scope, name, loader), slot in self.train.slots.items():
            slot.fold()
            state: dict[str, Any] = {"scope": scope, "name": name, "loader": loader}
            state |= {field: getattr(slot, field) for field in _SAVED}
            if slot.metric is not None:
                if slot.attribute is None:
                    continue
                state |= {"attribute": slot.attribute, "metric": metric_state(slot.metric)}
            slots.append(state)
        return {"slots": slots, "callback": {name: torch.as_tensor(v) for name, v in self._callback.items()},
                "logged": dict(self._logged), "bar": dict(self._bar)}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any], metric_at: Callable[[str], Any]) -> None:
        """Take back the sums; torchmetrics are found again by their attribute through `metric_at`."""
        self._callback, self._logged, self._bar = (dict(state.get(of, {})) for of in ("callback", "logged", "bar"))
        for saved in state["slots"]:
            flags = (saved[field] for field in ("bar", "logger", "on_step", "on_epoch", "reduction"))
            slot = Slot(saved["name"], saved["suffix"], *flags)
            for field in ("total", "weight", "last", "count", "fresh"):
                setattr(slot, field, saved.get(field, False))  # older files have no "fresh"
            if "metric" in saved:
                slot.metric, slot.attribute = metric_at(saved["attribute"]), saved["attribute"]
                load_metric_state(slot.metric, saved["metric"])
            self.train.slots[saved["scope"], saved["name"], int(saved["loader"])] = slot


def to_floats(values: Mapping[str, Any]) -> dict[str, float]:
    """Return all values as Python floats; those on a device are stacked and copied at once."""
    on_device = {name: v for name, v in values.items() if isinstance(v, Tensor) and not v.is_cpu}
    moved: dict[str, float] = {}
    if on_device:
        stacked = torch.stack([v.detach().float().reshape(()) for v in on_device.values()]).tolist()
        moved = dict(zip(on_device, stacked, strict=True))
    return {name: moved[name] if name in moved else float(value) for name, value in values.items()}


def batch_size_of(batch: Any, warn: bool = True) -> int:
    """Return the size of the first dimension of the first tensor in `batch`; 1 when there is none."""
    first: int | None = None
    for tensor in _tensors(batch):
        size: int = tensor.shape[0] if tensor.ndim else 1
        if first is None:
            first = size
        elif size != first:
            report.warn(
                f"The batch holds tensors whose first dimensions differ ({first} and {size}), so the batch size by "
                f"which logged means are weighted was guessed as {first}. Say it: self.log(…, batch_size=…).",
                report.PossibleUserWarning,
            )
            break
        if not warn:
            break
    return 1 if first is None else first


def _tensors(data: Any) -> Iterable[Tensor]:
    values: Iterable[Any] = ()
    if isinstance(data, Tensor):
        values = (data,)
    elif isinstance(data, (list, tuple)):
        values = data
    elif isinstance(data, Mapping):
        values = data.values()
    elif is_dataclass(data) and not isinstance(data, type):
        values = [getattr(data, field.name) for field in fields(data)]
    for value in values:
        if isinstance(value, Tensor):
            yield value
        else:
            yield from _tensors(value)


def _one_number(name: str, value: Any) -> Any:
    """Return what a metric computed, when it can be logged under one name; None when it has no value yet."""
    if value is None:
        return None
    if isinstance(value, Tensor) and value.numel() != 1:
        raise not_scalar(name, "metric whose value is a tensor", value.shape)
    return value.reshape(()) if isinstance(value, Tensor) else as_number(name, value)


def _forward_value(metric: Any) -> Any:
    value = getattr(metric, "_forward_cache", None)
    return value.detach().clone() if isinstance(value, Tensor) else value


def metric_state(metric: Any) -> dict[str, Any]:
    return {"states": dict(metric.metric_state), "updates": metric.update_count}


def load_metric_state(metric: Any, state: dict[str, Any]) -> None:
    for name, value in state["states"].items():
        setattr(
            metric, name, [v.to(metric.device) for v in value] if isinstance(value, list) else value.to(metric.device)
        )
    metric._update_count = state["updates"]  # noqa: SLF001  torchmetrics has no setter
    metric._computed = None  # noqa: SLF001  likewise
