"""Optimizers and schedulers from a configuration: what `configure_optimizers` returns."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightlib.config.errors.places import Places
from lightlib.core.module.module import Module
from lightlib.errors import MisconfigurationException

__all__ = [
    "SCHEDULERS",
    "ConfiguredOptimizers",
    "LRSchedulerCallable",
    "OptimizerCallable",
    "ReduceLROnPlateau",
    "instantiate_class",
    "with_class_path",
]


class ReduceLROnPlateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
    """torch's scheduler of this name, and the metric that it looks at.

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


# torch's own ReduceLROnPlateau is left out: nobody could tell it which metric to look at.
SCHEDULERS: tuple[type, ...] = (LRScheduler, ReduceLROnPlateau)
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


class ConfiguredOptimizers:
    """A module's `configure_optimizers` that builds what a configuration says, when the Trainer asks for it.

    Only then the parameters are those that will be trained: strategies may put others in their place.

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
        """Return what `combine` makes of the two.

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
