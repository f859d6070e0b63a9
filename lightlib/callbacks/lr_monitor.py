"""LearningRateMonitor: log learning rates, momentum and weight decay as the optimizers use them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.requirements import need_receiver
from lightlib.errors import MisconfigurationException, check_flag, check_word

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class LearningRateMonitor(Callback):
    """Logs the learning rate of every optimizer, with or without a schedule.

    The names are ``lr-Adam``; ``lr-Adam/pg1``, ``lr-Adam/pg2`` for several parameter groups; ``lr-Adam/head`` for a
    group with the name "head"; ``lr-Adam-1`` for the second Adam; or the `name` in the scheduler's configuration. They
    are in `trainer.callback_metrics` as well, where other callbacks can monitor them.

    Args:
        logging_interval: "step": with the steps that are logged (`log_every_n_steps`), the rate that the step uses.
            "epoch": when each epoch begins. Default: the interval of the scheduler; without one, "step". By default an
            epoch in which no step is logged has one row as well, when it begins.
        log_momentum: Also log momentum, or Adam's first beta, as ``lr-Adam-momentum``.
        log_weight_decay: Also log the weight decay, as ``lr-Adam-weight_decay``.
        log_key_prefix: Put this in front of all names.
        largest_group: Log only the group with the most parameters of each optimizer, as ``lr-Adam``, in place of all.
            Default: False.

    Attributes:
        lrs: All learning rates that were logged in this run, by name.
        last_momentum_values, last_weight_decay_values: Those that were logged last, by name; None before the first.

    Raises:
        UnknownNameError: `logging_interval` is something else.
        ArgumentTypeError: `largest_group` is no bool.
        MisconfigurationException: When training begins: no logger or callback receives numbers, or groups of an
            optimizer share a name.

    Example:
        >>> LearningRateMonitor(logging_interval="epoch").lrs
        {}
    """

    def __init__(
        self,
        logging_interval: Literal["step", "epoch"] | None = None,
        log_momentum: bool = False,
        log_weight_decay: bool = False,
        log_key_prefix: str | None = None,
        largest_group: bool = False,
    ) -> None:
        super().__init__()
        if logging_interval is not None:
            check_word("LearningRateMonitor", "logging_interval", logging_interval, ("step", "epoch"))
        check_flag("LearningRateMonitor", "largest_group", largest_group)
        self.logging_interval = logging_interval
        self.log_momentum = log_momentum
        self.log_weight_decay = log_weight_decay
        self.log_key_prefix = log_key_prefix
        self.largest_group = largest_group
        self.lrs: dict[str, list[float]] = {}
        self.last_momentum_values: dict[str, float | None] = {}
        self.last_weight_decay_values: dict[str, float | None] = {}
        self._logged_step = 0

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        if not trainer.progress.batch:
            self._logged_step = 0
        need_receiver(self, trainer)
        groups = list(self._groups(trainer))  # warns now of names that are taken twice
        self.lrs = {name: [] for name, *_ in groups}
        self.last_momentum_values = {f"{name}-momentum": None for name, *_ in groups}
        self.last_weight_decay_values = {f"{name}-weight_decay": None for name, *_ in groups}
        without = [name for name, group, _ in groups if "momentum" not in group and "betas" not in group]
        if self.log_momentum and without:
            report.warn(
                f"LearningRateMonitor(log_momentum=True), but {', '.join(without)} has no momentum: 0 is logged.",
                report.PossibleUserWarning,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return which step was logged last: after an overflow a resumed run has it before itself once more."""
        return {"logged_step": self._logged_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._logged_step = int(state_dict["logged_step"])

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        step, every = trainer.progress.step + 1, trainer.log_every_n_steps  # global_step may count each optimizer
        if self.logging_interval == "epoch" or not every or step % every or step == self._logged_step:
            return
        self._logged_step = step
        self._log(trainer, ("step",), step - _behind(trainer))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.run is not None:
            trainer.run.results.note({name: float(group["lr"]) for name, group, _ in self._groups(trainer)})
        if self.logging_interval != "step":
            self._log(trainer, ("epoch", "step") if _logs_no_step(trainer) else ("epoch",), trainer.progress.step)

    def _log(self, trainer: Trainer, intervals: tuple[str, ...], step: int) -> None:
        stats: dict[str, float] = {}
        for name, group, own_interval in self._groups(trainer):
            if self.logging_interval is None and own_interval not in (*intervals, "both"):
                continue
            rate = float(group["lr"])
            stats[name] = rate
            self.lrs.setdefault(name, []).append(rate)
            if self.log_momentum:
                momentum = float(group["betas"][0] if "betas" in group else group.get("momentum", 0))
                stats[f"{name}-momentum"] = self.last_momentum_values[f"{name}-momentum"] = momentum
            if self.log_weight_decay:
                decay = float(group.get("weight_decay", 0))
                stats[f"{name}-weight_decay"] = self.last_weight_decay_values[f"{name}-weight_decay"] = decay
        if trainer.run is not None:
            trainer.run.results.note(stats)
        if stats:
            trainer.log_metrics_now(stats, step=step)

    def _groups(self, trainer: Trainer) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Yield name, parameter group and interval. Read each time: callbacks may add groups while training."""
        configs = {_key(getattr(c.scheduler, "optimizer", None)): c for c in trainer.lr_scheduler_configs[::-1]}
        used: Counter[str] = Counter()
        for optimizer in trainer.optimizers:
            config = configs.get(_key(optimizer))
            kind = type(getattr(optimizer, "optim", optimizer)).__name__  # with ZeRO, the optimizer that it shares out
            name = (config.name if config is not None else None) or f"lr-{kind}"
            number = used[name]
            used[name] += 1
            name = f"{self.log_key_prefix or ''}{name}" + (f"-{number}" if number else "")
            if config is None:
                interval = "both" if _behind(trainer) else "step"
            else:
                interval = "epoch" if config.interval == "epoch" else "step"
            groups = [("", _largest(optimizer))] if self.largest_group else _named_groups(optimizer)
            for suffix, group in groups:
                yield name + suffix, group, interval


def _logs_no_step(trainer: Trainer) -> bool:
    """Whether no step of the epoch that begins is logged; of unknown length, it has at least one."""
    every, step, plan = trainer.log_every_n_steps, trainer.global_step, trainer.plan
    if not every or plan is None or _behind(trainer):
        return False
    batches = plan.num_batches
    steps = 1 if batches == math.inf else math.ceil(batches / plan.accumulation(trainer.progress.epoch))
    return (step + min(steps, plan.max_steps - step)) // every == step // every


def _key(optimizer: Any) -> int:
    """Return the parameter groups, which an optimizer shares with the one that steps in its place."""
    return id(getattr(optimizer, "param_groups", None))


def _largest(optimizer: Optimizer) -> dict[str, Any]:
    """Return the group with the most parameters, the first one if there are several."""
    return max(optimizer.param_groups, key=lambda group: sum(parameter.numel() for parameter in group["params"]))


def _named_groups(optimizer: Optimizer) -> list[tuple[str, dict[str, Any]]]:
    groups = optimizer.param_groups
    if len(groups) == 1:
        name = groups[0].get("name")
        return [(f"/{name}" if name else "", groups[0])]
    names = [str(group.get("name", f"pg{number}")) for number, group in enumerate(groups, 1)]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise MisconfigurationException(
            f"{type(optimizer).__name__} has several parameter groups with the name {twice[0]!r}.",
            expected="a name of its own for each group, or none.",
            fix='change "name" in the groups in configure_optimizers.',
        )
    return list(zip((f"/{name}" for name in names), groups, strict=True))


def _behind(trainer: Trainer) -> bool:
    return trainer.run is not None and trainer.run.order.logs_behind
