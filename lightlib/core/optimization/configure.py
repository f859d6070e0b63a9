"""Converts the return value of `configure_optimizers` to optimizers and schedules in one form."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingWarmRestarts,
    CyclicLR,
    LambdaLR,
    OneCycleLR,
    ReduceLROnPlateau,
)

from lightlib import report
from lightlib.conventions import leniency
from lightlib.core.optimization.conversion import in_steps
from lightlib.core.optimization.optimizers import parameters_for
from lightlib.core.optimization.schedule_checks import check_schedule, warn_of_direction
from lightlib.core.optimization.schedules import SchedulerConfig, interval_of
from lightlib.core.progress.plan import Plan
from lightlib.errors import ArgumentTypeError, MisconfigurationException, nearest, shown
from lightlib.schedulers.placeholders import resolved
from lightlib.torch_private import without_parameters

if TYPE_CHECKING:
    from lightlib.core.module.module import Module

_KEYS = (
    *("scheduler", "interval", "frequency", "monitor", "strict", "name", "reduce_on_plateau"),
    *("begin", "end", "convert_to_iter_based"),
)
_GROUP_KEYS = ("optimizer", "lr_scheduler", "monitor", "frequency")
_FORMS = (
    "an Optimizer, a list of them, ([optimizers], [schedulers]), a dict {'optimizer': …, 'lr_scheduler': …}, a list "
    "of such dicts, or None"
)


def configure(
    module: Module,
    plan: Plan,
    counted: bool = True,
    eval_batches: Callable[[], float] = lambda: math.inf,
    empty: bool = False,
) -> tuple[list[Optimizer], list[SchedulerConfig]]:
    """Call `module.configure_optimizers` and return its optimizers and schedules.

    Args:
        module: The module.
        plan: Of the run.
        counted: Whether schedulers that have timm's methods get the numbers of the step and of the epoch.
        eval_batches: Returns the number of validation batches, for a placeholder.
        empty: Whether an optimizer may have no parameters, because other processes have all that it steps.
    """
    with without_parameters() if empty else nullcontext():
        returned = module.configure_optimizers()
    returned = resolved(returned, partial(_number_of, plan, eval_batches))
    late = _LateValues(module, plan, counted)
    optimizers, configs = ([], []) if returned is None else _parts(returned, late)
    _check_optimizers(optimizers, module, empty)
    for config in configs if module.automatic_optimization else ():
        check_schedule(config, optimizers, plan)
        warn_of_direction(config, module)
    names = [config.name for config in configs if config.name]
    if len(set(names)) < len(names):
        raise MisconfigurationException(
            f"Two schedulers have the same name: {', '.join(map(repr, names))}.",
            expected="a different name for each.",
            fix=f"{{'scheduler': scheduler, 'name': {names[0] + '_2'!r}}}",
        )
    return optimizers, configs


def _number_of(plan: Plan, eval_batches: Callable[[], float], name: str) -> float:
    """Return a number of the run for a placeholder."""
    if name == "EVAL_DATALOADER_LEN":
        return eval_batches()
    if name == "UPDATE_STEPS_PER_EPOCH" and plan.steps_differ:
        raise _steps_differ(f"The placeholder {name}", "TOTAL_UPDATE_STEPS in its place.")
    numbers = {
        "TOTAL_UPDATE_STEPS": plan.total_steps,
        "UPDATE_STEPS_PER_EPOCH": plan.steps_per_epoch,
        "TRAIN_DATALOADER_LEN": plan.num_batches,
        "NUM_EPOCHS": plan.num_epochs,
    }
    return numbers[name]


def _steps_differ(topic: str, fix: str) -> MisconfigurationException:
    return MisconfigurationException(
        f"{topic} needs the optimizer steps of an epoch, but they differ: a GradientAccumulationScheduler accumulates "
        "another number of batches in later epochs.",
        expected="the same accumulation in all epochs, or a schedule by the steps of the entire run.",
        fix=fix,
    )


class _LateValues:
    """Builds optimizers and schedulers from factories that take numbers of the run as arguments."""

    def __init__(self, module: Module, plan: Plan, counted: bool) -> None:
        self.module, self._counted, self.steps_differ = module, counted, plan.steps_differ
        self.values = {
            "total_steps": plan.total_steps,
            "epochs": plan.max_epochs,
            "steps_per_epoch": plan.steps_per_epoch,
        }

    def optimizer(self, given: Any) -> Optimizer:
        if isinstance(given, Optimizer):
            return given
        if callable(given) and (isinstance(given, type) or not hasattr(given, "state_dict")):
            first = parameters_for(given, self.module)
            built = self._built(given, first, "an optimizer", "torch.optim.Adam(self.parameters())")
            if isinstance(built, Optimizer):
                return built
            given = built
        is_scheduler = hasattr(given, "step") and not isinstance(given, type)
        adam = "return torch.optim.Adam(self.parameters(), lr=1e-3)"
        raise ArgumentTypeError(
            f"configure_optimizers gave {_shown(given)} where an optimizer belongs.",
            expected=f"a torch.optim.Optimizer or a factory of one; in all, {_FORMS}.",
            fix="return [optimizer], [scheduler]" if is_scheduler else adam,
        )

    def scheduler(self, given: Any, optimizer: Optimizer, begin: Any = None) -> Any:
        """Return the scheduler, built if need be. One that begins later leaves the learning rates as they are now."""
        if hasattr(given, "step") and hasattr(given, "state_dict") and not isinstance(given, type):
            return given
        if callable(given):
            before = [group["lr"] for group in optimizer.param_groups]
            fix = "torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)"
            built = self._built(given, optimizer, "a scheduler", fix)
            if begin:
                _keep_until_begin(built, optimizer, before)
            return built
        raise ArgumentTypeError(
            f"configure_optimizers gave {_shown(given)} where a scheduler belongs.",
            expected="an object with `step` and `state_dict`, or a factory that takes the optimizer.",
            fix="torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)",
        )

    def counts(self, scheduler: Any) -> bool:
        """Whether a scheduler has timm's methods, and the run calls them."""
        return self._counted and hasattr(scheduler, "step_update")

    def _built(self, factory: Callable[..., Any], first: Any, noun: str, fix: str) -> Any:
        accepted = self._accepted(factory)
        try:
            inspect.signature(factory).bind(first, **accepted)
        except TypeError as error:
            raise ArgumentTypeError(
                f"configure_optimizers gave {_shown(factory)} where {noun} belongs; called with "
                f"{'the parameters' if noun.endswith('optimizer') else 'the optimizer'} alone: {error}.",
                expected=f"{noun}, or a factory that needs nothing else (functools.partial binds the rest).",
                fix=fix,
            ) from None
        except ValueError:  # a callable without a signature
            pass
        return factory(first, **accepted)

    def _accepted(self, factory: Callable[..., Any]) -> dict[str, int]:
        bound = factory.keywords if isinstance(factory, partial) else {}
        try:
            parameters = inspect.signature(factory).parameters
        except (TypeError, ValueError):
            return {}
        accepted = {name: value for name, value in self.values.items() if name in parameters and name not in bound}
        total = bound.get("total_steps", accepted.get("total_steps", math.inf))
        if total not in (None, math.inf):  # this suffices: OneCycleLR derives the rest from it
            optional = [name for name in accepted if parameters[name].default is not inspect.Parameter.empty]
            accepted = {n: value for n, value in accepted.items() if value != math.inf or n not in optional}
        for name, value in accepted.items():
            if name == "steps_per_epoch" and self.steps_differ:
                raise _steps_differ(_shown(factory), "a factory with `total_steps` in place of `steps_per_epoch`.")
            if value == math.inf:
                raise MisconfigurationException(
                    f"{getattr(factory, '__name__', factory)!s} needs `{name}`, which is unknown in this run.",
                    expected="a limit: max_steps, or max_epochs with loaders that have a length.",
                    fix="Trainer(max_steps=…)",
                )
        return {name: max(1, int(value)) for name, value in accepted.items()}  # a schedule of 0 steps cannot be built


def _parts(returned: Any, late: _LateValues) -> tuple[list[Optimizer], list[SchedulerConfig]]:
    if isinstance(returned, Mapping):
        return _from_dicts([returned], late)
    if isinstance(returned, (list, tuple)):
        if not returned:
            return [], []
        if all(isinstance(part, Mapping) for part in returned):
            return _from_dicts(returned, late)
        if len(returned) == 2 and isinstance(returned[0], (list, tuple)):
            optimizers = [late.optimizer(part) for part in returned[0]]
            if returned[1] and not optimizers:
                raise MisconfigurationException(
                    "configure_optimizers returned schedulers, but no optimizers.",
                    expected="the optimizer of each scheduler in the first list.",
                    fix="return [optimizer], [scheduler]",
                )
            schedulers = returned[1] if isinstance(returned[1], (list, tuple)) else [returned[1]]
            return optimizers, [
                _config(scheduler, optimizers[min(i, len(optimizers) - 1)], late, None)
                for i, scheduler in enumerate(schedulers)
            ]
        return [late.optimizer(part) for part in returned], []
    return [late.optimizer(returned)], []


def _from_dicts(
    groups: Sequence[Mapping[str, Any]], late: _LateValues
) -> tuple[list[Optimizer], list[SchedulerConfig]]:
    optimizers, configs = [], []
    for group in groups:
        group = _known_keys(  # noqa: PLW2901  the same without what is ignored
            "configure_optimizers returned a dict with", group, _GROUP_KEYS, _nested(group)
        )
        if group.get("frequency", 1) != 1:
            _warn_of_frequency(group, late.module)
        optimizer = late.optimizer(group["optimizer"])
        optimizers.append(optimizer)
        if group.get("lr_scheduler") is not None:
            configs.append(_config(group["lr_scheduler"], optimizer, late, group.get("monitor")))
    return optimizers, configs


def _nested(group: Mapping[str, Any]) -> str:
    """Return the code of an optimizer's dict with the keys of a scheduler in the scheduler's dict."""
    keys = "".join(
        f", {key!r}: {group[key]!r}" for key in group if key in _KEYS and key not in ("scheduler", "monitor")
    )
    scheduler = f"{{'scheduler': scheduler{keys}}}" if keys else "scheduler"
    return f"return {{'optimizer': optimizer, 'lr_scheduler': {scheduler}}}"


def _warn_of_frequency(group: Mapping[str, Any], module: Module) -> None:
    turns = "step the optimizers in turn in training_step, with self.automatic_optimization = False."
    report.warn(
        f"{type(module).__name__}.configure_optimizers returned an optimizer with 'frequency': {group['frequency']!r}, "
        "which is ignored.\n"
        "  Expected: 'frequency' in the dict of a scheduler; Lightning 2.0 removed that of optimizers.\n"
        f"  Fix: {turns if group.get('lr_scheduler') is None else _nested(group)}",
        report.PossibleUserWarning,
    )


def _config(scheduler: Any, optimizer: Optimizer, late: _LateValues, monitor: str | None) -> SchedulerConfig:
    if not isinstance(scheduler, Mapping):
        scheduler = {"scheduler": scheduler}
    fix = "{'scheduler': scheduler, 'interval': 'step', 'frequency': 1}"
    scheduler = _known_keys("A scheduler's dict has", scheduler, _KEYS, fix)
    scheduler = {**scheduler, **interval_of(scheduler)}
    if scheduler.get("convert_to_iter_based") is True:
        if late.steps_differ:
            raise _steps_differ(
                "'convert_to_iter_based': True", "leave it out, and give the lengths in optimizer steps."
            )
        scheduler = in_steps(scheduler, late.values["steps_per_epoch"])
    config = SchedulerConfig(
        **{**scheduler, "scheduler": late.scheduler(scheduler["scheduler"], optimizer, scheduler.get("begin"))}
    )
    unused = [key for key in ("reduce_on_plateau", "monitor", "strict") if key in scheduler]
    if unused and not late.module.automatic_optimization:
        report.warn(
            f"The dict of {type(config.scheduler).__name__} has {', '.join(map(repr, unused))}, which nothing reads in "
            "manual optimization: the module steps the schedule.\n"
            "  Expected: scheduler.step(metric) in a hook of the module.\n"
            f"  Fix: leave out {', '.join(map(repr, unused))}.",
            report.PossibleUserWarning,
        )
    config.monitor = config.monitor or monitor
    config.counts = late.counts(config.scheduler)
    config.reduce_on_plateau = (
        config.reduce_on_plateau
        or isinstance(config.scheduler, ReduceLROnPlateau)
        or (config.counts and config.monitor is not None)
    )
    return config


def _keep_until_begin(scheduler: Any, optimizer: Optimizer, before: Sequence[Any]) -> None:
    """Restore the learning rates that building a schedule changed, unless it computes each from the one before."""
    changed = [
        group for group, rate in zip(optimizer.param_groups, before, strict=True) if float(group["lr"]) != float(rate)
    ]
    from_base = isinstance(scheduler, (LambdaLR, OneCycleLR, CyclicLR, CosineAnnealingWarmRestarts))
    if changed and not from_base and not getattr(scheduler, "closed_form", False):
        name = type(scheduler).__name__
        raise MisconfigurationException(
            f"{name} has a 'begin', but changes the learning rate as soon as it is built.",
            expected="a schedule that leaves it as it is until its first step.",
            fix=f"torch.optim.lr_scheduler.SequentialLR(optimizer, [first, {name}(…)], milestones=[begin])",
        )
    for group, rate in zip(optimizer.param_groups, before, strict=True):
        group.update(lr=rate)


def _known_keys(where: str, config: Mapping[str, Any], keys: Sequence[str], fix: str) -> Mapping[str, Any]:
    """Return the entries with known keys; refuse unknown ones, and a dict without the first of `keys`."""
    unknown = [key for key in config if key not in keys]
    if unknown or keys[0] not in config:
        near = nearest(str(unknown[0]), keys) if unknown else ""
        problem = f"the unknown key {unknown[0]!r}.{near}" if unknown else f"no key {keys[0]!r}."
        error = MisconfigurationException(
            f"{where} {problem}", expected=f"keys among {', '.join(map(repr, keys))}.", fix=fix
        )
        if keys[0] not in config:
            raise error
        leniency().tolerate(error, "it is ignored")
    return {key: value for key, value in config.items() if key in keys}


def _check_optimizers(optimizers: Sequence[Optimizer], module: Module, empty: bool) -> None:
    name = type(module).__name__
    if not optimizers:
        report.warn(
            f"{name}.configure_optimizers returned no optimizer: nothing will be trained.\n"
            f"  Expected: {_FORMS}.\n  Fix: return torch.optim.Adam(self.parameters(), lr=1e-3)"
        )
    if len({id(optimizer) for optimizer in optimizers}) < len(optimizers):
        raise MisconfigurationException(
            f"{name}.configure_optimizers returned one optimizer twice.",
            expected="every optimizer once: each of them steps.",
            fix="return optimizer",
        )
    parameters = {id(parameter) for parameter in module.parameters()}
    for optimizer in optimizers:
        ids = [id(p) for group in optimizer.param_groups for p in group["params"]]
        if parameters and not (empty and not ids) and parameters.isdisjoint(ids):
            report.warn(
                f"{type(optimizer).__name__} of {name}.configure_optimizers holds no parameter of {name}, so it "
                "will not train it.\n"
                f"  Expected: parameters of {name}.\n"
                "  Fix: build the optimizer from self.parameters(), after all layers exist.",
                report.PossibleUserWarning,
            )


def _shown(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, (list, tuple, Mapping)):
        inside = ", ".join(type(part).__name__ for part in (value.values() if isinstance(value, Mapping) else value))
        return f"a {type(value).__name__} of {inside or 'nothing'}"
    if isinstance(value, Optimizer) or hasattr(value, "state_dict"):
        return f"a {type(value).__name__}"
    return f"the function {value.__name__}" if hasattr(value, "__name__") else shown(value)
