"""Optimizers and schedulers from a configuration, for `configure_optimizers`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightlib import report
from lightlib.config.errors.places import Places
from lightlib.conventions import tolerate
from lightlib.core.module.module import Module
from lightlib.errors import MisconfigurationException


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

    Example:
        >>> instantiate_class((), {"class_path": "datetime.timedelta", "init_args": {"hours": 2}})
        datetime.timedelta(seconds=7200)
    """
    first = args if isinstance(args, tuple) else (args,)
    return resolve_name(init["class_path"])(
        *first, **{**(init.get("init_args") or {}), **(init.get("dict_kwargs") or {})}
    )


def automatic(group: Mapping[str, tuple[Classes, str]], config: Any, program: str) -> tuple[str, Any]:
    """Return the key and the configuration of the optimizer, or the scheduler, that the model gets without a link."""
    keys = [key for key, (_, target) in group.items() if target == "AUTOMATIC"]
    if len(keys) > 1:
        raise MisconfigurationException(
            f"{program} has several optimizers or schedulers with link_to='AUTOMATIC': {', '.join(keys)}.",
            expected="one of each, or arguments of the model that they are linked to.",
            fix=f'parser.add_optimizer_args(…, "{keys[0]}", link_to="model.{keys[0]}_init"), and '
            "configure_optimizers in the model.",
        )
    if not keys:
        return "", None
    kind, value = group[keys[0]][0], config.get(keys[0])
    if not isinstance(kind, tuple):
        return keys[0], with_class_path(kind, value)
    return keys[0], value.as_dict() if hasattr(value, "as_dict") else value


def reject_scheduler_alone(program: str | None) -> None:
    """Reject a scheduler without an optimizer; a `program` that combines them itself gets a warning."""
    what = "The configuration has an `lr_scheduler`, but no `optimizer`"
    if program is not None:
        report.warn(
            f"{what}: {program}.configure_optimizers is not called, and the model's own is.",
            report.PossibleUserWarning,
        )
        return
    error = MisconfigurationException(
        f"{what}: it would not be used.",
        expected="both, or neither and the module's configure_optimizers.",
        fix="--optimizer AdamW --optimizer.lr 1e-3",
    )
    tolerate(error, "it is ignored")


def configured_optimizers(
    module: Module, optimizer: Any, lr_scheduler: Any, combine: Callable[..., Any], places: Sequence[Places]
) -> Any:
    """Build the configured optimizer and scheduler when the Trainer requests them, and combine them.

    The strategy may have replaced the module's parameters by then. `combine` is ``LightningCLI.configure_optimizers``,
    and `places` are those of the optimizer and of the scheduler, for errors.
    """
    parameters = list(module.parameters())
    if not parameters:
        raise MisconfigurationException(
            f"The configuration has an optimizer, but {type(module).__name__} has no parameters.",
            expected="layers, made in __init__ or configure_model.",
            fix="leave out `optimizer:`.",
        )
    built = _built((parameters,), optimizer, places[0])
    scheduler = _built(built, lr_scheduler, places[1]) if lr_scheduler else None
    return combine(module, optimizer=built, lr_scheduler=scheduler)


def _built(first: Any, init: Mapping[str, Any], places: Places) -> Any:
    try:
        return instantiate_class(first, init)
    except Exception as error:
        places.add_to(error)
        raise
