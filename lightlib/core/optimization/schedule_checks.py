"""Checks that a learning-rate schedule is valid and fits the run, before training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from lightlib import report
from lightlib.callbacks.direction import known_direction
from lightlib.conventions import leniency
from lightlib.core.optimization.schedules import UNITS, SchedulerConfig
from lightlib.core.progress.plan import Plan
from lightlib.errors import ArgumentTypeError, MisconfigurationException, nearest

if TYPE_CHECKING:
    from lightlib.core.module.module import Module

_INTERVALS = (*UNITS, "manual")


def check_schedule(config: SchedulerConfig, optimizers: Sequence[Optimizer], plan: Plan) -> None:
    """Raise if a schedule is invalid or cannot fit the run, and warn if it probably does not."""
    name = type(config.scheduler).__name__
    if config.interval not in _INTERVALS:
        raise MisconfigurationException(
            f"The scheduler {name} has interval={config.interval!r}.{nearest(str(config.interval), _INTERVALS)}",
            expected="'step' (optimizer steps), 'epoch', 'batch', 'manual', or a text as '1e6tok' or '100st'.",
            fix="{'scheduler': scheduler, 'interval': 'step'}",
        )
    frequency: Any = config.frequency
    if isinstance(frequency, bool) or not isinstance(frequency, int) or frequency < 1:
        raise MisconfigurationException(
            f"The scheduler {name} has frequency={config.frequency!r}.",
            expected="an int of at least 1.",
            fix="leave it out to step at every interval.",
        )
    _check_types(config, name)
    _check_bounds(config, name)
    if config.reduce_on_plateau and not config.monitor:
        raise MisconfigurationException(
            f"The scheduler {name} has no metric to read.",
            expected="the name of a logged metric under 'monitor'.",
            fix="return {'optimizer': …, 'lr_scheduler': scheduler, 'monitor': 'val_loss'}",
        )
    owner = getattr(config.scheduler, "optimizer", None)
    if isinstance(owner, Optimizer) and all(owner is not optimizer for optimizer in optimizers):
        raise MisconfigurationException(
            f"The scheduler {name} belongs to an optimizer that configure_optimizers does not return.",
            expected="every scheduler's optimizer among the returned ones.",
            fix="build the scheduler with the optimizer that you return.",
        )
    if config.counts:
        _check_counting(config, name)
    elif config.interval != "manual":
        _report_misfit(config, plan)


def warn_of_direction(config: SchedulerConfig, module: Module) -> None:
    """Warn if a plateau schedule takes less for better, by default or by its arguments, where more is."""
    if not config.reduce_on_plateau or not config.monitor or getattr(config.scheduler, "mode", None) != "min":
        return
    more, source = known_direction(module, config.monitor)
    if more:
        name = type(config.scheduler).__name__
        report.warn(
            f"{name} reads {config.monitor!r} with mode='min', its default, but by {source} more is better: it lowers "
            f"the learning rate while the metric improves.\n  Expected: mode='max'.\n"
            f"  Fix: {name}(optimizer, mode='max')",
            report.PossibleUserWarning,
        )


def _check_types(config: SchedulerConfig, name: str) -> None:
    rows: list[tuple[str, Any, type, str, str]] = [
        ("monitor", config.monitor, str, "the name of a logged metric", "'val_loss'"),
        ("strict", config.strict, bool, "True or False", "False"),
        ("reduce_on_plateau", config.reduce_on_plateau, bool, "True or False", "True"),
        ("name", config.name, str, "a string", "'lr'"),
        ("convert_to_iter_based", config.convert_to_iter_based, bool, "True or False", "True"),
    ]
    for key, value, kind, expected, example in rows:
        if value is not None and not isinstance(value, kind):
            raise ArgumentTypeError(
                f"The scheduler {name} has {key}={value!r:.60} ({type(value).__name__}).",
                expected=f"{expected}.",
                fix=f"{{'scheduler': scheduler, {key!r}: {example}}}",
            )


def _check_bounds(config: SchedulerConfig, name: str) -> None:
    begin: Any = config.begin
    end: Any = config.end
    whole = [isinstance(value, int) and not isinstance(value, bool) for value in (begin, 0 if end is None else end)]
    if not all(whole) or begin < 0 or (end is not None and end <= begin):
        raise MisconfigurationException(
            f"The scheduler {name} has begin={begin!r} and end={end!r}.",
            expected="ints with 0 <= begin < end, counted in intervals; end=None is the end of the run.",
            fix="{'scheduler': scheduler, 'begin': 5, 'end': 20}",
        )


def _check_counting(config: SchedulerConfig, name: str) -> None:
    if config.interval not in ("epoch", "manual") or config.frequency > 1 or config.begin or config.end is not None:
        raise MisconfigurationException(
            f"The scheduler {name} counts steps and epochs itself (it has `step_update`), but its dict has "
            f"interval={config.interval!r}, frequency={config.frequency}, begin={config.begin}, end={config.end}.",
            expected="none of these, or interval='manual'.",
            fix=f"leave them out, and pass the arguments of {name} (timm: t_in_epochs=False counts optimizer steps).",
        )


def _intervals(config: SchedulerConfig, plan: Plan) -> float:
    """Return the number of intervals in the run; `inf` if it is unknown."""
    if config.interval in ("sample", "token"):
        return math.inf
    if plan.total_steps == math.inf or config.interval == "step":
        return plan.total_steps
    if config.interval == "batch":
        return plan.total_batches
    return plan.epochs_passed


def _report_misfit(config: SchedulerConfig, plan: Plan) -> None:
    scheduler, name = config.scheduler, type(config.scheduler).__name__
    if plan.num_batches == 0:
        return
    intervals = _intervals(config, plan)
    if intervals == math.inf:
        return
    calls = config.calls(int(intervals))
    if calls == 0 and config.begin:
        report.warn(
            f"{name} begins after {UNITS[config.interval]} {config.begin}, but this run has {int(intervals)}: it will "
            "never change anything.",
            report.PossibleUserWarning,
        )
        return
    if config.interval == "epoch" and calls == 0 and not plan.begun_batches:
        report.warn(
            f"{name} steps at the end of every epoch, but this run ends before its first epoch does: the learning "
            "rate will never change. Write {'scheduler': scheduler, 'interval': 'step'} to step it with the optimizer.",
        )
    times = "once" if calls == 1 else f"{calls} times"
    for attribute in ("total_steps", "T_max", "total_iters"):
        total = getattr(scheduler, attribute, None)
        if not isinstance(total, int) or (attribute == "total_iters" and name != "PolynomialLR") or total == calls:
            continue
        text = f"{name} is built for {total} steps ({attribute}={total}), but this run calls it {times}"
        if attribute == "total_steps" and total < calls and not getattr(scheduler, "closed_form", False):
            error = MisconfigurationException(
                f"{text}: it would raise an error at call {total + 1}.",
                expected=f"{attribute}={calls} (it steps every {config.interval}).",
                fix=f"'lr_scheduler': {{'scheduler': lambda optimizer, total_steps: {name}(optimizer, …, "
                "total_steps=total_steps), 'interval': 'step'}",
            )
            leniency().tolerate(error, "training begins, and ends with an error at that call")
            continue
        ends = "stops before its end" if total > calls else "continues after its end"
        report.warn(f"{text}: it {ends}. Pass {attribute}={calls}, or another interval.", report.PossibleUserWarning)
