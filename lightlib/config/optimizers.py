"""Optimizers and schedulers in a configuration: their classes, and when a scheduler steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pkgutil import resolve_name
from typing import Any, Literal

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightlib.config.placeholders import refuse_late_ints


class ReduceLROnPlateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
    """torch's scheduler of this name, with the metric that it monitors.

    Args:
        optimizer: The optimizer.
        monitor: The name of a logged metric.
        args, kwargs: As torch's.

    Example:
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        >>> ReduceLROnPlateau(optimizer, "val_loss", patience=2).monitor
        'val_loss'
    """

    def __init__(self, optimizer: Optimizer, monitor: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(optimizer, *args, **kwargs)
        self.monitor = monitor


@dataclass(frozen=True)
class LRSchedulerConfig:
    """When the scheduler of a configuration steps: the keys of a scheduler's dict in `configure_optimizers`.

    Args:
        interval: At the end of each epoch, after each optimizer step, after each batch, or when the module steps it.
        frequency: At every n-th interval.
        monitor: The logged metric that a plateau scheduler reads.
        strict: Whether a missing metric is an error.
        name: The name for LearningRateMonitor.
        begin: Intervals that pass before the first one that counts.
        end: The last interval that counts. Default: the end of the run.
        convert_to_iter_based: The scheduler is written in epochs and steps with the optimizer.

    Example:
        >>> LRSchedulerConfig(interval="step", frequency=2).changed()
        {'interval': 'step', 'frequency': 2}
    """

    interval: Literal["epoch", "step", "batch", "manual"] = "epoch"
    frequency: int = 1
    monitor: str | None = None
    strict: bool = True
    name: str | None = None
    begin: int = 0
    end: int | None = None
    convert_to_iter_based: bool = False

    def changed(self) -> dict[str, Any]:
        """Return the entries that are not the default."""
        default = asdict(LRSchedulerConfig())
        return {name: value for name, value in asdict(self).items() if value != default[name]}


# torch's own ReduceLROnPlateau is left out: it does not know which metric to monitor.
SCHEDULERS: tuple[type, ...] = (LRScheduler, ReduceLROnPlateau)
Classes = type | tuple[type, ...]
OptimizerCallable = Callable[[Iterable[Any]], Optimizer]
LRSchedulerCallable = Callable[[Optimizer], LRScheduler | ReduceLROnPlateau]


def with_class_path(kind: type, arguments: Any = None) -> dict[str, Any]:
    """Return ``{"class_path": …, "init_args": …}`` for a class and its arguments (a mapping or a Namespace)."""
    plain = arguments.as_dict() if hasattr(arguments, "as_dict") else dict(arguments or {})
    return {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": plain}


def instantiate_class(args: Any | tuple[Any, ...], init: Mapping[str, Any]) -> Any:
    """Build the class that ``init["class_path"]`` names.

    Args:
        args: The first argument, or a tuple of the first ones.
        init: ``{"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}``; ``dict_kwargs`` are arguments as well.

    Raises:
        ImportError, AttributeError: There is no such class.
        MisconfigurationException: An argument is a placeholder, which only the run puts in.

    Example:
        >>> instantiate_class((), {"class_path": "datetime.timedelta", "init_args": {"hours": 2}})
        datetime.timedelta(seconds=7200)
    """
    first = args if isinstance(args, tuple) else (args,)
    arguments = {**(init.get("init_args") or {}), **(init.get("dict_kwargs") or {})}
    refuse_late_ints(init["class_path"], arguments)
    return resolve_name(init["class_path"])(*first, **arguments)
