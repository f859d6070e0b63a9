"""The metric that a callback monitors: final at an epoch's end or after a validation, or never logged."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.errors import MisconfigurationException, UnknownNameError, nearest, wrong_type

if TYPE_CHECKING:
    from torch import Tensor

    from lightlib.core.trainer import Trainer

MODES = ("max", "min")
_OF_VALIDATION = re.compile(r"val(id(ation)?)?([^a-z]|$)", re.IGNORECASE)
_TYPING_MISTAKE = 0.88  # of 1: one letter of eight


def check_mode(mode: object) -> str:
    """Return `mode` when it is "min" or "max".

    Raises:
        UnknownNameError: It is something else.
    """
    if not isinstance(mode, str) or mode not in MODES:
        raise UnknownNameError(
            "mode", mode, MODES, fix='mode="min" when less is better (a loss), mode="max" when more is (an accuracy).'
        )
    return mode


def check_monitor(owner: str, monitor: object) -> None:
    """See that `monitor` is the name of one metric.

    Raises:
        ArgumentTypeError: It is something else.

    Example:
        >>> check_monitor("EarlyStopping", ["a", "b"])
        Traceback (most recent call last):
        lightlib.errors.ArgumentTypeError: EarlyStopping(monitor=['a', 'b'] (list)).
          Expected: the name of one metric, as a string.
          Fix: one callback for each: callbacks=[EarlyStopping(monitor='a'), EarlyStopping(monitor='b')]
    """
    if isinstance(monitor, str):
        return
    names = [name for name in monitor if isinstance(name, str)] if isinstance(monitor, (list, tuple)) else []
    several = ", ".join(f"{owner}(monitor={name!r})" for name in names)
    fix = f"one callback for each: callbacks=[{several}]" if several else f'{owner}(monitor="val_loss")'
    raise wrong_type(owner, "monitor", monitor, "the name of one metric, as a string", fix=fix)


def endings_of(trainer: Trainer) -> Sequence[str]:
    """Return the endings of the names of metrics in the running stage, by loader."""
    return ("",) if trainer.run is None else trainer.run.results.table.endings


def is_old(trainer: Trainer, monitor: str) -> bool:
    """Whether the metric is that of a validation loader that the last validation left out, so it has no new value."""
    return trainer.run is not None and trainer.run.results.is_old(monitor)


def new_metrics(trainer: Trainer) -> dict[str, Tensor]:
    """Return the latest logged values, without those of validation loaders that the last validation left out."""
    return {name: value for name, value in trainer.callback_metrics.items() if not is_old(trainer, name)}


def validates(trainer: Trainer) -> bool:
    """Whether this run has validation batches; before their loaders are requested, whether it is to validate."""
    counts, plan = trainer.num_val_batches, trainer.plan
    return any(count > 0 for count in counts) if counts else plan is not None and plan.validate_every is not None


def validation_comes(trainer: Trainer) -> bool:
    """Whether this run has a validation, by its data and limits, as training begins."""
    plan = trainer.plan
    if plan is None or not validates(trainer):
        return False
    other_rhythm = plan.validate_across_epochs or plan.validate_changes or plan.validate_at_end
    return bool(other_rhythm or plan.num_epochs == math.inf or plan.validations(plan.num_epochs))


def final_at_epoch_end(trainer: Trainer) -> bool:
    """Whether a monitored metric is read at the end of the training epoch rather than after each validation.

    So it is when each epoch has one validation, at its end: then what training logs per epoch is there too; and when
    there is no validation at all.
    """
    if not validates(trainer):
        return True
    interval, plan = trainer.val_check_interval, trainer.plan
    once_per_epoch = isinstance(interval, float) and interval == 1.0
    timed = plan is not None and plan.validate_every_seconds is not None
    each_epoch = any(intervals == ((0, 1),) for _, intervals in plan.validate_loaders) if plan is not None else False
    return once_per_epoch and not timed and (trainer.check_val_every_n_epoch == 1 or each_epoch)


def missing(owner: str, monitor: str, logged: Iterable[str], fix: str = "") -> MisconfigurationException:
    """Return the error for a metric that was never logged, with the logged ones and the nearest name.

    Example:
        >>> print(missing("EarlyStopping", "val_los", ["val_loss", "lr"]))
        EarlyStopping(monitor='val_los'): this metric was never logged. Did you mean 'val_loss'?
          Expected: one of 'lr', 'val_loss'.
          Fix: log it with self.log('val_los', …).
    """
    names = sorted(logged)
    return MisconfigurationException(
        f"{owner}(monitor={monitor!r}): this metric was never logged.{nearest(monitor, names)}",
        expected=f"one of {', '.join(map(repr, names))}."
        if names
        else "a logged metric, but no metric was logged at all.",
        fix=fix or f"log it with self.log({monitor!r}, …).",
    )


def monitors_of(callbacks: Iterable[Any], schedules: Iterable[Any]) -> list[tuple[str, str]]:
    """Return the names of the classes that monitor a metric, each with the name of the metric."""
    schedulers = [(config.scheduler, config.monitor) for config in schedules if config.reduce_on_plateau]
    readers = [*((callback, getattr(callback, "monitor", None)) for callback in callbacks), *schedulers]
    return [(type(reader).__name__, monitor) for reader, monitor in readers if isinstance(monitor, str)]


def of_validation(monitor: str) -> bool:
    """Whether a metric is one of the validation, by its name.

    Example:
        >>> [of_validation(name) for name in ("val_loss", "Validation/acc", "val", "value", "train_loss")]
        [True, True, True, False, False]
    """
    return _OF_VALIDATION.match(monitor) is not None


def warn_for_unlogged(
    monitors: Iterable[tuple[str, str]], logged: Iterable[str], endings: Iterable[str] = ("",)
) -> None:
    """Warn for metrics that the sanity check, a short validation, should have logged, and has not.

    That cannot be an error: training may log them. So only those are named that look like metrics of a validation, or
    like a logged one with a typing mistake; and none when nothing was logged, for some modules do not log then.

    Args:
        monitors: What `monitors_of` returned.
        logged: The names that the sanity check logged.
        endings: Of the names of metrics, by loader.

    Raises:
        MisconfigurationException: The loaders log the metric, each with its name at the end.
    """
    names, endings = sorted(logged), tuple(endings)
    for owner, monitor in monitors if names else ():
        named = [end for end in endings if end and not end.startswith("/dataloader_idx_")]
        of_loaders = [monitor + end for end in named if monitor + end in names]
        if monitor not in names and of_loaders:
            raise MisconfigurationException(
                f"{owner}(monitor={monitor!r}): each validation loader logs this metric with its own name at the end.",
                expected=f"one of {', '.join(map(repr, of_loaders))}.",
                fix=f"{owner}(monitor={of_loaders[0]!r}), or log one number of all loaders: "
                f"self.log({monitor!r}, …, add_dataloader_idx=False)",
            )
        mistyped = difflib.get_close_matches(monitor, names, n=1, cutoff=_TYPING_MISTAKE)
        if monitor not in names and (mistyped or of_validation(monitor)):
            report.warn(
                f"{owner}(monitor={monitor!r}): the sanity check logged no such metric.{nearest(monitor, names)}\n"
                f"  Expected: one of {', '.join(map(repr, names))}, or a metric that training logs.\n"
                f"  Fix: log it with self.log({monitor!r}, …), or change `monitor`.",
                report.PossibleUserWarning,
            )
