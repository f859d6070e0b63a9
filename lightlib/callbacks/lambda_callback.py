"""LambdaCallback: hooks given as functions, for a callback in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightlib.callbacks.callback import Callback
from lightlib.errors import ArgumentTypeError, check_type, nearest

_HOOKS = tuple(
    name
    for name in vars(Callback)
    if name.startswith("on_") or name in ("setup", "teardown") or name.endswith(("state_dict", "sharded_state"))
)


class LambdaCallback(Callback):
    """A callback with hooks that are given as functions.

    Args:
        hooks: The name of each hook with its function, which gets what the hook gets: `trainer`, `pl_module` and so on.

    Raises:
        ArgumentTypeError: No hook has this name, or the value cannot be called.

    Example:
        >>> callback = LambdaCallback(on_train_start=lambda trainer, pl_module: print("training begins"))
        >>> callback.on_train_start(None, None)
        training begins
    """

    def __init__(self, **hooks: Callable[..., Any]) -> None:
        super().__init__()
        for name, function in hooks.items():
            if name not in _HOOKS:
                raise ArgumentTypeError(
                    f"LambdaCallback({name}=…): no hook has this name.{nearest(name, _HOOKS)}",
                    expected=f"one of {', '.join(_HOOKS)}.",
                    fix="use the name of a hook, LambdaCallback(on_train_start=lambda trainer, pl_module: …).",
                )
            expected = "a function with the arguments of the hook"
            check_type("LambdaCallback", name, function, Callable, expected, "lambda *arguments: …")
            setattr(self, name, function)
