"""Learning-rate schedules: when they step."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lightlib import report
from lightlib.callbacks.durations import parsed
from lightlib.core.progress.plan import Plan
from lightlib.core.progress.progress import Progress
from lightlib.errors import MisconfigurationException, nearest

UNITS = {"step": "optimizer step", "epoch": "epoch", "batch": "batch", "sample": "sample", "token": "token"}
_INTERVALS = {"ep": "epoch", "st": "step", "ba": "batch", "sp": "sample", "tok": "token"}  # by unit of a duration


@dataclass
class SchedulerConfig:
    """One learning-rate schedule, and the interval at which it steps.

    Attributes:
        scheduler: Any object with `step` and `state_dict`.
        interval: ``"step"`` for optimizer steps, ``"epoch"`` for epochs, ``"batch"`` for batches, which are more than
            the optimizer steps if gradients are accumulated, ``"manual"`` if only the module steps it. A text as
            ``"1e6tok"`` or ``"5ep"`` is an interval with its frequency (``docs/how-to/durations.md``).
        frequency: Steps at every n-th interval.
        monitor: The metric that a plateau scheduler reads.
        strict: Whether a missing metric is an error rather than a warning.
        name: The name for `LearningRateMonitor`.
        reduce_on_plateau: Whether to pass the monitored value to `step`.
        begin: Intervals that pass before the first one that counts.
        end: The last interval that counts; None for the run's last one.
        convert_to_iter_based: Whether it was given in epochs, and was built for optimizer steps.
        counts: Whether it is one of timm's, which get the number of steps and of epochs; the run decides.
    """

    scheduler: Any
    name: str | None = None
    interval: str = "epoch"
    frequency: int = 1
    reduce_on_plateau: bool = False
    monitor: str | None = None
    strict: bool = True
    begin: int = 0
    end: int | None = None
    convert_to_iter_based: bool = False
    counts: bool = False

    def due(self, number: int) -> bool:
        """Whether it steps at the interval with this number; the first one is 1."""
        passed = number - self.begin
        return passed > 0 and passed % self.frequency == 0 and (self.end is None or number <= self.end)

    def calls(self, intervals: float) -> int:
        """Return how often it steps in a run of so many intervals."""
        last = intervals if self.end is None else min(intervals, self.end)
        return max(0, int(last - self.begin)) // self.frequency


class Schedules:
    """All schedules of a run. Only this class steps them, and never in manual optimization.

    Attributes:
        by_step: Those that advance with optimizer steps in automatic optimization, or count them.
        by_batch: Those that advance with batches.
        epoch_stepped: Whether those that advance with epochs and read no metric have done so for the running epoch.
        waiting: The indices of those that advance with the last batch, but read a metric of the validation after it.
    """

    def __init__(
        self,
        configs: Sequence[SchedulerConfig],
        step: Callable[[Any, Any], None],
        metrics: Callable[[], Mapping[str, Any]],
        automatic: bool = True,
        mean: Callable[[Any], Any] = lambda value: value,
        step_of_batch: Callable[[Any, Any], None] | None = None,
        is_old: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self.configs = list(configs)
        self._automatic, self._mean, self._is_old = automatic, mean, is_old
        stepped = [config for config in configs if automatic]
        self.by_step = [config for config in stepped if config.interval == "step" or config.counts]
        self.by_batch = [config for config in stepped if config.interval == "batch"]
        self.by_data = [config for config in stepped if config.interval in ("sample", "token")]
        self._by_epoch = [config for config in stepped if config.interval == "epoch"]
        self._first = {id(config) for config in stepped}
        self._step, self._step_of_batch = step, step_of_batch or step
        self.epoch_stepped = False
        self.waiting: list[int] = []
        self._metrics = metrics
        self._validates: Callable[[bool], bool] = lambda stepped: False

    def wait_for(self, validates: Callable[[bool], bool]) -> None:
        """Set the function that returns whether a validation follows the running batch, given whether it stepped."""
        self._validates = validates

    def step_batch(self, progress: Progress) -> None:
        """Advance after an optimizer step, which `progress` does not count yet."""
        for config in self.by_step:
            if config.counts:
                config.scheduler.step_update(progress.step + 1)
            elif config.due(progress.step + 1):
                self._advance_or_wait(config, True)

    def step_micro_batch(self, progress: Progress, stepped: bool) -> None:
        """Advance after a batch, which `progress` does not count yet; `stepped`: it closed with an optimizer step."""
        for config in self.by_batch:
            if config.due(progress.batch + 1):
                self._advance_or_wait(config, stepped)

    def step_data(self, interval: str, before: int, number: int) -> None:
        """Advance after an optimizer step, for each interval in samples or tokens that ended with it.

        Args:
            interval: ``"sample"`` or ``"token"``.
            before: Their number at the optimizer step before.
            number: Their number now.
        """
        for config in self.by_data:
            if config.interval == interval:
                for _ in range(config.calls(number) - config.calls(before)):
                    self._advance_or_wait(config, True)

    def step_waiting(self) -> None:
        """Advance those that waited for the validation that has just ended."""
        waiting, self.waiting = self.waiting, []
        for index in waiting:
            self._advance(self.configs[index], self._step)

    def step_epoch(self, progress: Progress) -> None:
        """Advance at the end of an epoch, which `progress` does not count yet."""
        for config in self._by_epoch:
            if config.due(progress.epoch + 1) and not (self.epoch_stepped and not config.reduce_on_plateau):
                self._advance(config, self._step_of_epoch(config, progress, self._step))
        self.epoch_stepped = False

    def step_epoch_early(self, progress: Progress) -> None:
        """Advance after the last batch of an epoch, before its hooks; plateau schedules wait for the metrics."""
        for config in self._by_epoch:
            if config.due(progress.epoch + 1) and not config.reduce_on_plateau:
                self._advance(config, self._step_of_epoch(config, progress, self._step_of_batch))
        self.epoch_stepped = True

    def continue_epoch(self, stepped: bool, waiting: Sequence[int] = ()) -> None:
        """Continue an epoch of a run that was interrupted."""
        self.epoch_stepped, self.waiting = stepped, [index for index in waiting if index < len(self.configs)]

    @property
    def may_step_early(self) -> bool:
        """Whether a schedule advances with epochs and reads no metric."""
        return any(not config.reduce_on_plateau for config in self._by_epoch)

    @staticmethod
    def _step_of_epoch(
        config: SchedulerConfig, progress: Progress, step: Callable[[Any, Any], None]
    ) -> Callable[[Any, Any], None]:
        return partial(_step_to, progress.epoch + 1) if config.counts else step

    def _advance_or_wait(self, config: SchedulerConfig, stepped: bool) -> None:
        if config.reduce_on_plateau and self._validates(stepped):
            self.waiting.append(next(i for i, other in enumerate(self.configs) if other is config))
        else:
            self._advance(config, self._step_of_batch)

    def _advance(self, config: SchedulerConfig, step: Callable[[Any, Any], None]) -> None:
        if config.reduce_on_plateau and self._is_old(str(config.monitor)):
            return None  # the last validation left its loader out: there is no new value
        if id(config) in self._first:
            self._first.discard(id(config))
            step = partial(_step_first, step)
        if not config.reduce_on_plateau:
            return step(config.scheduler, None)
        metrics, monitor = self._metrics(), str(config.monitor)
        if monitor in metrics:
            value = metrics[monitor]  # step values differ between processes, but all need the same learning rate
            return step(config.scheduler, self._mean(value) if config.interval == "step" else value)
        logged = ", ".join(map(repr, metrics)) or "none"
        message = f"The scheduler {type(config.scheduler).__name__} reads {monitor!r}, which was not logged"
        if config.strict:
            raise MisconfigurationException(
                f"{message}.{nearest(monitor, metrics)}",
                expected=f"a logged metric; logged so far: {logged}.",
                fix=f'self.log("{config.monitor}", …) before the schedule steps, or "strict": False in its dict.',
            )
        return report.warn(f"{message}; the learning rate does not change. Logged so far: {logged}.")

    def use(self, scheduler: Any) -> list[SchedulerConfig]:
        """Step this scheduler once per epoch from now on, in place of the present ones, which are returned."""
        before, config = self.configs, SchedulerConfig(scheduler)
        self.configs, self._by_epoch = [config], [config] if self._automatic else []
        self.by_step, self.by_batch, self.by_data, self.waiting = [], [], [], []
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
            name = type(config.scheduler).__name__
            if not self._automatic or config.interval == "manual":
                why = "manual optimization" if not self._automatic else 'interval "manual"'
                lines.append(f"{name}: stepped by the module ({why})")
            elif config.counts:
                lines.append(f"{name}: counts every optimizer step and every epoch")
            else:
                lines.append(name + _rhythm(config, plan))
        return lines


def _rhythm(config: SchedulerConfig, plan: Plan) -> str:
    unit = UNITS[config.interval]
    several = "batches" if unit == "batch" else f"{unit}s"
    text = f": every {unit}" if config.frequency == 1 else f": every {config.frequency} {several}"
    if unit == "epoch" and 0 < plan.steps_per_epoch < math.inf:
        text += f" = {int(plan.steps_per_epoch) * config.frequency} optimizer steps"
    if config.begin or config.end is not None:
        text += f", after {unit} {config.begin}" + (f" and up to {unit} {config.end}" if config.end is not None else "")
    return text + (f", reads {config.monitor!r}" if config.reduce_on_plateau else "")


def interval_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the interval and the frequency of a schedule's dict, in which the interval may be a text as ``"1e6tok"``.

    Raises:
        MisconfigurationException: The text is a time, or a broken number of epochs.

    Example:
        >>> interval_of({"interval": "1e6tok"}), interval_of({"interval": "2ep", "frequency": 2})
        ({'interval': 'token', 'frequency': 1000000}, {'interval': 'epoch', 'frequency': 4})
    """
    text = given.get("interval")
    if not isinstance(text, str) or not text[:1].isdigit():
        return {}
    every, frequency = parsed("SchedulerConfig", "interval", text, example='"1e6tok"'), given.get("frequency", 1)
    if every.unit not in _INTERVALS or every.number != int(every.number):
        why = "time, which differs in each run" if every.unit == "s" else "part of an epoch"
        raise MisconfigurationException(
            f"A schedule has the interval {text!r}, a {why}.",
            expected='full epochs, optimizer steps, batches, samples or tokens: "2ep", "100st", "1e6tok".',
            fix="{'scheduler': scheduler, 'interval': '100st'}",
        )
    number = int(every.number)
    return {
        "interval": _INTERVALS[every.unit],
        "frequency": number * frequency if type(frequency) is int else frequency,
    }


def step_scheduler(scheduler: Any, metric: Any) -> None:
    """Step a scheduler: the default of `Module.lr_scheduler_step`."""
    if metric is None:
        scheduler.step()
    else:
        scheduler.step(metric)


def _step_to(number: int, scheduler: Any, metric: Any) -> None:
    if metric is None:
        scheduler.step(number)
    else:
        scheduler.step(number, metric)


def _step_first(step: Callable[[Any, Any], None], scheduler: Any, metric: Any) -> None:
    """Step without torch's warning about the order: the first step may follow a resume, not an optimizer step."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step", category=UserWarning)
        step(scheduler, metric)
