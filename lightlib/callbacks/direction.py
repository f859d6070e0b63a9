"""Direction of a monitored metric: whether more or less of it is better, given or found."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass
class Direction:
    """Whether more or less of the metric that a callback monitors is better.

    Before training the first of these that knows the name decides: a callback with `higher_is_better(name)`, such as
    `MetricCallback`; a metric of torchmetrics that is an attribute of the module by that name, or in a
    MetricCollection; words in the name (:data:`LESS_IS_BETTER`, :data:`MORE_IS_BETTER`). A metric of torchmetrics that
    is logged under the name knows better than these. ``mode="auto"`` follows them. Without a mode it stays "min", and
    if more is better, that is a warning. A mode that was given stays, without a warning.

    Args:
        owner: Name of the callback, for messages.
        monitor: The metric, or None.
        given: The argument `mode`.

    Raises:
        UnknownNameError: `given` is something else than "min", "max", "auto" or None.
        MisconfigurationException: It is "auto", and no metric is monitored.
    """

    owner: str
    monitor: str | None
    given: str | None
    _known: bool = False  # whether anything has decided in this run
    _looked: bool = False  # whether the logged value was seen
    _warned: bool = False

    def __post_init__(self) -> None:
        if self.given == AUTO and self.monitor is None:
            raise MisconfigurationException(
                f'{self.owner}(monitor=None, mode="auto"): nothing is compared.',
                expected="a metric to monitor, or no mode.",
                fix=f'{self.owner}(monitor="val_loss", mode="auto")',
            )
        if self.given not in (AUTO, None):
            check_mode(self.given)

    @property
    def first_mode(self) -> str:
        """The mode until a metric is known."""
        return "min" if self.given in (AUTO, None) else str(self.given)

    @property
    def of_state_key(self) -> str:
        """The mode that is part of a callback's `state_key`; it does not depend on the metrics of a run."""
        return self.given or "min"

    def settle(self, mode: str, trainer: Trainer, module: Module) -> str:
        """Return the callback's mode before anything is trained; `mode` is the present one.

        Raises:
            MisconfigurationException: ``mode="auto"``, and nothing knows the name, or will.

        Example:
            >>> import lightlib as L
            >>> Direction("EarlyStopping", "val_accuracy", "auto").settle("min", L.Trainer(logger=False), L.Module())
            'max'
        """
        self._known = self._looked = False
        if self.monitor is None or self.given not in (AUTO, None):
            return mode
        better, source = _of_callbacks(trainer, self.monitor), "its metric"
        if better is None:
            better, source = known_direction(module, self.monitor)
        if better is None and self.given == AUTO and not any(_metrics_in(module)):
            raise self._unknown()
        return self._follow(mode, better, source)

    def look(self, mode: str, trainer: Trainer) -> str:
        """Return the mode once the value is logged, before it is compared; all processes call this.

        Raises:
            MisconfigurationException: ``mode="auto"``, and a plain number was logged under a name without such a word.
        """
        if self._looked or self.monitor is None or self.given not in (AUTO, None) or trainer.run is None:
            return mode
        logged = trainer.run.results.logged_as(self.monitor)
        is_logged, better = trainer.strategy.broadcast((logged is not None, _of_metric(logged)))
        self._looked = is_logged
        if is_logged and better is None and not self._known and self.given == AUTO:
            raise self._unknown()
        return self._follow(mode, better, "the metric that is logged under this name")

    def state(self, mode: str) -> dict[str, str]:
        """Return the part of a callback's state for a mode that was found."""
        return {"mode": mode} if self.given == AUTO else {}

    def _follow(self, mode: str, better: bool | None, source: str) -> str:
        self._known = self._known or better is not None
        if better is None:
            return mode
        if self.given == AUTO:
            return "max" if better else "min"
        if better and mode == "min" and not self._warned:
            self._warned = True
            report.warn(
                f"{self.owner}(monitor={self.monitor!r}) without a mode keeps the smallest, but by {source} more is "
                f'better.\n  Expected: mode="max", or mode="min" if less is better after all.\n'
                f'  Fix: {self.owner}(monitor={self.monitor!r}, mode="max")',
                report.PossibleUserWarning,
            )
        return mode

    def _unknown(self) -> MisconfigurationException:
        return MisconfigurationException(
            f'{self.owner}(monitor={self.monitor!r}, mode="auto"): it is unknown whether more or less of this metric '
            "is better.",
            expected="a metric with `higher_is_better` in a MetricCallback, logged as an object, or as the module's "
            "attribute of this name, or one of these words in the name: "
            f"{', '.join(sorted((*LESS_IS_BETTER, *MORE_IS_BETTER)))}.",
            fix=f'{self.owner}(…, mode="min") if less is better, mode="max" if more is.',
        )


def known_direction(module: Module, name: str) -> tuple[bool | None, str]:
    """Return whether more of a metric is better, by the module's metrics of torchmetrics or the name, and which.

    Example:
        >>> import lightlib as L
        >>> known_direction(L.Module(), "val_accuracy"), known_direction(L.Module(), "val_x")[0]
        ((True, 'its name'), None)
    """
    by_metric = _of_module(module, name)
    return (_of_name(name), "its name") if by_metric is None else (by_metric, "its metric")


def _of_callbacks(trainer: Trainer, name: str) -> bool | None:
    asked = (getattr(callback, "higher_is_better", None) for callback in trainer.callbacks)
    answers = (ask(name) for ask in asked if callable(ask))
    return next((bool(better) for better in answers if better is not None), None)


def _of_module(module: Module, name: str) -> bool | None:
    names = {name, name.removesuffix("_epoch"), name.removesuffix("_step")}
    for metric_name, metric in _metrics_in(module):
        better = metric.higher_is_better
        if metric_name in names and better is not None:
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


def _of_metric(logged: Any) -> bool | None:
    """Return the direction that a logged metric of torchmetrics declares; None for a number."""
    better = getattr(logged, "higher_is_better", None)
    return None if better is None else bool(better)


def _of_name(name: str) -> bool | None:
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    less, more = bool(words & set(LESS_IS_BETTER)), bool(words & set(MORE_IS_BETTER))
    return None if less == more else more
