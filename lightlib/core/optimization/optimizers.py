"""Optimization: all that `configure_optimizers` may return, as optimizers and schedules in one form."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightlib import report
from lightlib.core.progress.plan import Plan
from lightlib.core.progress.progress import Progress
from lightlib.errors import ArgumentTypeError, MisconfigurationException, nearest, shown

if TYPE_CHECKING:
    from lightlib.core.module.module import Module

__all__ = [
    "SchedulerConfig",
    "Schedules",
    "closure_of",
    "configure",
    "gradients",
    "scale_gradients",
    "step_scheduler",
    "zeroing",
]

_ZERO_GRAD = Optimizer.zero_grad  # torch's, also if it is patched later
_is_profiled: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]  # noqa: SLF001  a C function
_KEYS = ("scheduler", "interval", "frequency", "monitor", "strict", "name", "reduce_on_plateau")
_GROUP_KEYS = ("optimizer", "lr_scheduler", "monitor", "frequency")
_INTERVALS = ("step", "epoch")
_FORMS = (
    "an Optimizer, a list of them, ([optimizers], [schedulers]), a dict {'optimizer': …, 'lr_scheduler': …}, a list "
    "of such dicts, or None"
)


@dataclass
class SchedulerConfig:
    """One learning-rate schedule and when it steps.

    Attributes:
        scheduler: Any object with `step` and `state_dict`.
        interval: ``"step"`` for optimizer steps, ``"epoch"`` for epochs.
        frequency: It steps at every n-th interval.
        monitor: The metric that a plateau scheduler reads.
        strict: Whether a missing metric is an error (or a warning).
        name: The name for `LearningRateMonitor`.
        reduce_on_plateau: Whether `step` takes the monitored value.
    """

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1
    monitor: str | None = None
    strict: bool = True
    name: str | None = None
    reduce_on_plateau: bool = False


class Schedules:
    """All schedules of a run: they step here and nowhere else, and not at all in manual optimization.

    Attributes:
        configs: All of them.
        by_step: Those that advance with optimizer steps, and only in automatic optimization.
    """

    def __init__(
        self,
        configs: Sequence[SchedulerConfig],
        step: Callable[[Any, Any], None],
        metrics: Callable[[], Mapping[str, Any]],
        automatic: bool = True,
        mean: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self.configs = list(configs)
        self._automatic, self._mean = automatic, mean
        self.by_step = [config for config in configs if automatic and config.interval == "step"]
        self._by_epoch = [config for config in configs if automatic and config.interval == "epoch"]
        self._step = step
        self._metrics = metrics

    def step_batch(self, progress: Progress) -> None:
        """Called after every optimizer step; `progress` does not count it yet."""
        for config in self.by_step:
            if (progress.step + 1) % config.frequency == 0:
                self._advance(config)

    def step_epoch(self, progress: Progress) -> None:
        """Called at the end of every epoch; `progress` does not count it yet."""
        for config in self._by_epoch:
            if (progress.epoch + 1) % config.frequency == 0:
                self._advance(config)

    def _advance(self, config: SchedulerConfig) -> None:
        if not config.reduce_on_plateau:
            return self._step(config.scheduler, None)
        metrics, monitor = self._metrics(), str(config.monitor)
        if monitor in metrics:
            value = metrics[monitor]  # each process has its own of a step, but all must have one learning rate
            return self._step(config.scheduler, self._mean(value) if config.interval == "step" else value)
        known = ", ".join(map(repr, metrics)) or "none"
        message = f"The scheduler {type(config.scheduler).__name__} reads {monitor!r}, which was not logged"
        if config.strict:
            raise MisconfigurationException(
                f"{message}.{nearest(monitor, metrics)}",
                expected=f"a logged metric; there are: {known}.",
                fix=f'self.log("{config.monitor}", …) before the schedule steps, or "strict": False in its dict.',
            )
        return report.warn(f"{message}; it keeps its rate. There are: {known}.")

    def state_dict(self) -> list[Any]:
        return [config.scheduler.state_dict() for config in self.configs]

    def load_state_dict(self, states: Sequence[Any]) -> None:
        for config, state in zip(self.configs, states, strict=True):
            config.scheduler.load_state_dict(state)

    def describe(self, plan: Plan) -> list[str]:
        """Return one line per schedule, for instance ``StepLR: every epoch = 1875 optimizer steps``."""
        if not self._automatic:
            return [
                f"{type(config.scheduler).__name__}: stepped by the module (manual optimization)"
                for config in self.configs
            ]
        lines = []
        for config in self.configs:
            every = (
                f"every {config.interval}" if config.frequency == 1 else f"every {config.frequency} {config.interval}s"
            )
            unit = "optimizer step" if config.interval == "step" else "epoch"
            text = f"{type(config.scheduler).__name__}: {every.replace('step', 'optimizer step')}"
            if unit == "epoch" and 0 < plan.steps_per_epoch < math.inf:
                text += f" = {int(plan.steps_per_epoch) * config.frequency} optimizer steps"
            lines.append(text + (f", reads {config.monitor!r}" if config.reduce_on_plateau else ""))
        return lines


def configure(module: Module, plan: Plan) -> tuple[list[Optimizer], list[SchedulerConfig]]:
    """Call `module.configure_optimizers` and return its optimizers and schedules.

    Raises:
        MisconfigurationException: What it returned has none of the known forms, or contradicts itself.
    """
    returned = module.configure_optimizers()
    late = _LateValues(module, plan)
    optimizers, configs = ([], []) if returned is None else _parts(returned, late)
    _check_optimizers(optimizers, module)
    for config in configs if module.automatic_optimization else ():
        _check_schedule(config, optimizers, plan)
    names = [config.name for config in configs if config.name]
    if len(set(names)) < len(names):
        raise MisconfigurationException(
            f"Two schedulers have one name: {', '.join(map(repr, names))}.",
            expected="a name of its own for each.",
            fix=f"{{'scheduler': scheduler, 'name': {names[0] + '_2'!r}}}",
        )
    return optimizers, configs


class _LateValues:
    """Builds optimizers and schedulers from factories that ask for numbers of the run."""

    def __init__(self, module: Module, plan: Plan) -> None:
        self.module = module
        self.values = {
            "total_steps": plan.total_steps,
            "epochs": plan.max_epochs,
            "steps_per_epoch": plan.steps_per_epoch,
        }

    def optimizer(self, given: Any) -> Optimizer:
        if isinstance(given, Optimizer):
            return given
        if callable(given) and (isinstance(given, type) or not hasattr(given, "state_dict")):
            built = self._built(given, self.module.parameters(), "an optimizer", "torch.optim.Adam(self.parameters())")
            if isinstance(built, Optimizer):
                return built
            given = built
        is_scheduler = hasattr(given, "step") and not isinstance(given, type)
        raise ArgumentTypeError(
            f"configure_optimizers gave {_shown(given)} where an optimizer belongs.",
            expected=f"a torch.optim.Optimizer or a factory of one; in all, {_FORMS}.",
            fix="return [optimizer], [scheduler]"
            if is_scheduler
            else "return torch.optim.Adam(self.parameters(), lr=1e-3)",
        )

    def scheduler(self, given: Any, optimizer: Optimizer) -> Any:
        if hasattr(given, "step") and hasattr(given, "state_dict") and not isinstance(given, type):
            return given
        if callable(given):
            return self._built(
                given, optimizer, "a scheduler", "torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)"
            )
        raise ArgumentTypeError(
            f"configure_optimizers gave {_shown(given)} where a scheduler belongs.",
            expected="an object with `step` and `state_dict`, or a factory that takes the optimizer.",
            fix="torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)",
        )

    def _built(self, factory: Callable[..., Any], first: Any, what: str, fix: str) -> Any:
        wanted = self._wanted(factory)
        try:
            inspect.signature(factory).bind(first, **wanted)
        except TypeError as error:
            raise ArgumentTypeError(
                f"configure_optimizers gave {_shown(factory)} where {what} belongs; called with "
                f"{'the parameters' if what.endswith('optimizer') else 'the optimizer'} alone: {error}.",
                expected=f"{what}, or a factory that needs nothing else (functools.partial binds the rest).",
                fix=fix,
            ) from None
        except ValueError:  # a callable without a signature
            pass
        return factory(first, **wanted)

    def _wanted(self, factory: Callable[..., Any]) -> dict[str, int]:
        bound = factory.keywords if isinstance(factory, partial) else {}
        try:
            parameters = inspect.signature(factory).parameters
        except (TypeError, ValueError):
            return {}
        wanted = {name: value for name, value in self.values.items() if name in parameters and name not in bound}
        if wanted.get("total_steps", math.inf) != math.inf:  # it says all: OneCycleLR needs no other when it has this
            optional = [name for name in wanted if parameters[name].default is not inspect.Parameter.empty]
            wanted = {n: value for n, value in wanted.items() if value != math.inf or n not in optional}
        for name, value in wanted.items():
            if value == math.inf:
                raise MisconfigurationException(
                    f"{getattr(factory, '__name__', factory)!s} asks for `{name}`, which this run cannot tell.",
                    expected="a limit: max_steps, or max_epochs with loaders that know their length.",
                    fix="Trainer(max_steps=…)",
                )
        return {name: max(1, int(value)) for name, value in wanted.items()}  # a schedule of no steps cannot be built


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
                _config(given, optimizers[min(i, len(optimizers) - 1)], late, None)
                for i, given in enumerate(schedulers)
            ]
        return [late.optimizer(part) for part in returned], []
    return [late.optimizer(returned)], []


def _from_dicts(
    groups: Sequence[Mapping[str, Any]], late: _LateValues
) -> tuple[list[Optimizer], list[SchedulerConfig]]:
    optimizers, configs = [], []
    for group in groups:
        unknown = [key for key in group if key not in _GROUP_KEYS]
        if unknown or "optimizer" not in group:
            what = (
                f"an unknown key {unknown[0]!r}.{nearest(str(unknown[0]), _GROUP_KEYS)}"
                if unknown
                else "no key 'optimizer'."
            )
            raise MisconfigurationException(
                f"configure_optimizers returned a dict with {what}",
                expected="the keys 'optimizer', 'lr_scheduler' and 'monitor'.",
                fix="return {'optimizer': optimizer, 'lr_scheduler': scheduler}",
            )
        optimizer = late.optimizer(group["optimizer"])
        optimizers.append(optimizer)
        if group.get("lr_scheduler") is not None:
            configs.append(_config(group["lr_scheduler"], optimizer, late, group.get("monitor")))
    return optimizers, configs


def _config(given: Any, optimizer: Optimizer, late: _LateValues, monitor: str | None) -> SchedulerConfig:
    if not isinstance(given, Mapping):
        given = {"scheduler": given}
    unknown = [key for key in given if key not in _KEYS]
    if unknown or "scheduler" not in given:
        near = nearest(str(unknown[0]), _KEYS) if unknown else ""
        what = f"the unknown key {unknown[0]!r}.{near}" if unknown else "no key 'scheduler'."
        raise MisconfigurationException(
            f"A scheduler's dict has {what}",
            expected=f"keys among {', '.join(map(repr, _KEYS))}.",
            fix="{'scheduler': scheduler, 'interval': 'step', 'frequency': 1}",
        )
    config = SchedulerConfig(**{**given, "scheduler": late.scheduler(given["scheduler"], optimizer)})
    config.monitor = config.monitor or monitor
    config.reduce_on_plateau = config.reduce_on_plateau or isinstance(config.scheduler, ReduceLROnPlateau)
    return config


def _check_schedule(config: SchedulerConfig, optimizers: Sequence[Optimizer], plan: Plan) -> None:
    name = type(config.scheduler).__name__
    if config.interval not in _INTERVALS:
        raise MisconfigurationException(
            f"The scheduler {name} has interval={config.interval!r}.{nearest(str(config.interval), _INTERVALS)}",
            expected="'step' (optimizer steps) or 'epoch'.",
            fix="{'scheduler': scheduler, 'interval': 'step'}",
        )
    frequency: Any = config.frequency
    if isinstance(frequency, bool) or not isinstance(frequency, int) or frequency < 1:
        raise MisconfigurationException(
            f"The scheduler {name} has frequency={config.frequency!r}.",
            expected="an int of at least 1.",
            fix="leave it out to step at every interval.",
        )
    _check_types(config, name)
    if config.reduce_on_plateau and not config.monitor:
        raise MisconfigurationException(
            f"The scheduler {name} has no metric to read.",
            expected="the name of a logged metric under 'monitor'.",
            fix="return {'optimizer': …, 'lr_scheduler': scheduler, 'monitor': 'val_loss'}",
        )
    owner = getattr(config.scheduler, "optimizer", None)
    if isinstance(owner, Optimizer) and all(owner is not optimizer for optimizer in optimizers):
        raise MisconfigurationException(
            f"The scheduler {name} belongs to an optimizer that configure_optimizers does not return.",
            expected="every scheduler's optimizer among the returned ones.",
            fix="build the scheduler with the optimizer that you return.",
        )
    _report_misfit(config, plan)


def _check_types(config: SchedulerConfig, name: str) -> None:
    given: list[tuple[str, Any, type, str, str]] = [
        ("monitor", config.monitor, str, "the name of a logged metric", "'val_loss'"),
        ("strict", config.strict, bool, "True or False", "False"),
        ("reduce_on_plateau", config.reduce_on_plateau, bool, "True or False", "True"),
        ("name", config.name, str, "a string", "'lr'"),
    ]
    for key, value, kind, expected, example in given:
        if value is not None and not isinstance(value, kind):
            raise ArgumentTypeError(
                f"The scheduler {name} has {key}={value!r:.60} ({type(value).__name__}).",
                expected=f"{expected}.",
                fix=f"{{'scheduler': scheduler, {key!r}: {example}}}",
            )


def _check_optimizers(optimizers: Sequence[Optimizer], module: Module) -> None:
    name = type(module).__name__
    if not optimizers:
        report.warn(f"{name}.configure_optimizers returned no optimizer: no parameter will change by one in this run.")
    if len({id(optimizer) for optimizer in optimizers}) < len(optimizers):
        raise MisconfigurationException(
            f"{name}.configure_optimizers returned one optimizer twice.",
            expected="every optimizer once: each of them steps.",
            fix="return optimizer",
        )
    own = {id(parameter) for parameter in module.parameters()}
    for optimizer in optimizers:
        if own and not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
            report.warn(
                f"{type(optimizer).__name__} of {name}.configure_optimizers holds no parameter of {name}, which will "
                "not change by it. Build it from self.parameters(), after all layers exist.",
                report.PossibleUserWarning,
            )


def _shown(given: Any) -> str:
    if isinstance(given, type):
        return f"the class {given.__name__}"
    if isinstance(given, (list, tuple, Mapping)):
        inside = ", ".join(type(part).__name__ for part in (given.values() if isinstance(given, Mapping) else given))
        return f"a {type(given).__name__} of {inside or 'nothing'}"
    if isinstance(given, Optimizer) or hasattr(given, "state_dict"):
        return f"a {type(given).__name__}"
    return f"the function {given.__name__}" if hasattr(given, "__name__") else shown(given)


def _report_misfit(config: SchedulerConfig, plan: Plan) -> None:
    scheduler, name = config.scheduler, type(config.scheduler).__name__
    if plan.num_batches == 0 or plan.total_steps == math.inf:
        return
    if config.interval == "epoch" and plan.steps_per_epoch == math.inf:
        return
    intervals = plan.total_steps if config.interval == "step" else plan.total_steps / plan.steps_per_epoch
    calls = int(intervals) // config.frequency
    if config.interval == "epoch" and calls == 0:
        report.warn(
            f"{name} steps at the end of every epoch, but this run ends before its first epoch does: the rate "
            "will never change. Write {'scheduler': scheduler, 'interval': 'step'} to step it with the optimizer.",
        )
    for attribute in ("total_steps", "T_max", "total_iters"):
        total = getattr(scheduler, attribute, None)
        if not isinstance(total, int) or (attribute == "total_iters" and name != "PolynomialLR") or total == calls:
            continue
        text = f"{name} is built for {total} steps ({attribute}={total}), but this run calls it {_times(calls)}"
        if attribute == "total_steps" and total < calls:
            raise MisconfigurationException(
                f"{text}: it would raise an error at call {total + 1}.",
                expected=f"{attribute}={calls} (it steps every {config.interval}).",
                fix=f"'lr_scheduler': {{'scheduler': lambda optimizer, total_steps: {name}(optimizer, …, "
                "total_steps=total_steps), 'interval': 'step'}",
            )
        ends = "stops before its end" if total > calls else "goes on after its end"
        report.warn(f"{text}: it {ends}. Pass {attribute}={calls}, or another interval.", report.PossibleUserWarning)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def step_scheduler(scheduler: Any, metric: Any) -> None:
    """The default of `Module.lr_scheduler_step`."""
    if metric is None:
        scheduler.step()
    else:
        scheduler.step(metric)


def closure_of(optimizer: Optimizer) -> str | None:
    """Return what `optimizer.step` does with a closure: "needs" it, "takes" it as others' may, or None.

    Optimizers of torch and ours that can do without one step in the same way with and without. What another one does is
    not known: it may evaluate the loss again, or refuse to step without a closure.
    """
    step = inspect.unwrap(type(optimizer).step)
    given = [p for p in list(inspect.signature(step).parameters.values())[1:] if p.kind is not p.KEYWORD_ONLY]
    if not given or given[0].kind is inspect.Parameter.VAR_KEYWORD:
        return None
    if given[0].default is inspect.Parameter.empty and given[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        return "needs"
    return None if step.__module__.split(".")[0] in ("torch", "lightlib") else "takes"


def gradients(optimizers: Sequence[Optimizer]) -> list[torch.Tensor]:
    """Return all gradients that the optimizers will use, each once, also when optimizers share parameters."""
    parameters = {id(p): p for o in optimizers for group in o.param_groups for p in group["params"]}
    return [p.grad for p in parameters.values() if p.grad is not None]


def scale_gradients(optimizers: Sequence[Any], factor: Any) -> None:
    """Multiply all gradients that the optimizers will use; the optimizer of an engine has its own way."""
    for optimizer in optimizers:
        if hasattr(optimizer, "scale_gradients"):
            optimizer.scale_gradients(factor)
    for gradient in gradients([optimizer for optimizer in optimizers if not hasattr(optimizer, "scale_gradients")]):
        gradient.mul_(factor)


def zeroing(optimizers: Sequence[Any]) -> Callable[[Any], None]:
    """Return the function that drops the gradients of one of these optimizers.

    torch's `Optimizer.zero_grad` records itself for torch's profiler even when that is off, which takes longer than
    dropping the gradients. It is called while a profiler runs, and where an optimizer overrides or replaces it.
    """
    is_torchs = (getattr(optimizer.zero_grad, "__func__", None) is _ZERO_GRAD for optimizer in optimizers)
    return _drop_gradients if all(is_torchs) else methodcaller("zero_grad")


def _drop_gradients(optimizer: Optimizer) -> None:
    if _is_profiled():
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
