"""Optimizers and schedulers from a configuration, for `configure_optimizers`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightlib import report
from lightlib.config.errors.places import Places
from lightlib.core.module.module import Module
from lightlib.errors import MisconfigurationException

__all__ = [
    "SCHEDULERS",
    "Classes",
    "ConfiguredOptimizers",
    "LRSchedulerCallable",
    "OptimizerCallable",
    "ReduceLROnPlateau",
    "automatic",
    "instantiate_class",
    "reject_scheduler_alone",
    "with_class_path",
]


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
    module, _, name = init["class_path"].rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    return kind(*first, **{**(init.get("init_args") or {}), **(init.get("dict_kwargs") or {})})


def automatic(groups: Sequence[Mapping[str, tuple[Any, str]]], config: Any, program: str) -> list[dict[str, Any]]:
    """Return the configured optimizer and scheduler that the model gets without a link; None if not configured.

    Args:
        groups: The optimizers, and the schedulers: classes and link target by key.
        config: The configuration.
        program: The class of the program, for errors.

    Raises:
        MisconfigurationException: There are several optimizers or schedulers.
    """
    keys = [[key for key, (_, target) in group.items() if target == "AUTOMATIC"] for group in groups]
    if any(len(several) > 1 for several in keys):
        names = [key for several in keys for key in several]
        raise MisconfigurationException(
            f"{program} has several optimizers or schedulers with link_to='AUTOMATIC': {', '.join(names)}.",
            expected="one of each, or arguments of the model that they are linked to.",
            fix=f'parser.add_optimizer_args(…, "{names[0]}", link_to="model.{names[0]}_init"), and '
            "configure_optimizers in the model.",
        )
    return [
        {key: _described(group[key][0], config.get(key)) for key in several}
        for group, several in zip(groups, keys, strict=True)
    ]


def _described(kind: Classes, value: Any) -> Any:
    plain = value.as_dict() if hasattr(value, "as_dict") else value
    return plain if isinstance(kind, tuple) else with_class_path(kind, plain)


def reject_scheduler_alone(program: str | None) -> None:
    """Reject a scheduler without an optimizer; a program that combines them itself gets a warning.

    Args:
        program: Its class, if it overrides `configure_optimizers`.
    """
    what = "The configuration has an `lr_scheduler`, but no `optimizer`"
    if program is not None:
        report.warn(
            f"{what}: {program}.configure_optimizers is not called, and the model's own is.",
            report.PossibleUserWarning,
        )
        return
    raise MisconfigurationException(
        f"{what}: it would not be used.",
        expected="both, or neither and the module's configure_optimizers.",
        fix="--optimizer AdamW --optimizer.lr 1e-3",
    )


class ConfiguredOptimizers:
    """A module's `configure_optimizers` that builds the configured optimizer when the Trainer requests it.

    The strategy may replace the module's parameters before that.

    Args:
        module: The module.
        optimizer: Class path and arguments of the optimizer.
        lr_scheduler: Likewise of the scheduler, or None.
        combine: ``LightningCLI.configure_optimizers``.
        places: Where the optimizer was given, and where the scheduler, for errors.
    """

    def __init__(
        self,
        module: Module,
        optimizer: Any,
        lr_scheduler: Any,
        combine: Callable[..., Any],
        places: Sequence[Places] = (),
    ) -> None:
        self.module, self.optimizer, self.lr_scheduler, self.combine = module, optimizer, lr_scheduler, combine
        self.places = places

    def __call__(self) -> Any:
        """Build the optimizer and the scheduler, and combine them.

        Raises:
            MisconfigurationException: The module has no parameters.
        """
        parameters = list(self.module.parameters())
        if not parameters:
            raise MisconfigurationException(
                f"The configuration has an optimizer, but {type(self.module).__name__} has no parameters.",
                expected="layers, made in __init__ or configure_model.",
                fix="leave out `optimizer:`.",
            )
        places = iter(self.places)
        optimizer = _built((parameters,), self.optimizer, next(places, None))
        scheduler = _built(optimizer, self.lr_scheduler, next(places, None)) if self.lr_scheduler else None
        return self.combine(self.module, optimizer=optimizer, lr_scheduler=scheduler)


def _built(first: Any, init: Mapping[str, Any], places: Places | None) -> Any:
    try:
        return instantiate_class(first, init)
    except Exception as error:
        if places is not None:
            places.add_to(error)
        raise
