"""Events: the callbacks and loggers of a Fabric."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, SupportsFloat

from torch import Tensor

from lightlib import report
from lightlib.errors import ArgumentTypeError, MisconfigurationException, shown
from lightlib.fabric.communication import Communication
from lightlib.loggers.fabric_logger import FabricLogger
from lightlib.signatures import Reduction

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Events(Communication):
    """Callbacks and loggers; abstract base of :class:`lightlib.fabric.fabric.Fabric`.

    Attributes:
        callbacks: Any objects; `call` calls those methods of them that exist.
    """

    callbacks: list[Any]
    _loggers: list[FabricLogger]

    def call(self, hook_name: str, *args: Any, **kwargs: Any) -> None:
        """Call the method `hook_name` of every callback that has it, in their order.

        Args:
            hook_name: The name of the method.
            args: Passed to each.
            kwargs: Passed to each, as far as its signature names them.

        Raises:
            ArgumentTypeError: `hook_name` is not a string.
            MisconfigurationException: A callback's method needs an argument that is not passed.

        Example:
            >>> import lightlib
            >>> class Report:
            ...     def on_epoch_end(self, epoch):
            ...         print("epoch", epoch)
            >>> fabric = lightlib.Fabric(accelerator="cpu", callbacks=Report())
            >>> fabric.call("on_epoch_end", epoch=3, loss=0.5)
            epoch 3
        """
        if not isinstance(hook_name, str):
            raise ArgumentTypeError(
                f"fabric.call got the hook {shown(hook_name)}.",
                expected="the name of a method.",
                fix="fabric.call('on_train_epoch_end', epoch=epoch)",
            )
        for hook in self._calls_of(hook_name, args, kwargs):  # none is called unless all can be
            hook()

    def _calls_of(self, hook_name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Callable[[], Any]]:
        """Return the calls of a hook, with the arguments that each callback's method names."""
        calls: list[Callable[[], Any]] = []
        for callback in self.callbacks:
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

    # logging
    @property
    def loggers(self) -> list[FabricLogger]:
        """All loggers."""
        return self._loggers

    @property
    def logger(self) -> FabricLogger:
        """The first logger.

        Raises:
            MisconfigurationException: There is none.
        """
        if not self._loggers:
            raise MisconfigurationException(
                "fabric.logger was read, but this Fabric has no logger.",
                expected="at least one logger.",
                fix="Fabric(loggers=CSVLogger('logs'))",
            )
        return self._loggers[0]

    def log(self, name: str, value: SupportsFloat, step: int | None = None) -> None:
        """Pass one value to all loggers; see :meth:`log_dict`."""
        self.log_dict({name: value}, step)

    def log_dict(self, metrics: Mapping[str, SupportsFloat], step: int | None = None) -> None:
        """Pass values to all loggers, which write on rank 0.

        Args:
            metrics: Numbers and tensors with one element, by name. Reduce them first if they differ between ranks.
            step: The x-axis. Default: the loggers count themselves.

        Raises:
            ArgumentTypeError: `metrics` is no mapping.
            MisconfigurationException: A tensor has several elements.

        Example:
            >>> import lightlib, torch
            >>> from lightlib.loggers import CSVLogger
            >>> fabric = lightlib.Fabric(accelerator="cpu", loggers=CSVLogger("logs"))
            >>> fabric.log_dict({"loss": torch.tensor(0.5), "rate": 0.1}, step=0)
        """
        if not isinstance(metrics, Mapping):
            raise ArgumentTypeError(
                f"fabric.log_dict got {shown(metrics)}.",
                expected="a dict of names and numbers.",
                fix="fabric.log_dict({'loss': loss})",
            )
        numbers = {name: _number(name, value) for name, value in metrics.items()}
        for logger in self._loggers:
            logger.log_metrics(numbers, step)


class DirectLog:
    """Takes the place of a run's results: `self.log` of a module passes its value to the loggers of a Fabric at once.

    Args:
        fabric: The Fabric that has set up the module.
    """

    def __init__(self, fabric: Events) -> None:
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
    found = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    for callback in found:
        if isinstance(callback, type):
            raise ArgumentTypeError(
                f"callbacks holds {shown(callback)}.",
                expected="instances: objects of any type with methods that fabric.call calls.",
                fix=f"Fabric(callbacks=[{callback.__name__}()])",
            )
    return found


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
