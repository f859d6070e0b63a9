"""Arguments become parts: strings become objects, limits become a Plan."""

from __future__ import annotations

import math
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any

from lightlib import registry
from lightlib.core.plan import Plan
from lightlib.core.settings import Settings
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError, closest, shown
from lightlib.loggers.logger import DummyLogger, Logger
from lightlib.precision.precision import Precision, named
from lightlib.strategies.single import SingleDeviceStrategy
from lightlib.strategies.strategy import Strategy

__all__ = ["callbacks_of_packages", "loggers_of", "plan_of", "plugins_of", "precision_of", "profiler_of", "strategy_of"]


def strategy_of(given: Any, num_devices: int, num_nodes: int) -> Strategy:
    """Return the strategy for a name or an instance; ``"auto"`` is one device.

    Raises:
        MisconfigurationException: ``"auto"`` with several devices.
        UnknownNameError: No strategy has this name.
    """
    if isinstance(given, Strategy):
        return given
    if isinstance(given, str):
        if given == "auto":
            if num_devices * num_nodes > 1:
                raise MisconfigurationException(
                    f"strategy='auto' with devices={num_devices} and num_nodes={num_nodes}.",
                    expected="one device on one node: this version trains on one.",
                    fix="Trainer(devices=1, num_nodes=1)",
                )
            return SingleDeviceStrategy()
        if given not in registry.names("strategies"):
            raise UnknownNameError(
                "strategy",
                given,
                ("auto", *registry.names("strategies")),
                fix="Trainer(strategy='auto', devices=1); strategies for several devices come with a later version.",
            )
        strategy: Strategy = registry.get("strategies", given)()
        return strategy
    raise ArgumentTypeError(
        f"strategy is {shown(given)}.",
        expected="a name or an instance of lightlib.strategies.Strategy.",
        fix=_instance("strategy", given, Strategy) or "Trainer(strategy='auto')",
    )


def plugins_of(given: Any, precision: Any) -> Any:
    """Return the precision that `precision` or `plugins` asks for.

    Raises:
        MisconfigurationException: Both ask for one, or a plugin is of a kind that is not known.
    """
    plugins = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    found = [plugin for plugin in plugins if isinstance(plugin, Precision)]
    other = [plugin for plugin in plugins if not isinstance(plugin, Precision)]
    if other:
        raise ArgumentTypeError(
            f"plugins holds {shown(other[0])}.",
            expected="a lightlib.precision.Precision.",
            fix=_instance("plugins", other[0], Precision)
            or "leave it out; other kinds of plugins are not part of this version.",
        )
    if len(found) > 1 or (found and precision is not None):
        raise MisconfigurationException(
            f"Two precisions were given: {', '.join(repr(one) for one in (precision, *found) if one is not None)}.",
            expected="one of them.",
            fix=f"Trainer(precision={precision!r})" if precision is not None else "leave out one.",
        )
    return found[0] if found else precision


def precision_of(given: Any) -> Precision:
    """Return the precision for a name, a number of bits or an instance; None is ``"32-true"``."""
    return given if isinstance(given, Precision) else named("32-true" if given is None else given)


def loggers_of(given: Any, root: str, fast: bool) -> list[Logger]:
    """Return the loggers for True, False, None, a name, a logger or several.

    Args:
        given: What the Trainer got.
        root: Where loggers that are named write.
        fast: In `fast_dev_run` one logger that records nothing stands for all, so that `self.logger` can be used.

    Raises:
        ArgumentTypeError: Something else.
    """
    if given is False:
        return []
    if fast:
        return [DummyLogger()]
    if given is None or given is True:
        given = "tensorboard"
    if isinstance(given, str):
        factory = registry.get("loggers", given)
        return [factory(save_dir=root)]
    several = list(given) if isinstance(given, Iterable) and not isinstance(given, (Logger, type)) else [given]
    for logger in several:
        if not isinstance(logger, Logger):
            raise ArgumentTypeError(
                f"logger is {shown(logger)}.",
                expected="True, False, a logger's name, or instances of lightlib.loggers.Logger.",
                fix=_instance("logger", logger, Logger, "'logs'") or "Trainer(logger=CSVLogger('logs'))",
            )
    return several


def profiler_of(given: Any) -> Any:
    """Return the profiler for a name or an instance, or None."""
    if given is None:
        return None
    from lightlib import profilers  # optional: only when asked for

    if isinstance(given, str):
        names = {
            "simple": "SimpleProfiler",
            "advanced": "AdvancedProfiler",
            "pytorch": "PyTorchProfiler",
        }
        if given not in names:
            raise UnknownNameError(
                "profiler", given, names, fix=f"Trainer(profiler={closest(given, names, 'simple')!r})"
            )
        return getattr(profilers, names[given])()
    if isinstance(given, profilers.Profiler):
        return None if isinstance(given, profilers.PassThroughProfiler) else given
    raise ArgumentTypeError(
        f"profiler is {shown(given)}.",
        expected="'simple', 'advanced', 'pytorch' or a lightlib.profilers.Profiler.",
        fix=_instance("profiler", given, profilers.Profiler) or "Trainer(profiler='simple')",
    )


def _instance(argument: str, given: Any, base: type, arguments: str = "") -> str:
    """Return what to write in place of a class that was given, or an empty string."""
    is_one = isinstance(given, type) and issubclass(given, base)
    return f"Trainer({argument}={given.__name__}({arguments}))" if is_one else ""


def callbacks_of_packages() -> list[Any]:
    """Return the callbacks that installed packages add to every Trainer, by the entry points ``lightlib.callbacks``."""
    found: list[Any] = []
    for point in entry_points(group="lightlib.callbacks"):
        made = point.load()()
        found.extend(made if isinstance(made, (list, tuple)) else [made])
    return found


def plan_of(settings: Settings, num_batches: float, has_val: bool) -> Plan:
    """Return the plan of a fit.

    Args:
        settings: The Trainer's arguments.
        num_batches: Training batches per epoch, after the limit.
        has_val: Whether there is something to validate.

    Raises:
        MisconfigurationException: The validation interval does not fit the number of batches.
    """
    every, across = _validation_interval(settings, num_batches) if has_val else (None, False)
    return Plan(
        num_batches=num_batches,
        accumulate=settings.accumulate_grad_batches,
        max_epochs=math.inf if settings.max_epochs is None or settings.max_epochs == -1 else settings.max_epochs,
        max_steps=math.inf if settings.max_steps == -1 else settings.max_steps,
        min_epochs=settings.min_epochs or 0,
        min_steps=settings.min_steps or 0,
        validate_every=every,
        validate_across_epochs=across,
        validate_every_seconds=settings.val_check_seconds,
        validate_every_epochs=settings.check_val_every_n_epoch or 1,
        sanity_batches=settings.num_sanity_val_steps,
        log_every=settings.log_every_n_steps,
    )


def _validation_interval(settings: Settings, num_batches: float) -> tuple[float, bool]:
    interval, across = settings.val_check_interval, settings.check_val_every_n_epoch is None
    if settings.val_check_seconds is not None:
        return math.inf, across
    if isinstance(interval, int):
        if not across and interval > num_batches:
            raise MisconfigurationException(
                f"val_check_interval={interval} is more than the {int(num_batches)} training batches of an epoch: "
                "validation would never run.",
                expected=f"at most {int(num_batches)} batches.",
                fix="a smaller int, a float (a fraction of the epoch), or check_val_every_n_epoch=None to count "
                "batches across epochs.",
            )
        return interval, across
    if interval == 1.0:
        return math.inf, False
    if num_batches == math.inf:
        raise MisconfigurationException(
            f"val_check_interval={interval} is a fraction of an epoch, but the training loader has no length.",
            expected="1.0 (at the end), an int (batches), or a time.",
            fix="Trainer(val_check_interval=1000)",
        )
    return max(1, int(num_batches * interval)), False
