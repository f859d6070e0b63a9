"""Direction of a monitored metric: whether more or less of it is better, for `mode="auto"`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.callbacks.monitored import check_mode
from lightlib.errors import MisconfigurationException

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

AUTO = "auto"
# Words of names, between characters that are no letters or digits.
LESS_IS_BETTER = ("loss", "error", "mae", "mse", "rmse", "perplexity")
MORE_IS_BETTER = ("acc", "accuracy", "auc", "auroc", "dice", "f1", "iou", "miou", "precision", "recall")


def check_mode_or_auto(owner: str, monitor: object, mode: object) -> str:
    """Return `mode` when it is "min", "max", or "auto" for a callback that monitors a metric.

    Raises:
        UnknownNameError: It is something else.
        MisconfigurationException: It is "auto", and no metric is monitored.
    """
    if mode != AUTO:
        return check_mode(mode)
    if monitor is None:
        raise MisconfigurationException(
            f'{owner}(monitor=None, mode="auto"): nothing is compared.',
            expected="a metric to monitor, or no mode.",
            fix=f'{owner}(monitor="val_loss", mode="auto")',
        )
    return AUTO


def settled_mode(owner: str, monitor: str | None, mode: str, trainer: Trainer, module: Module) -> str:
    """Return "min" or "max" for a callback that monitors a metric, before anything is trained.

    With ``mode="auto"`` the first of these that knows the name decides: a callback with `higher_is_better(name)`, such
    as `MetricCallback`; a metric of torchmetrics that is an attribute of the module by that name, or in a
    MetricCollection; words in the name (:data:`LESS_IS_BETTER`, :data:`MORE_IS_BETTER`). Any other mode is returned;
    if a callback's metric contradicts it, that is a warning.

    Raises:
        MisconfigurationException: ``mode="auto"``, and nothing knows the name.

    Example:
        >>> import lightlib as L
        >>> settled_mode("EarlyStopping", "val_loss", "auto", L.Trainer(logger=False), L.Module())
        'min'
    """
    if monitor is None:
        return mode
    better = _of_callbacks(trainer, monitor)
    if mode != AUTO:
        if better is not None and better != (mode == "max"):
            report.warn(
                f"{owner}(monitor={monitor!r}, mode={mode!r}): by its metric, {'more' if better else 'less'} is "
                f'better.\n  Expected: mode={"max" if better else "min"!r}.\n  Fix: {owner}(…, mode="auto"), or '
                "another `higher_is_better` of the metric.",
                report.PossibleUserWarning,
            )
        return mode
    if better is None:
        better = _of_module(module, monitor)
    if better is None:
        better = _of_name(monitor)
    if better is None:
        raise MisconfigurationException(
            f'{owner}(monitor={monitor!r}, mode="auto"): it is unknown whether more or less of this metric is better.',
            expected="a metric with `higher_is_better` in a MetricCallback or as the module's attribute of this name, "
            f"or one of these words in the name: {', '.join(sorted((*LESS_IS_BETTER, *MORE_IS_BETTER)))}.",
            fix=f'{owner}(…, mode="min") if less is better, mode="max" if more is.',
        )
    return "max" if better else "min"


def _of_callbacks(trainer: Trainer, name: str) -> bool | None:
    asked = (getattr(callback, "higher_is_better", None) for callback in trainer.callbacks)
    answers = (ask(name) for ask in asked if callable(ask))
    return next((bool(better) for better in answers if better is not None), None)


def _of_module(module: Module, name: str) -> bool | None:
    names = {name, name.removesuffix("_epoch"), name.removesuffix("_step")}
    for known, metric in _metrics_in(module):
        better = metric.higher_is_better
        if known in names and better is not None:
            return bool(better)
    return None


def _metrics_in(module: Module) -> Iterator[tuple[str, Any]]:
    """Yield the metrics of torchmetrics that are attributes of a module or in a collection, with their names."""
    torchmetrics = sys.modules.get("torchmetrics")
    if torchmetrics is None:  # then there are none
        return
    for name, child in module.named_modules():
        if isinstance(child, torchmetrics.Metric):
            yield name, child
        elif isinstance(child, torchmetrics.MetricCollection):
            yield from child.items(keep_base=False, copy_state=False)


def _of_name(name: str) -> bool | None:
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    less, more = bool(words & set(LESS_IS_BETTER)), bool(words & set(MORE_IS_BETTER))
    return None if less == more else more
