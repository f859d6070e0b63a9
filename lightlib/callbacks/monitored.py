"""The metric that a callback monitors: when it is final, and what to say when nobody logged it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lightlib.errors import MisconfigurationException, UnknownNameError, nearest

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

__all__ = ["check_mode", "final_at_epoch_end", "missing", "validates"]

MODES = ("max", "min")


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


def validates(trainer: Trainer) -> bool:
    """Whether this run has validation batches."""
    return any(count > 0 for count in trainer.num_val_batches)


def final_at_epoch_end(trainer: Trainer) -> bool:
    """Whether a monitored metric is read at the end of the training epoch rather than after each validation.

    So it is when each epoch has one validation, at its end: then what training logs per epoch is there too; and when
    there is no validation at all.
    """
    if not validates(trainer):
        return True
    interval, plan = trainer.val_check_interval, trainer.plan
    once_per_epoch = interval is None or (isinstance(interval, float) and interval == 1.0)
    timed = plan is not None and plan.validate_every_seconds is not None
    return once_per_epoch and not timed and trainer.check_val_every_n_epoch == 1


def missing(owner: str, monitor: str, logged: Iterable[str], fix: str = "") -> MisconfigurationException:
    """Return the error that says that nobody logged `monitor`, with what was logged and the nearest name.

    Example:
        >>> print(missing("EarlyStopping", "val_los", ["val_loss", "lr"]))
        EarlyStopping(monitor='val_los'): nobody logged this metric. Did you mean 'val_loss'?
          Expected: one of 'lr', 'val_loss'.
          Fix: log it with self.log('val_los', …).
    """
    names = sorted(logged)
    return MisconfigurationException(
        f"{owner}(monitor={monitor!r}): nobody logged this metric.{nearest(monitor, names)}",
        expected=f"one of {', '.join(map(repr, names))}."
        if names
        else "a logged metric, but no metric was logged at all.",
        fix=fix or f"log it with self.log({monitor!r}, …).",
    )
