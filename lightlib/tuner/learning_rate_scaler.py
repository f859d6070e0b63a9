"""LearningRateScaler: scales learning rates to the batch size of the run, once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.errors import MisconfigurationException, check_number, check_word
from lightlib.optim.scaling import RULES, Rule, Scaling
from lightlib.tuner.attribute import set_rate

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

_MARK = "scaled_by"  # in parameter groups, which are saved and restored with their learning rates
_RATES = ("lr", "initial_lr", "max_lr", "min_lr")  # the last two are OneCycleLR's
_LISTS = ("base_lrs", "max_lrs", "_last_lr")  # of schedules


class LearningRateScaler(Callback):
    """Multiplies all learning rates by the batch size of a step over the one that they were chosen for.

    The batch size of a step is the number of samples of the loader's batch, the processes and the accumulated batches.
    Learning rates are scaled before training, in optimizers and in schedules, which keep absolute limits such as
    `eta_min`. Parameter groups are marked, so a resumed run does not scale again; it warns if its batch size differs.

    Args:
        base_batch_size: The batch size over all processes that the learning rates were chosen for.
        rule: ``"linear"`` (default) or ``"sqrt"``: the square root of the ratio, as is usual for Adam.

    Raises:
        MisconfigurationException: A wrong argument; when a run begins: the batch size of the training data is unknown.

    Example:
        >>> LearningRateScaler(base_batch_size=256).base_batch_size
        256
    """

    def __init__(self, base_batch_size: int, rule: Rule = "linear") -> None:
        super().__init__()
        name = type(self).__name__
        check_number(name, "base_batch_size", base_batch_size, above=0, below=math.inf, example=16)
        check_word(name, "rule", rule, RULES)
        self.base_batch_size, self.rule = base_batch_size, rule

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        batch = self._batch_size(trainer)
        scaling = Scaling.of_batch(batch, self.base_batch_size, self.rule)
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        before = {group[_MARK] for group in groups if _MARK in group}
        if before:
            if before != {scaling.factor}:
                report.warn(
                    f"LearningRateScaler: the learning rates were scaled by {', '.join(f'{x:g}' for x in before)} when "
                    f"this training began; a batch size of {batch} would be {scaling.factor:g}. They stay as they are.",
                    report.PossibleUserWarning,
                )
            return
        for group in groups:
            for name in _RATES:
                if name in group:
                    set_rate(group, group[name] * scaling.factor, name)
            group[_MARK] = scaling.factor
        for config in trainer.lr_scheduler_configs:
            for schedule in _schedules(config.scheduler):
                for name in _LISTS:
                    rates = getattr(schedule, name, None)
                    if isinstance(rates, list):
                        rates[:] = [rate * scaling.factor for rate in rates]
        report.info(
            f"Learning rates are multiplied by {scaling.factor:g}: they were chosen for a batch size of "
            f"{self.base_batch_size}, and a step has {batch} samples."
        )

    def _batch_size(self, trainer: Trainer) -> int:
        """Return the samples of an optimizer step over all processes."""
        size = trainer.per_device_batch_size
        if size is None and trainer.num_training_batches:  # reading it requests the loaders
            size = trainer.per_device_batch_size
        if size is None:
            raise MisconfigurationException(
                "LearningRateScaler: the training data have no known batch size.",
                expected="a DataLoader with batch_size, or several with the same one.",
                fix="DataLoader(dataset, batch_size=32), or scale in configure_optimizers: "
                "lightlib.optim.Scaling.of_batch(32, base=256).lr(0.1).",
            )
        return size * trainer.strategy.data_size * trainer.accumulate_grad_batches


def _schedules(scheduler: Any) -> Iterator[Any]:
    """Yield a schedule and those that it consists of."""
    yield scheduler
    for inner in getattr(scheduler, "_schedulers", ()):
        yield from _schedules(inner)
