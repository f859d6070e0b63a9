"""Checks of the arguments of `self.log`, and their errors."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from lightlib import report
from lightlib.core.metrics.torchmetric import is_metric
from lightlib.errors import LoggingError

_ARGUMENTS = ("prog_bar", "logger", "on_step", "on_epoch", "reduce_fx", "enable_graph", "add_dataloader_idx")
# The hook to log from instead, where the value is not too late.
_INSTEAD = {
    **dict.fromkeys(("setup", "on_fit_start", "on_sanity_check_start", "configure_optimizers"), "on_train_start"),
    **dict.fromkeys(("on_train_end", "on_fit_end", "on_fit_epoch_end", "teardown"), "on_train_epoch_end"),
    "on_validation_end": "on_validation_epoch_end",
    "on_test_end": "on_test_epoch_end",
}


def check_flags(name: str, arguments: tuple[Any, ...]) -> None:
    """Raise for flags that are not booleans."""
    for argument, value in zip(_ARGUMENTS, arguments, strict=True):
        if argument != "reduce_fx" and value not in (None, True, False):
            raise LoggingError(
                f"self.log({name!r}, {argument}={value!r:.40}).",
                expected="True or False.",
                fix=f"self.log({name!r}, …, {argument}=True)",
            )


def check_kind(name: str, value: Any) -> None:
    """Raise for complex tensors, and warn about integer tensors, which are logged as floats."""
    if not isinstance(value, Tensor) or value.is_floating_point() or value.dtype == torch.bool:
        return
    if value.is_complex():
        raise _no_number(name, value)
    report.warn(
        f"self.log({name!r}, …) got an integer tensor ({value.dtype}); it is logged as a float.",
        report.PossibleUserWarning,
    )


def check_batch_size(name: str, given: Any) -> Any:
    """Return the weight of a mean: a non-negative number, or a tensor with one element."""
    if isinstance(given, Tensor) and given.numel() == 1 and not given.is_complex():
        return given.detach().reshape(())
    if not isinstance(given, Real) or not 0 <= float(given) < math.inf:
        shown = f"a tensor of shape {tuple(given.shape)}" if isinstance(given, Tensor) else f"{given!r:.40}"
        raise LoggingError(
            f"self.log({name!r}, …, batch_size={shown}).",
            expected="the number of samples that the value is the mean of, at least 0.",
            fix=f"self.log({name!r}, …, batch_size=len(batch))",
        )
    return given


def as_number(name: str, value: Any) -> Any:
    """Convert any other value to a tensor, int or float."""
    if isinstance(value, Tensor):
        return value
    if is_metric(value):
        raise LoggingError(
            f"self.log({name!r}, …) got a {type(value).__name__}, but a number before.",
            expected="a metric each time, or a number each time.",
            fix="give one of the two another name.",
        )
    shape = getattr(value, "shape", ())
    if shape:
        raise not_scalar(name, type(value).__name__, shape)
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise _no_number(name, value)
    try:
        number = value.item() if hasattr(value, "item") else value  # of NumPy: its integers stay integers
        return number if isinstance(number, int) else float(number)
    except (TypeError, ValueError):
        raise _no_number(name, value) from None


def metric_of(name: str, known: Any, value: Any, fresh: bool, several: bool) -> Any:
    """Return the metric for a name logged with `known` before; a new epoch may bring a different one.

    Args:
        fresh: Whether an epoch begins.
        several: Whether several loaders log under the name.
    """
    if fresh and is_metric(value):
        return value
    description = f"another {type(value).__name__} object" if is_metric(value) else f"{value!r:.60}"
    raise LoggingError(
        f"self.log({name!r}, …) got {description}, but a {type(known).__name__} earlier in this epoch.",
        expected="the same metric object each time.",
        fix="leave out add_dataloader_idx=False, or log one metric object with all loaders."
        if several
        else f"build the metric once, in __init__, and log it: self.log({name!r}, self.metric)",
    )


def warn_of_no_logger(name: str) -> None:
    """Warn of a value for loggers in a run without any."""
    report.warn(
        f"self.log({name!r}, …, logger=True) is called, but the Trainer has no logger.\n"
        "  Expected: a logger that receives the value, or a call without logger=True.\n"
        "  Fix: Trainer(logger=True), or leave the argument out.",
        report.PossibleUserWarning,
    )


def warn_of_two_hooks(name: str, first: str, second: str) -> None:
    """Warn about one name that two hooks log."""
    report.warn(
        f"self.log({name!r}, …) is called in `{first}` and in `{second}`: loggers and callbacks get the value of the "
        "second only.\n"
        "  Expected: one hook that logs a name, of the module and of all callbacks.\n"
        "  Fix: give one of the two values another name.",
        report.PossibleUserWarning,
    )


def shared_metric(name: str, attribute: str, first: tuple[str, int], second: tuple[str, int]) -> LoggingError:
    """Return the error for one torchmetric that would mix the values of two stages or loaders."""
    places = [f"{stage}, loader {loader}" if first[0] == second[0] else stage for stage, loader in (first, second)]
    metric = f"self.{attribute}"
    return LoggingError(
        f"self.log({name!r}, {metric}) was called in {places[1]}, but this metric is logged in {places[0]} already: "
        "its value would mix both.",
        expected="a metric of its own for training, for evaluation, and for each loader.",
        fix=f"build another one in __init__ ({metric}.clone()) and update and log that.",
    )


def not_scalar(name: str, kind: str, shape: Any) -> LoggingError:
    """Return the error for several numbers under one name."""
    return LoggingError(
        f"self.log({name!r}, …) got a {kind} of shape {tuple(shape)}.",
        expected="a number, or a tensor with exactly one element.",
        fix=f"self.log({name!r}, value.mean()), or one name per element.",
    )


def _no_number(name: str, value: Any) -> LoggingError:
    entries = isinstance(value, dict) or hasattr(value, "items")
    return LoggingError(
        f"self.log({name!r}, …) got {' '.join(repr(value).split())[:80]} ({type(value).__name__}).",
        expected="a real number, a tensor with one element, or a torchmetrics.Metric.",
        fix="self.log_dict(values)" if entries else f"self.log({name!r}, number), one name per number.",
    )


def changed_arguments(name: str, scope: str, before: tuple[Any, ...], now: tuple[Any, ...]) -> LoggingError:
    """Return the error for two contradictory calls with the same name."""
    differing = [
        f"{argument}={first!r} and then {argument}={second!r}"
        for argument, first, second in zip(_ARGUMENTS, before, now, strict=True)
        if first != second
    ]
    return LoggingError(
        f"self.log({name!r}, …) was called twice in `{scope}` with different arguments: {'; '.join(differing)}.",
        expected="the same arguments for one name in one hook.",
        fix="give the second value another name, or make the arguments equal.",
    )


def no_meaning(name: str, scope: str) -> LoggingError:
    """Return the error for a place where nothing can be logged."""
    where = f"in `{scope}`" if scope.isidentifier() else scope
    if scope.startswith(("predict", "on_predict")):
        fix = f"return the value from predict_step, or self.logger.log_metrics({{{name!r}: value}})."
    elif scope in _INSTEAD:
        fix = f"move the call into {_INSTEAD[scope]}."
    else:
        fix = f"move the call into one of these hooks, or self.logger.log_metrics({{{name!r}: value}})."
    return LoggingError(
        f"self.log({name!r}, …) was called {where}, where it has no meaning.",
        expected="a training, validation or test step, or a hook around it, for instance on_train_start, "
        "on_train_batch_end, on_train_epoch_end or on_validation_epoch_end.",
        fix=fix,
    )
