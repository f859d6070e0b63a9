"""Messages of ModelCheckpoint: about its metric and its files, and to the loggers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.monitored import missing
from lightlib.errors import MisconfigurationException, nearest

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer

__all__ = [
    "WarnOnce",
    "absent_in_name",
    "nan",
    "never_logged",
    "not_among_best",
    "not_logged_yet",
    "notify_loggers",
    "other_folder",
    "saved",
    "stale",
]


@dataclass
class WarnOnce:
    """Warns once for each key."""

    warned: set[str] = field(default_factory=set)

    def __call__(self, key: str, message: str) -> None:
        if key not in self.warned:
            self.warned.add(key)
            report.warn(message, report.PossibleUserWarning)


def notify_loggers(trainer: Trainer, callback: Callback, warn_once: WarnOnce) -> None:
    """Notify all loggers that `callback` has saved a checkpoint; one that fails does not end the run."""
    for logger in trainer.loggers if trainer.is_global_zero else ():
        try:
            logger.after_save_checkpoint(callback)
        except Exception as error:  # noqa: BLE001 - a tracking service must not end the run
            kind = type(logger).__name__
            warn_once(kind, f"{kind}.after_save_checkpoint failed, training continues: {error!r}")


def never_logged(monitor: str, logged: Iterable[str]) -> MisconfigurationException:
    """Return the error for a metric that the run has not logged where it should have."""
    return missing(
        "ModelCheckpoint",
        monitor,
        logged,
        fix=f"log it with self.log({monitor!r}, …); if it is logged for a full training epoch, set "
        "ModelCheckpoint(save_on_train_epoch_end=True).",
    )


def not_logged_yet(monitor: str, step: int, logged: Iterable[str]) -> str:
    """Report that a metric has not been logged so far."""
    return (
        f"ModelCheckpoint(monitor={monitor!r}): at step {step} this metric does not exist yet, so no checkpoint was "
        f"compared.{nearest(monitor, logged)} Saves begin when it has been logged for the first time."
    )


def stale(monitor: str | None, step: int, logged_at: int) -> str:
    """Report that a metric is of an earlier step than the checkpoint."""
    return (
        f"ModelCheckpoint(monitor={monitor!r}): the checkpoint of step {step} is compared by a number of step "
        f"{logged_at}, because no validation has run since. Save and validate at the same steps, for example by saving "
        "after validations: leave out every_n_train_steps and train_time_interval."
    )


def nan(monitor: str | None, epoch: int, step: int, path: str, worst: float) -> str:
    """Report that a metric is not a number."""
    return (
        f"ModelCheckpoint: {monitor!r} is nan at epoch {epoch}, step {step}. Its checkpoint {path!r} counts as the "
        f"worst possible one ({worst}) and is the first to be replaced."
    )


def absent_in_name(filename: str | None, name: str, logged: Iterable[str]) -> str:
    """Report that the name of a file lacks a metric."""
    return (
        f"ModelCheckpoint(filename={filename!r}): {name!r} is not logged, so the file name holds nan instead."
        f"{nearest(name, logged)}"
    )


def not_among_best(monitor: str, epoch: int, step: int, value: float, k: int) -> str:
    """Report that a checkpoint was not saved."""
    return f"Epoch {epoch}, step {step}: {monitor!r} = {value:.5g} is not among the best {k}."


def saved(monitor: str | None, epoch: int, step: int, value: float, place: int, path: str) -> str:
    """Report that a checkpoint was saved."""
    return f"Epoch {epoch}, step {step}: {monitor!r} = {value:.5g}, saved as number {place} to {path!r}."


def other_folder(theirs: str | None, ours: str | None, best: str) -> str:
    """Report that the files of an earlier run are in another folder."""
    return (
        f"The checkpoint comes from {theirs!r}, this run saves to {ours!r}: its list of best files starts empty. Until "
        f"its first save, the best one is {best!r}."
    )
