"""Learning-rate schedules: when they step, and checks that they fit the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from lightlib import report
from lightlib.conventions import tolerate
from lightlib.core.progress.plan import Plan
from lightlib.core.progress.progress import Progress
from lightlib.errors import ArgumentTypeError, MisconfigurationException, nearest

_INTERVALS = ("step", "epoch")


@dataclass
class SchedulerConfig:
    """One learning-rate schedule, and the interval at which it steps.

    Attributes:
        scheduler: Any object with `step` and `state_dict`.
        interval: ``"step"`` for optimizer steps, ``"epoch"`` for epochs.
        frequency: Steps at every n-th interval.
        monitor: The metric that a plateau scheduler reads.
        strict: Whether a missing metric is an error rather than a warning.
        name: The name for `LearningRateMonitor`.
        reduce_on_plateau: Whether to pass the monitored value to `step`.
    """

    scheduler: Any
    name: str | None = None
    interval: str = "epoch"
    frequency: int = 1
    reduce_on_plateau: bool = False
    monitor: str | None = None
    strict: bool = True


class Schedules:
    """All schedules of a run. Only this class steps them, and never in manual optimization.

    Attributes:
        by_step: Those that advance with optimizer steps in automatic optimization.
        epoch_stepped: Whether those that advance with epochs and read no metric have done so for the running epoch.
    """

    def __init__(
        self,
        configs: Sequence[SchedulerConfig],
        step: Callable[[Any, Any], None],
        metrics: Callable[[], Mapping[str, Any]],
        automatic: bool = True,
        mean: Callable[[Any], Any] = lambda value: value,
        step_of_batch: Callable[[Any, Any], None] | None = None,
    ) -> None:
        self.configs = list(configs)
        self._automatic, self._mean = automatic, mean
        self.by_step = [config for config in configs if automatic and config.interval == "step"]
        self._by_epoch = [config for config in configs if automatic and config.interval == "epoch"]
        self._step, self._step_of_batch = step, step_of_batch or step
        self.epoch_stepped = False
        self._metrics = metrics

    def step_batch(self, progress: Progress) -> None:
        """Advance after an optimizer step, which `progress` does not count yet."""
        for config in self.by_step:
            if (progress.step + 1) % config.frequency == 0:
                self._advance(config, self._step_of_batch)

    def step_epoch(self, progress: Progress) -> None:
        """Advance at the end of an epoch, which `progress` does not count yet."""
        for config in self._by_epoch:
            if (progress.epoch + 1) % config.frequency == 0 and not (
                self.epoch_stepped and not config.reduce_on_plateau
            ):
                self._advance(config, self._step)
        self.epoch_stepped = False

    def step_epoch_early(self, progress: Progress) -> None:
        """Advance after the last batch of an epoch, before its hooks; plateau schedules wait for the metrics."""
        for config in self._by_epoch:
            if (progress.epoch + 1) % config.frequency == 0 and not config.reduce_on_plateau:
                self._advance(config, self._step_of_batch)
        self.epoch_stepped = True

    def continue_epoch(self, stepped: bool) -> None:
        """Continue an epoch of a run that was interrupted."""
        self.epoch_stepped = stepped

    @property
    def may_step_early(self) -> bool:
        """Whether a schedule advances with epochs and reads no metric."""
        return any(not config.reduce_on_plateau for config in self._by_epoch)

    def _advance(self, config: SchedulerConfig, step: Callable[[Any, Any], None]) -> None:
        if not config.reduce_on_plateau:
            return step(config.scheduler, None)
        metrics, monitor = self._metrics(), str(config.monitor)
        if monitor in metrics:
            value = metrics[monitor]  # step values differ between processes, but all need the same learning rate
            return step(config.scheduler, self._mean(value) if config.interval == "step" else value)
        known = ", ".join(map(repr, metrics)) or "none"
        message = f"The scheduler {type(config.scheduler).__name__} reads {monitor!r}, which was not logged"
        if config.strict:
            raise MisconfigurationException(
                f"{message}.{nearest(monitor, metrics)}",
                expected=f"a logged metric; logged so far: {known}.",
                fix=f'self.log("{config.monitor}", …) before the schedule steps, or "strict": False in its dict.',
            )
        return report.warn(f"{message}; the learning rate does not change. Logged so far: {known}.")

    def use(self, scheduler: Any) -> list[SchedulerConfig]:
        """Step this scheduler once per epoch from now on, in place of the present ones, which are returned."""
        before, config = self.configs, SchedulerConfig(scheduler)
        self.configs, self.by_step, self._by_epoch = [config], [], [config] if self._automatic else []
        return before

    def state_dict(self) -> list[Any]:
        return [config.scheduler.state_dict() for config in self.configs]

    def load_state_dict(self, states: Sequence[Any]) -> None:
        for config, state in zip(self.configs, states, strict=True):
            config.scheduler.load_state_dict(state)

    def describe(self, plan: Plan) -> list[str]:
        """Return one line per schedule, for instance ``StepLR: every epoch = 1875 optimizer steps``."""
        lines = []
        for config in self.configs:
            name, unit = type(config.scheduler).__name__, "optimizer step" if config.interval == "step" else "epoch"
            if not self._automatic:
                lines.append(f"{name}: stepped by the module (manual optimization)")
                continue
            text = f"{name}: every {unit}" if config.frequency == 1 else f"{name}: every {config.frequency} {unit}s"
            if unit == "epoch" and 0 < plan.steps_per_epoch < math.inf:
                text += f" = {int(plan.steps_per_epoch) * config.frequency} optimizer steps"
            lines.append(text + (f", reads {config.monitor!r}" if config.reduce_on_plateau else ""))
        return lines


def step_scheduler(scheduler: Any, metric: Any) -> None:
    """Step a scheduler: the default of `Module.lr_scheduler_step`."""
    if metric is None:
        scheduler.step()
    else:
        scheduler.step(metric)


def check_schedule(config: SchedulerConfig, optimizers: Sequence[Optimizer], plan: Plan) -> None:
    """Raise if a schedule is invalid or cannot fit the run, and warn if it probably does not."""
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
            f"{name} steps at the end of every epoch, but this run ends before its first epoch does: the learning "
            "rate will never change. Write {'scheduler': scheduler, 'interval': 'step'} to step it with the optimizer.",
        )
    times = "once" if calls == 1 else f"{calls} times"
    for attribute in ("total_steps", "T_max", "total_iters"):
        total = getattr(scheduler, attribute, None)
        if not isinstance(total, int) or (attribute == "total_iters" and name != "PolynomialLR") or total == calls:
            continue
        text = f"{name} is built for {total} steps ({attribute}={total}), but this run calls it {times}"
        if attribute == "total_steps" and total < calls:
            error = MisconfigurationException(
                f"{text}: it would raise an error at call {total + 1}.",
                expected=f"{attribute}={calls} (it steps every {config.interval}).",
                fix=f"'lr_scheduler': {{'scheduler': lambda optimizer, total_steps: {name}(optimizer, …, "
                "total_steps=total_steps), 'interval': 'step'}",
            )
            tolerate(error, "training begins, and ends with an error at that call")
            continue
        ends = "stops before its end" if total > calls else "continues after its end"
        report.warn(f"{text}: it {ends}. Pass {attribute}={calls}, or another interval.", report.PossibleUserWarning)
