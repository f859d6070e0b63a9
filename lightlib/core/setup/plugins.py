"""Converts the Trainer's arguments: names to objects, limits to a Plan."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch

from lightlib import loggers, registry
from lightlib.accelerators.accelerator import Accelerator
from lightlib.accelerators.resolve import choose
from lightlib.core.progress.plan import Intervals, Plan, as_intervals
from lightlib.core.setup.durations import steps_in
from lightlib.core.setup.settings import Settings, refuse_intervals_within_epochs
from lightlib.core.setup.signatures import LOGGER_METHODS, check_signatures
from lightlib.data.evaluation import EvalData
from lightlib.data.lengths import by_name
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError, closest, owner, shown
from lightlib.launch.environment.detect import Environment, detect
from lightlib.launch.environment.slurm import SLURMEnvironment
from lightlib.loggers.fabric_logger import FabricLogger
from lightlib.loggers.logger import DummyLogger, Logger
from lightlib.precision.precision import Precision, named
from lightlib.profilers.profiler import PassThroughProfiler
from lightlib.strategies.axis_arguments import transforms_of
from lightlib.strategies.plugin import StrategyPlugin
from lightlib.strategies.strategy import Strategy
from lightlib.translations import fix_for

Plugin = Precision | Environment | SLURMEnvironment | StrategyPlugin | str


def strategy_of(given: Any, environment: Environment) -> Strategy:
    """Return the strategy for a name or an instance; ``"auto"`` is ``"ddp"`` with several processes."""
    if isinstance(given, Strategy):
        return given
    if isinstance(given, str):
        registered = registry.names("strategies")
        name = given if given in registered else given.lower()
        if name == "auto":
            several = environment.world_size > 1
            name = ("ddp_notebook" if hasattr(sys, "ps1") else "ddp") if several else "single_device"
        if name not in registered:
            names = ("auto", *registered)
            meant = closest(name, names, "auto")
            raise UnknownNameError("strategy", given, names, fix=f"{owner()}(strategy={meant!r})")
        strategy: Strategy = registry.get("strategies", name)()
        return strategy
    raise ArgumentTypeError(
        f"strategy is {shown(given)}.",
        expected="a name or an instance of lightlib.strategies.Strategy.",
        fix=_instance("strategy", given, Strategy) or f"{owner()}(strategy='auto')",
    )


def environment_of(devices: Any, chosen: list[Any], num_nodes: int, plugins: Any) -> Environment:
    """Return the ranks of this process, from the environment in `plugins` or from the launcher's variables.

    Args:
        chosen: The devices of this machine that it selects.
        plugins: May hold an Environment, or the name of one.

    Raises:
        MisconfigurationException: There are several environments.
    """
    environments = [plugin for plugin in _list(plugins) if is_environment(plugin)]
    requeues = [
        environment
        for environment in environments
        if isinstance(environment, SLURMEnvironment) and not environment.is_asked
    ]
    asked = [environment for environment in environments if environment not in requeues]
    others = [environment for environment in asked if not isinstance(environment, (Environment, str))]
    if len(asked) > 1 or len(requeues) > 1 or (requeues and others):  # SLURM's plugin and an Environment: allowed
        raise MisconfigurationException(
            f"plugins holds several environments: {', '.join(map(_named, environments))}.",
            expected="one, which knows the rank of this process.",
            fix="leave out the other ones; one that is given to the strategy counts as well.",
        )
    first = next(iter(asked), None)
    return detect(None if devices == "auto" else len(chosen), num_nodes, first, automatic=len(chosen))


def hardware_of(
    accelerator: Any, devices: Any, num_nodes: int, plugins: Any
) -> tuple[Accelerator, list[torch.device], Environment]:
    """Return the accelerator, this machine's devices, and the ranks of this process."""
    chosen, used = choose(accelerator, devices)
    environment = environment_of(devices, used, num_nodes, plugins)
    if devices == "auto" and environment.local_size != len(used):
        chosen, used = choose(chosen, environment.local_size)
    return chosen, used, environment


def _named(environment: Any) -> str:
    return repr(environment) if isinstance(environment, str) else type(environment).__name__


def is_environment(plugin: Any) -> bool:
    """Whether a plugin is an environment, which knows the ranks of this process."""
    named = isinstance(plugin, str) and plugin in registry.names("environments")
    return named or isinstance(plugin, (Environment, SLURMEnvironment)) or callable(getattr(plugin, "world_size", None))


def requeue_of(plugins: Any) -> SLURMEnvironment | None:
    """Return the plugin that queues the job again on a signal, or None."""
    slurm = (plugin for plugin in _list(plugins) if isinstance(plugin, SLURMEnvironment))
    return next((plugin for plugin in slurm if plugin.auto_requeue), None)


def _list(plugins: Any) -> list[Any]:
    return [] if plugins is None else list(plugins) if isinstance(plugins, (list, tuple)) else [plugins]


def plugins_of(given: Any, precision: Any) -> Any:
    """Return the precision in `precision` or `plugins`."""
    plugins = _list(given)
    precisions = [plugin for plugin in plugins if isinstance(plugin, Precision)]
    types = (Precision, StrategyPlugin)
    unknown = [plugin for plugin in plugins if not isinstance(plugin, types) and not is_environment(plugin)]
    if unknown:
        raise ArgumentTypeError(
            f"plugins holds {shown(unknown[0])}.",
            expected="a lightlib.precision.Precision or a lightlib.launch.Environment.",
            fix=_instance("plugins", unknown[0], Precision)
            or "leave it out; other kinds of plugins are not part of this version.",
        )
    if len(precisions) > 1 or (precisions and precision is not None):
        both = [repr(value) for value in (precision, *precisions) if value is not None]
        raise MisconfigurationException(
            f"Two precisions were given: {', '.join(both)}.",
            expected="one of them.",
            fix=f"{owner()}(precision={precision!r})" if precision is not None else "leave out one.",
        )
    return precisions[0] if precisions else precision


def arguments_of(strategy: Any, accelerator: Any, devices: Any, plugins: Any) -> tuple[Any, Any, Any]:
    """Return the arguments `accelerator`, `devices` and `plugins`, with those that the strategy sets."""
    of_strategy = strategy.extension.arguments if isinstance(strategy, Strategy) else {}
    arguments = {"accelerator": accelerator, "devices": devices}
    for name, value in arguments.items():
        if name in of_strategy and value != "auto" and value is not of_strategy[name]:
            raise MisconfigurationException(
                f"{name} is given twice: {owner()}({name}={value!r}) and {type(strategy).__name__} with "
                f"{of_strategy[name]!r}.",
                expected="one of the two.",
                fix=f"leave out {owner()}({name}=…).",
            )
    more = of_strategy.get("plugins", ())
    return (
        of_strategy.get("accelerator", accelerator),
        of_strategy.get("devices", devices),
        [*_list(plugins), *more] if more else plugins,
    )


def transform(strategy: Strategy, arguments: dict[str, Any]) -> None:
    """Give the strategy the transforms of the Trainer's arguments."""
    strategy.transform(transforms_of(arguments))


def attach_plugins(plugins: Any, strategy: Strategy) -> None:
    """Let the plugins of the strategy change it.

    Raises:
        MisconfigurationException: There are two of one kind.
    """
    attached: dict[type, StrategyPlugin] = {}
    for plugin in _list(plugins):
        if isinstance(plugin, SLURMEnvironment):
            strategy.extend(environment=plugin)
        elif isinstance(plugin, StrategyPlugin):
            stands_for = plugin.__class__  # of a mock, the class that it stands for
            bases = (base for base in stands_for.__mro__ if StrategyPlugin in base.__bases__)
            cls = next(bases, stands_for)
            if cls in attached:
                raise MisconfigurationException(
                    f"plugins holds two of a kind: {type(attached[cls]).__name__} and {type(plugin).__name__}.",
                    expected=f"one {cls.__name__}.",
                    fix="leave out one of them.",
                )
            attached[cls] = plugin
            stands_for.attach_to(plugin, strategy)


def precision_of(given: Any) -> Precision:
    """Return the precision for a name, a number of bits or an instance; None is ``"32-true"``."""
    return given if isinstance(given, Precision) else named("32-true" if given is None else given)


def loggers_of(given: Any, root: str, fast: bool, base: type = Logger) -> list[Any]:
    """Return the loggers for True, False, None, a name, a logger or several.

    Args:
        root: The folder of loggers that are given by name and have the argument `save_dir`.
        fast: Whether this is a `fast_dev_run`: one logger that records nothing keeps `self.logger` usable.
        base: The class that every logger must derive from: Fabric needs less of a logger than the Trainer.
    """
    if given is False:
        return []
    if fast:
        return [DummyLogger()]
    if given is None or given is True:
        given = "tensorboard"
    if isinstance(given, str):
        factory = registry.get("loggers", given)
        parameters = inspect.signature(factory).parameters.values()
        has_folder = any(
            parameter.name == "save_dir" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters
        )
        return [factory(save_dir=root) if has_folder else factory()]
    several = list(given) if isinstance(given, Iterable) and not isinstance(given, (FabricLogger, type)) else [given]
    for logger in several:
        if isinstance(logger, FabricLogger) and not isinstance(logger, base):
            raise _only_for_fabric(logger)
        if not isinstance(logger, base):
            raise ArgumentTypeError(
                f"{owner().logger} is {shown(logger)}.",
                expected=f"True, False, a logger's name, or instances of lightlib.loggers.{base.__name__}.",
                fix=_instance(owner().logger, logger, base, "'logs'")
                or f"{owner()}({owner().logger}=CSVLogger('logs'))",
            )
        check_signatures(logger, base, LOGGER_METHODS)
    return several


def _only_for_fabric(logger: FabricLogger) -> ArgumentTypeError:
    name = type(logger).__name__
    derive = f"class {name}ForTrainer(lightlib.loggers.Logger, {name}): pass, or use it as Fabric(loggers=...)."
    return ArgumentTypeError(
        f"logger is {shown(logger)}, a logger for Fabric.",
        expected="instances of lightlib.loggers.Logger, which adds save_dir, state_dict and more.",
        fix=f"Trainer(logger=lightlib.loggers.{name}(save_dir))" if name in loggers.__all__ else derive,
    )


def profiler_of(given: Any) -> Any:
    """Return the profiler for a name or an instance; None gives one that measures nothing."""
    if given is None:
        return PassThroughProfiler()
    from lightlib import profilers  # optional: only for runs that are profiled

    if isinstance(given, str):
        names = {
            "simple": "SimpleProfiler",
            "advanced": "AdvancedProfiler",
            "pytorch": "PyTorchProfiler",
            "memory": "MemoryProfiler",
        }
        if given.lower() not in names:
            raise UnknownNameError(
                "profiler", given, names, fix=f"Trainer(profiler={closest(given, names, 'simple')!r})"
            )
        return getattr(profilers, names[given.lower()])()
    if isinstance(given, profilers.Profiler):
        return given
    raise ArgumentTypeError(
        f"profiler is {shown(given)}.",
        expected="'simple', 'advanced', 'memory', 'pytorch' or a lightlib.profilers.Profiler.",
        fix=_instance("profiler", given, profilers.Profiler) or "Trainer(profiler='simple')",
    )


def _instance(argument: str, plugin: Any, base: type, arguments: str = "") -> str:
    is_class = isinstance(plugin, type) and issubclass(plugin, base)
    if foreign := fix_for(plugin):
        return foreign
    return f"{owner()}({argument}={plugin.__name__}({arguments}))" if is_class else ""


def plan_of(
    settings: Settings,
    num_batches: float,
    has_val: bool,
    known: bool = True,
    accumulation: Intervals = (),
    loaders: tuple[tuple[str, Intervals], ...] = (),
    *,
    checks_always: bool = False,
) -> Plan:
    """Return the plan of a fit.

    Args:
        num_batches: Training batches per epoch, after the limit.
        known: Whether this number is final; otherwise the loaders have not been requested yet.
        accumulation: The epochs from which the accumulation changes, each with its number of batches.
        loaders: The intervals of the validation loaders by name, if they have their own.
    """
    every, across = (math.inf, False) if has_val else (None, False)
    if has_val and known:
        every, across = _validation_interval(settings, num_batches)
    epochs, interval = settings.check_val_every_n_epoch, settings.val_check_interval
    plan = Plan(
        num_batches=num_batches,
        accumulate=settings.accumulate_grad_batches,
        accumulate_changes=accumulation,
        max_epochs=math.inf if settings.max_epochs in (None, -1) else math.ceil(settings.max_epochs or 0),
        max_steps=math.inf if settings.max_steps == -1 else settings.max_steps,
        min_epochs=settings.min_epochs or 0,
        min_steps=settings.min_steps or 0,
        validate_every=every,
        validate_across_epochs=across,
        validate_every_seconds=settings.val_check_seconds,
        validate_every_epochs=as_intervals(1 if epochs is None or isinstance(epochs, Mapping) else epochs),
        validate_changes=interval if isinstance(interval, tuple) else (),
        validate_loaders=loaders,
        validate_at_end=settings.val_check_at_end,
        sanity_batches=settings.num_sanity_val_steps,
        log_every=settings.log_every_n_steps,
        checks_always=checks_always,
    )
    return _with_last_batch(plan, settings) if known else plan


def _with_last_batch(plan: Plan, settings: Settings) -> Plan:
    """Return the plan with a limit within an epoch: a part of the last one, or a number of batches."""
    last = _last_epoch_batches(settings.max_epochs, plan)
    plan = replace(plan, last_epoch_batches=last, max_batches=settings.last_batch)
    limit = settings.max_duration
    if limit is None or limit.unit != "ba":
        return plan
    steps_known = plan.num_batches < math.inf or not (plan.accumulate > 1 or plan.accumulate_changes)
    max_steps = min(plan.max_steps, steps_in(limit.number, plan)) if steps_known else plan.max_steps
    return replace(plan, max_batches=limit.number, max_steps=max_steps)


def loader_intervals(settings: Settings, data: EvalData | None) -> tuple[tuple[str, Intervals], ...]:
    """Return the intervals of the validation loaders by name, if they have their own; `data` may not be known yet."""
    by_batches = isinstance(settings.val_check_interval, Mapping)
    argument, default = ("val_check_interval", None) if by_batches else ("check_val_every_n_epoch", 1)
    interval = getattr(settings, argument)
    if not isinstance(interval, Mapping):
        return ()
    if data is None:  # with compat: then a validation is due as often as it may be
        return tuple((name, as_intervals(each)) for name, each in {**interval, "": default}.items() if each)
    each = by_name(argument, interval, data.names, data.name, default)
    read = zip(data.names, each, data.is_read, strict=True)
    return tuple((name, as_intervals(every)) for name, every, is_read in read if is_read)


def _last_epoch_batches(epochs: float | None, plan: Plan) -> float:
    """Return the batches of the last epoch: as many as hold the part's optimizer steps, rounded up."""
    if not isinstance(epochs, float):
        return math.inf
    if plan.num_batches == math.inf:
        raise MisconfigurationException(
            f"max_epochs={epochs} ends within an epoch, but the training loader has no length.",
            expected="a whole number of epochs, or a loader with a length.",
            fix="Trainer(max_steps=1000), or limit_train_batches as an int.",
        )
    fraction = Fraction(str(epochs)) % 1  # as it is written: 1.1 is not 1.100000000000000089
    accumulate = plan.accumulation(int(epochs))
    steps = math.ceil(fraction * math.ceil(plan.num_batches / accumulate))
    return min(plan.num_batches, steps * accumulate)


def _validation_interval(settings: Settings, num_batches: float) -> tuple[float, bool]:
    interval, across = settings.val_check_interval, settings.check_val_every_n_epoch is None
    if settings.validate_each is not None:  # the DataCounter requests each validation
        return sys.maxsize, True
    if settings.val_check_seconds is not None:
        return math.inf, across
    if isinstance(interval, (tuple, Mapping)):
        refuse_intervals_within_epochs(interval, across)
        every = [interval] if isinstance(interval, tuple) else map(as_intervals, interval.values())
        return min(pairs[0][1] for pairs in every), across
    if isinstance(interval, int):
        if not across and 0 < num_batches < interval:
            raise MisconfigurationException(
                f"val_check_interval={interval} is more than the {int(num_batches)} training batches of an epoch: "
                "validation would never run.",
                expected=f"at most {int(num_batches)} batches.",
                fix="use a smaller int, a float (a fraction of the epoch), or check_val_every_n_epoch=None to count "
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
