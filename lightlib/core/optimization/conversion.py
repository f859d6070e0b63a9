"""Converts a schedule that was written in epochs to one in optimizer steps."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, MultiplicativeLR

from lightlib.errors import MisconfigurationException, shown

_LENGTHS = (
    "milestones",
    "step_size",
    "step_size_up",
    "step_size_down",
    "T_max",
    "T_0",
    "total_iters",
    "total_steps",
    "warmup_steps",
    "stable_steps",
)


def in_steps(given: Mapping[str, Any], steps_per_epoch: float) -> dict[str, Any]:
    """Return a scheduler's dict for optimizer steps, made from one in epochs.

    Every length of the schedule (`T_max`, `milestones`, …), `begin` and `end` are multiplied by the optimizer steps of
    an epoch, and the `gamma` of an ExponentialLR becomes its root, so that the learning rate is the same at the end of
    each epoch.

    Args:
        given: The dict, whose `scheduler` is a class or a `functools.partial` of one.
        steps_per_epoch: Optimizer steps of a full epoch.

    Raises:
        MisconfigurationException: The scheduler is built already, its interval is not the epoch, it is a function of
            epochs, or the number of steps is unknown.
    """
    factory, interval = given["scheduler"], given.get("interval", "epoch")
    kind = factory.func if isinstance(factory, partial) else factory
    if not isinstance(kind, type) or issubclass(kind, (LambdaLR, MultiplicativeLR)):
        raise MisconfigurationException(
            f"'convert_to_iter_based': True with {shown(factory)}.",
            expected="a class of scheduler or a functools.partial of one, whose lengths can be multiplied.",
            fix="partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=10)",
        )
    if interval != "epoch" or steps_per_epoch == math.inf:
        obstacle = f"interval={interval!r}" if interval != "epoch" else "a loader without a length"
        raise MisconfigurationException(
            f"'convert_to_iter_based': True with {obstacle}: {kind.__name__} cannot be converted from epochs to steps.",
            expected="a schedule in epochs, and a loader with a length.",
            fix="leave it out, and give the lengths in optimizer steps with 'interval': 'step'.",
        )
    n = int(steps_per_epoch)
    bounds = {key: given[key] * n for key in ("begin", "end") if isinstance(given.get(key), int)}
    return {**given, **bounds, "interval": "step", "scheduler": _stretched(factory, kind, n)}


def _stretched(factory: Any, kind: type, n: int) -> partial[Any]:
    signature = inspect.signature(kind)
    positional = list(factory.args) if isinstance(factory, partial) else []
    names = list(signature.parameters)[1:]  # the first is the optimizer
    if positional:  # a partial's positional arguments would stand before the optimizer
        raise MisconfigurationException(
            f"'convert_to_iter_based': True with a partial of {kind.__name__} that has positional arguments.",
            expected="keywords alone: the optimizer is the first argument.",
            fix=f"partial({kind.__name__}, {names[0]}=…)",
        )
    arguments = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if name in (*_LENGTHS, "gamma") and parameter.default is not parameter.empty
    }
    arguments |= factory.keywords if isinstance(factory, partial) else {}
    for name in arguments.keys() & set(_LENGTHS):
        arguments[name] = _times(arguments[name], n)
    if issubclass(kind, ExponentialLR) and "gamma" in arguments:
        arguments["gamma"] **= 1 / n
    return partial(kind, **{name: value for name, value in arguments.items() if value is not None})


def _times(length: Any, n: int) -> Any:
    if isinstance(length, (list, tuple)):
        return [_times(part, n) for part in length]
    return length * n if isinstance(length, int) else length
