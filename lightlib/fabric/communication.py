"""Arguments of Fabric.launch and of its collectives: a function, and the data to exchange."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from lightlib.errors import ArgumentTypeError, MisconfigurationException, shown, wrong_type
from lightlib.strategies.strategy import Strategy
from lightlib.tree import map_children


def check_function(function: Any) -> None:
    """Refuse an object that cannot be called with a Fabric.

    Raises:
        ArgumentTypeError: It is no function, or takes no arguments.
    """
    if not callable(function):
        expected = "a function that takes the Fabric as its first argument"
        fix = "fabric.launch(train), without calling it."
        raise wrong_type("fabric.launch", "function", function, expected, fix=fix)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function of C
        return
    if not parameters:
        name = getattr(function, "__name__", type(function).__name__)
        raise ArgumentTypeError(
            f"fabric.launch got the function {name}, which takes no arguments.",
            expected="a function that takes the Fabric as its first argument.",
            fix=f"def {name}(fabric): …",
        )


def needs_function(strategy: Strategy) -> MisconfigurationException:
    """Return the error for a launch without the function that the processes run."""
    return MisconfigurationException(
        f"fabric.launch() got no function, and the strategy starts its processes by {strategy.launcher!r}.",
        expected="the function that these processes run.",
        fix="fabric.launch(train) with def train(fabric): …; or strategy='ddp' in a script.",
    )


def as_tensors(call: str, data: Any, device: torch.device) -> Any:
    """Return the data with tensors for numbers.

    Raises:
        ArgumentTypeError: It holds neither tensors nor numbers.
    """
    tensors = []

    def convert(value: Any) -> Any:
        if isinstance(value, (bool, int, float)):
            value = torch.tensor(value, device=device)
        if isinstance(value, Tensor):
            tensors.append(value)
            return value
        return map_children(convert, value)

    converted = convert(data)
    if not tensors:
        raise ArgumentTypeError(
            f"fabric.{call} got {shown(data)}, which holds no tensor and no number.",
            expected="a tensor, a number, or a collection of them.",
            fix=f"fabric.{call}(tensor); other objects are exchanged by fabric.broadcast(obj).",
        )
    return converted
