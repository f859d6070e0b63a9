"""Results: collects the values of `self.log`, and reduces them only when they are read."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lightlib.core.metrics.errors import (
    as_number,
    changed_arguments,
    check_batch_size,
    check_flags,
    check_kind,
    metric_of,
    no_meaning,
    shared_metric,
    warn_of_no_logger,
    warn_of_two_hooks,
)
from lightlib.core.metrics.rules import OUTSIDE, Rule
from lightlib.core.metrics.slots import EVERY_LOADER, Slot, Table, widened
from lightlib.core.metrics.torchmetric import forward_value, is_metric, load_metric_state, metric_state
from lightlib.errors import LoggingError, nearest

_REDUCTIONS: dict[Any, str] = {
    **{name: name for name in ("mean", "sum", "min", "max")},
    **{getattr(torch, name): name for name in ("mean", "sum", "min", "max")},
    **{getattr(builtins, name): name for name in ("sum", "min", "max")},
    "avg": "mean",
}


class Results:
    """The values that `self.log` collects over a run, and the three dictionaries that users read.

    Args:
        find_metric: Returns the attribute of the module that holds a torchmetric.
        reduce_table, reduce_value: Reduce a table, and a single value, over processes; None with one process.
        compiled: Keep `log` out of compiled graphs: one graph break, and no recompilation.
        has_loggers: Whether a logger receives the values; otherwise ``logger=True`` is reported.
    """

    def __init__(
        self,
        find_metric: Callable[[Any], str | None] = lambda metric: None,
        reduce_table: Callable[[Table], None] | None = None,
        reduce_value: Callable[[Any, str], Any] | None = None,
        compiled: bool = False,
        has_loggers: bool = True,
    ) -> None:
        self.reduce_table, self.reduce_value, self._has_loggers = reduce_table, reduce_value, has_loggers
        if compiled:
            self.log = torch.compiler.disable(self.log)  # type: ignore[method-assign, no-untyped-call]
        self.train = Table(training=True)
        self.table = self.train
        self.scope: Rule = OUTSIDE
        self.find_metric = find_metric
        self._unread: tuple[str, ...] = ()  # the endings of the loaders that the last validation has left out
        self._homes: dict[str, tuple[str, int]] = {}  # the stage and loader that log each torchmetric
        self._callback: dict[str, Any] = {}
        self._logged: dict[str, Any] = {}
        self._bar: dict[str, Any] = {}

    def leave_out(self, endings: Iterable[str]) -> None:
        """Note which names have no new values: those with the endings of loaders that a validation does not read."""
        self._unread = tuple(endings)

    def is_old(self, name: str) -> bool:
        """Whether a metric is that of a loader which the last validation has not read."""
        return name.endswith(self._unread) and self.logged_as(name) is None

    # writing
    def use(self, table: Table) -> None:
        """Collect values in this table from now on."""
        self.table = table

    @contextmanager
    def within(self, rule: Rule) -> Iterator[None]:
        """Log by this rule in a block."""
        before, self.scope = self.scope, rule
        try:
            yield
        finally:
            self.scope = before

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
        """Collect one value; the arguments are those of `Module.log`."""
        table = self.table
        if type(name) is not str and not isinstance(name, str):
            raise LoggingError(
                f"self.log got the name {name!r:.80} ({type(name).__name__}).",
                expected="a string.",
                fix='self.log("loss", loss)',
            )
        arguments = (prog_bar, logger, on_step, on_epoch, reduce_fx, enable_graph, add_dataloader_idx)
        slot = table.slots.get((self.scope.hook, name, table.loader))
        if slot is None and not add_dataloader_idx:
            slot = table.slots.get((self.scope.hook, name, EVERY_LOADER))
            if slot is not None:
                slot.loaders.add(table.loader)
        if slot is None or slot.arguments != arguments:
            slot = self._declare(name, value, arguments, slot, metric_attribute)
        if slot.metric is not None:
            if value is not slot.metric:
                slot.metric = metric_of(slot.name, slot.metric, value, slot.count == 0, len(slot.loaders) > 1)
            slot.count += 1
            slot.fresh = slot.is_new = True
            slot.shared = False
            if slot.on_step:
                slot.last = forward_value(slot.metric)
            return
        if type(value) is not Tensor and not isinstance(value, (int, float)):
            value = as_number(name, value)
        if batch_size is not None and (type(batch_size) is not int or batch_size < 0):
            batch_size = check_batch_size(name, batch_size)
        if slot.on_epoch and slot.reduction == "mean":
            if batch_size is None:
                batch_size = table.size_of_batch() if self.scope.steps else 1  # an epoch's hook is about no batch
            slot.add(value, batch_size)
        else:
            slot.add(value, 1.0)
        if self.reduce_value is not None:
            slot.rank_zero, slot.synced = rank_zero_only, sync_dist
            if sync_dist and slot.on_step and not rank_zero_only:
                slot.last = self.reduce_value(slot.last, slot.reduction)

    def _declare(
        self, name: str, value: Any, arguments: tuple[Any, ...], declared: Slot | None, attribute: str | None
    ) -> Slot:
        if declared is not None and declared.arguments is not None:
            raise changed_arguments(name, self.scope.hook, declared.arguments, arguments)
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
        ending = table.endings[table.loader] if self.scope.steps else ""
        of_a_loader, suffix = bool(ending), ending if add_index else ""
        loader = EVERY_LOADER if of_a_loader and not add_index else table.loader
        reduction = self._reduction(name, reduce_fx)
        slot = Slot(name, suffix, bool(arguments[0]), logger is not False, on_step, on_epoch, reduction)
        slot.arguments = arguments
        slot.loaders.add(table.loader)
        if is_metric(value):
            slot.metric, slot.attribute = value, self.find_metric(value)
            if attribute is not None and slot.attribute is None:
                raise LoggingError(
                    f"self.log({name!r}, metric, metric_attribute={attribute!r}): this metric is no attribute of the "
                    "module.",
                    expected="a metric that was assigned to the module, so that its state is saved and moved with it.",
                    fix=f"self.{attribute} = metric in __init__, and self.log({name!r}, self.{attribute})",
                )
            home = ("training" if table.training else "evaluation", table.loader if suffix else 0)
            if slot.attribute is not None and self._homes.setdefault(slot.attribute, home) != home:
                raise shared_metric(name, slot.attribute, self._homes[slot.attribute], home)
        else:
            check_kind(name, value)
        if declared is not None:  # from a checkpoint: this is the first call since the resume
            slot.total, slot.weight, slot.last, slot.count = (
                declared.total,
                declared.weight,
                declared.last,
                declared.count,
            )
            slot.is_double = declared.is_double
        self._warn_if_it_is_replaced(name, slot)
        if logger is True and not self._has_loggers:
            warn_of_no_logger(name)
        table.slots[self.scope.hook, name, loader] = slot
        return slot

    def _warn_if_it_is_replaced(self, name: str, slot: Slot) -> None:
        """Warn if another hook logs values that this one replaces."""
        for (hook, logged, _), other in self.table.slots.items():
            step = slot.on_step and other.on_step and slot.step_name == other.step_name
            epoch = slot.on_epoch and other.on_epoch and slot.epoch_name == other.epoch_name
            if logged == name and hook != self.scope.hook and (step or epoch):
                warn_of_two_hooks(name, hook, self.scope.hook)

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
            shown = repr(reduce_fx) if isinstance(reduce_fx, str) else getattr(reduce_fx, "__name__", repr(reduce_fx))
            raise LoggingError(
                f"self.log({name!r}, reduce_fx={shown}) uses an unknown reduction."
                f"{nearest(str(reduce_fx), ('mean', 'sum', 'min', 'max'))}",
                expected="'mean', 'sum', 'min' or 'max', or torch's functions of these names.",
                fix=f"self.log({name!r}, metric) with a torchmetrics.Metric for anything else.",
            ) from None

    # reading
    def end_epoch(self) -> None:
        """From now on, read the values of the epoch; those of its last step are kept."""
        self.reduce()
        self._collect()
        self.table.end_epoch()

    def reduce(self) -> None:
        """Reduce new epoch values over processes; every process calls this."""
        if self.reduce_table is not None:
            self.reduce_table(self.table)

    def step_message(self) -> dict[Any, Any]:
        """Return the values logged in the last step, for processes that did not run it."""
        return {
            key: (slot.suffix, slot.bar, slot.logger, slot.on_step, slot.on_epoch, slot.reduction, slot.last)
            for key, slot in self.table.slots.items()
            if slot.fresh
        }

    def receive(self, message: Mapping[Any, Any]) -> None:
        """Load a `step_message` of a process that ran the step; its sums stay there until they are reduced."""
        for key, (*flags, last) in message.items():
            slot = self.table.slots.get(key) or Slot(key[1], *flags)
            slot.loaders.add(self.table.loader)
            self.table.slots[key] = slot
            slot.receive(last)

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        self._collect()
        return {name: exact_tensor(value) for name, value in self._callback.items()}

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        self._collect()
        return {name: exact_tensor(value) for name, value in self._logged.items()}

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        self._collect()
        return to_floats(self._bar)

    def _collect(self) -> None:
        table = self.table
        # Once each: a validation may have logged the same name since.
        self._take(self.train, self.train.new_step_values(), step=True)
        if not table.training:
            self._take(table, table.step_values(), step=True)
        if table.epoch_end:
            self._take(table, table.epoch_values(), step=False)

    def _take(self, table: Table, values: Iterable[tuple[Slot, Any]], step: bool) -> None:
        for slot, value in values:
            name = slot.step_name if step else slot.epoch_name
            if slot.is_double and type(value) is float:
                value = torch.tensor(value, dtype=torch.float64)  # noqa: PLW2901
            if slot.logger:
                self._logged[name] = value
            if slot.bar:
                self._bar[name] = value
            if table.training or not step:
                self._callback[slot.name] = value
                self._callback[name] = value

    def fresh_step_values(self) -> dict[str, Any]:
        """Return the step values logged since the last call, for the loggers."""
        values: dict[str, Any] = {}
        for slot, value in self.table.step_values():
            if slot.fresh and slot.logger:
                values[slot.step_name] = value
            slot.mark_read()
        return values

    def last_of_training_step(self) -> dict[str, float]:
        """Return the number that `training_step` logged last under each name, such as the terms of a loss."""
        numbers = {
            slot.name: slot.last
            for (scope, *_), slot in self.train.slots.items()
            if scope == "training_step" and (isinstance(slot.last, float) or torch.is_tensor(slot.last))
        }
        return to_floats(numbers)

    def logged_as(self, name: str) -> Any:
        """Return the metric of torchmetrics, else the slot, that was logged under a name; None if nothing was."""
        slots = [slot for table in (self.table, self.train) for slot in table.slots.values()]
        named = (slot for slot in slots if name in (slot.name, slot.step_name, slot.epoch_name))
        slot = next(named, None)
        return slot if slot is None or slot.metric is None else slot.metric

    def waiting_names(self) -> list[str]:
        """Return the names that are logged per step only and have values that the loggers have not received."""
        steps = self.table.step_values()
        return [slot.name for slot, _ in steps if slot.fresh and slot.logger and not slot.on_epoch]

    def epoch_values(self) -> dict[str, Any]:
        """Return the values of the epoch that has ended, by name, for the loggers."""
        self._collect()
        return {slot.epoch_name: value for slot, value in self.table.epoch_values() if slot.logger}

    def epoch_values_by_loader(self) -> list[dict[str, float]]:
        """Return the epoch's values, one dictionary per loader; values of several loaders, or of none, are in each."""
        by_loader: list[dict[str, Any]] = [{} for _ in range(self.table.num_loaders)]
        for (scope, _, loader), slot in self.table.slots.items():
            value = slot.computed() if slot.on_epoch else None
            if value is not None:
                of_a_loader = scope.endswith(("_step", "_batch_start", "_batch_end"))
                loaders = sorted(slot.loaders) if loader == EVERY_LOADER else [loader]
                for values in [by_loader[i] for i in loaders] if of_a_loader else by_loader:
                    values[slot.epoch_name] = value
        return [to_floats(values) for values in by_loader]

    def note(self, values: Mapping[str, float]) -> None:
        self._callback.update(values)

    def dictionaries(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        self._collect()
        return self._callback, self._logged, self._bar

    def adopt(self, dictionaries: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> None:
        self._callback, self._logged, self._bar = dictionaries

    # state
    def state_dict(self) -> dict[str, Any]:
        """Return the sums of the training epoch and the three dictionaries, as tensors and plain values."""
        self._collect()
        slots = []
        for (scope, name, loader), slot in self.train.slots.items():
            state: dict[str, Any] = {"scope": scope, "name": name, "loader": loader, **slot.state_dict()}
            if slot.metric is not None:
                if slot.attribute is None:
                    continue
                state |= {"attribute": slot.attribute, "metric": metric_state(slot.metric)}
            slots.append(state)
        return {"slots": slots, "callback": {name: exact_tensor(v) for name, v in self._callback.items()},
                "logged": dict(self._logged), "bar": dict(self._bar), "ended": self.train.epoch_end,
                "sizes": dict(self.train.sizes.chosen), "unread": list(self._unread)}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any], metric_at: Callable[[str], Any]) -> None:
        """Restore the sums; `metric_at` finds torchmetrics by their attribute."""
        self._callback, self._logged, self._bar = (dict(state.get(of, {})) for of in ("callback", "logged", "bar"))
        self.train.sizes.choose(state.get("sizes", {}))
        if state.get("ended"):  # the run ended within the epoch
            self.train.end_epoch()
        self._unread = tuple(state.get("unread", ()))
        for saved in state["slots"]:
            slot = Slot.from_state(saved["name"], saved)
            if "metric" in saved:
                slot.metric, slot.attribute = metric_at(saved["attribute"]), saved["attribute"]
                load_metric_state(slot.metric, saved["metric"])
            self.train.slots[saved["scope"], saved["name"], int(saved["loader"])] = slot


def exact_tensor(value: Any) -> Tensor:
    """Return a number as a tensor of the default type, or of another one if that does not hold it exactly."""
    place = value.device if isinstance(value, Tensor) else None
    if place is not None and not value.is_floating_point():
        value = value.item()
    if isinstance(value, (int, float)) and abs(value) > 2**24:
        exact = isinstance(value, int) and -(2**63) <= value < 2**63
        dtype = torch.int64 if exact else torch.float64 if value == value // 1 else None
        return torch.tensor(value, dtype=dtype, device=place)
    return value if isinstance(value, Tensor) else torch.tensor(float(value), device=place)


def to_floats(values: Mapping[str, Any]) -> dict[str, float]:
    """Return all values as Python floats, or ints that no float holds; those of a device are copied together."""
    on_device = {name: v for name, v in values.items() if isinstance(v, Tensor) and not v.is_cpu}
    moved: dict[str, float] = {}
    if on_device:
        stacked = torch.stack([widened(v.detach()).reshape(()) for v in on_device.values()]).tolist()
        moved = dict(zip(on_device, stacked, strict=True))
    return {name: moved[name] if name in moved else _float(value) for name, value in values.items()}


def _float(value: Any) -> float:
    return value if type(value) is int and abs(value) > 2**53 else float(value)


def table(metrics: list[dict[str, float]], word: str, endings: Sequence[str]) -> str:
    """Return a text table: a row for each metric and a column for each loader; `word` names the stage.

    Args:
        endings: Of the names of metrics, by loader; the head of a column names the loader in their place.
    """
    columns = []
    for values, ending in zip(metrics, endings, strict=True):
        others = tuple({*endings} - {ending, ""})  # what an epoch's hook has logged of a loader is in its column alone
        columns.append({n.removesuffix(ending): value for n, value in values.items() if not n.endswith(others)})
    metrics = columns
    names = sorted({name for values in metrics for name in values})
    head = [f"{word} metric", *(end.replace("/dataloader_idx_", "loader ").lstrip("/") or "value" for end in endings)]
    rows = [[name, *(f"{values[name]:.6g}" if name in values else "" for values in metrics)] for name in names]
    widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
    line = "─" * (sum(widths) + 3 * len(widths) - 1)

    def text(row: list[str]) -> str:
        first, *rest = (
            cell.ljust(w) if k == 0 else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        return " " + "   ".join([first, *rest])

    return "\n".join([line, text(head), line, *map(text, rows), line])
