"""Events of a Fabric: the calls of its callbacks, and the values for its loggers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from lightlib import report
from lightlib.errors import ArgumentTypeError, MisconfigurationException, shown, wrong_type
from lightlib.signatures import Reduction

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class DirectLog:
    """Takes the place of a run's results: `self.log` of a module passes its value to the loggers of a Fabric at once.

    Args:
        fabric: The Fabric that has set up the module.
    """

    def __init__(self, fabric: Any) -> None:
        self._fabric = fabric

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool,
        logger: bool | None,
        on_step: bool | None,
        on_epoch: bool | None,
        reduce_fx: Reduction | Callable[[Any], Any],
        enable_graph: bool,
        sync_dist: bool,
        *rest: Any,
    ) -> None:
        """Log one value; the arguments are those of `Module.log`. Nothing is reduced over an epoch."""
        if logger is False:
            return
        if sync_dist:
            value = self._fabric.all_reduce(value, reduce_op="mean" if callable(reduce_fx) else reduce_fx)
        self._fabric.log(name, value)


def callbacks_of(given: Any) -> list[Any]:
    """Return the callbacks of the argument: None, any object, or a list of them.

    Raises:
        ArgumentTypeError: One is a class.
    """
    callbacks = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    for callback in callbacks:
        if isinstance(callback, type):
            raise ArgumentTypeError(
                f"callbacks holds {shown(callback)}.",
                expected="instances: objects of any type with methods that fabric.call calls.",
                fix=f"Fabric(callbacks=[{callback.__name__}()])",
            )
    return callbacks


def calls_of(
    callbacks: list[Any], hook_name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Callable[[], Any]]:
    """Return the calls of a hook, with the arguments that each callback's method names."""
    if not isinstance(hook_name, str):
        raise wrong_type("fabric.call", "hook_name", hook_name, "the name of a method", "'on_train_epoch_end'")
    calls: list[Callable[[], Any]] = []
    for callback in callbacks:
        method = getattr(callback, hook_name, None)
        if method is None:
            continue
        if callable(method):
            calls.append(partial(method, *args, **_fitting(callback, hook_name, method, args, kwargs)))
        else:
            report.warn(
                f"{type(callback).__name__}.{hook_name} is {shown(method)}, which cannot be called: it is skipped."
            )
    return calls


def _fitting(
    callback: Any, hook: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the keyword arguments that a callback's method names."""
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):  # a function of C
        return dict(kwargs)
    every = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = {p.name for p in parameters if p.kind not in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)}
    fitting = {name: value for name, value in kwargs.items() if every or name in names}
    taken = [p.name for p in parameters if p.kind in _POSITIONAL][: len(args)]
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    missing = [name for name in required if name not in taken and name not in fitting]
    if missing:
        passed = ", ".join([*(["…"] if args else []), *map(repr, kwargs)]) or "none"
        raise MisconfigurationException(
            f"{type(callback).__name__}.{hook} needs the argument {missing[0]!r}, which fabric.call({hook!r}) did not "
            f"pass; it passed: {passed}.",
            expected="a hook that names only arguments of the call, or gives the rest a default.",
            fix=f"fabric.call({hook!r}, {missing[0]}=…), or remove it from the hook.",
        )
    return fitting


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with numbers for tensors.

    Raises:
        ArgumentTypeError: `metrics` is no mapping.
        MisconfigurationException: A tensor has several elements.
    """
    if not isinstance(metrics, Mapping):
        raise wrong_type("fabric.log_dict", "metrics", metrics, "a dict of names and numbers", "{'loss': loss}")
    return {name: _number(name, value) for name, value in metrics.items()}


def _number(name: str, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.numel() != 1:
        raise MisconfigurationException(
            f"fabric.log got {name!r}, a tensor of shape {tuple(value.shape)}.",
            expected="a number, or a tensor with one element.",
            fix=f"fabric.log({name!r}, value.mean())",
        )
    return value.item()
