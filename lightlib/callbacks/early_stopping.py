"""EarlyStopping: end the run when a logged metric no longer improves, or has become useless."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.direction import Direction
from lightlib.callbacks.monitored import check_monitor, final_at_epoch_end, is_old, missing, validates
from lightlib.errors import check_int

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class EarlyStoppingReason(Enum):
    """Why `EarlyStopping` ended a run."""

    NOT_STOPPED = 0
    STOPPING_THRESHOLD = 1
    DIVERGENCE_THRESHOLD = 2
    PATIENCE_EXHAUSTED = 3
    NON_FINITE_METRIC = 4


class EarlyStopping(Callback):
    """Ends the run when the monitored metric has not improved for `patience` checks.

    It is checked after each validation, or at the end of each training epoch; the sanity check does not count. Whether
    the run may stop before `min_epochs` and `min_steps` is decided by the Trainer. Stopping is reported once.

    A subclass may override, and a hook may call, the methods that Lightning has for it: `_run_early_stopping_check`,
    `_evaluate_stopping_criteria`, `_should_skip_check`, `_validate_condition_metric` and `_improvement_message`.

    Args:
        monitor: The metric.
        min_delta: A change of at most this much is no improvement; its sign does not matter.
        patience: So many checks without improvement end the run.
        verbose: Also print each improvement.
        mode: "min" when less of the metric is better, "max" when more is. "auto": found from the metric's
            `higher_is_better` or a word in its name. Default: "min", with a warning if more is better by these.
        strict: A metric that was never logged is an error; otherwise a warning.
        check_finite: Stop when the metric is NaN or infinite.
        stopping_threshold: Stop as soon as the metric is better than this.
        divergence_threshold: Stop as soon as the metric is worse than this.
        check_on_train_epoch_end: True: check at the end of training epochs; False: after validations. Default: after
            validations when their rhythm is not that of the epochs, else at the end of epochs.
        log_rank_zero_only: Accepted for compatibility: messages always come from rank zero only.

    Attributes:
        wait_count: Checks since the last improvement.
        stopped_epoch: The epoch in which the run was ended; 0 if it was not.
        best_score: The best value so far.
        stopping_reason: One of :class:`EarlyStoppingReason`.
        stopping_reason_message: The same in words, or None.

    Raises:
        MisconfigurationException: A negative patience; while training: `monitor` was never logged.
        UnknownNameError: `mode` is not "min", "max" or "auto".

    Example:
        >>> EarlyStopping("val_accuracy", mode="max", patience=5).best_score
        tensor(-inf)
    """

    after_module: bool = True
    mode_dict: ClassVar[dict[str, Callable[..., Tensor]]] = {"min": torch.lt, "max": torch.gt}
    order_dict: ClassVar[dict[str, str]] = {"min": "<", "max": ">"}

    def __init__(
        self,
        monitor: str,
        min_delta: float = 0.0,
        patience: int = 3,
        verbose: bool = False,
        mode: Literal["min", "max", "auto"] | None = None,
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool | None = None,
        log_rank_zero_only: bool = False,
    ) -> None:
        super().__init__()
        check_monitor("EarlyStopping", monitor)
        self.monitor = monitor
        self._direction = Direction("EarlyStopping", monitor, mode)
        meaning = ": the checks without improvement that end the run"
        check_int("EarlyStopping", "patience", patience, 0, meaning=meaning, example=3)
        self.min_delta = min_delta
        self.patience = patience
        self.verbose = verbose
        self.strict = strict
        self.check_finite = check_finite
        self.stopping_threshold = stopping_threshold
        self.divergence_threshold = divergence_threshold
        self.check_on_train_epoch_end = check_on_train_epoch_end
        self.log_rank_zero_only = log_rank_zero_only
        self.wait_count = 0
        self.stopped_epoch = 0
        self._use_mode(self._direction.first_mode)
        self.stopping_reason = EarlyStoppingReason.NOT_STOPPED
        self.stopping_reason_message: str | None = None
        self._validated = self._is_early = False
        self._is_final_at_epoch_end: bool | None = None  # whether the metric is, if the user has not chosen
        self._once = report.Once()

    def __repr__(self) -> str:
        return report.described(self, mode=self._direction.given)

    @property
    def state_key(self) -> str:
        """Several of these can be used together when they differ in metric or mode."""
        return self._generate_state_key(monitor=self.monitor, mode=self._direction.of_state_key)

    @property
    def monitor_op(self) -> Callable[..., Tensor]:
        """The comparison by which a metric is better than another."""
        return self.mode_dict[self.mode]

    def _use_mode(self, mode: str) -> None:
        self.mode = mode
        self.min_delta = abs(self.min_delta) if mode == "max" else -abs(self.min_delta)
        self.best_score: Tensor = torch.tensor(-math.inf if mode == "max" else math.inf)

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Find which way is better when `fit` begins, if it is not given."""
        if stage == "fit":
            self._follow(self._direction.settle(self.mode, trainer, pl_module))
            self._is_final_at_epoch_end = trainer.val_check_interval == 1.0 and trainer.check_val_every_n_epoch == 1

    def _follow(self, mode: str) -> None:
        if mode != self.mode:
            self._use_mode(mode)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._validated = False
        self._is_final_at_epoch_end = final_at_epoch_end(trainer)
        self.stopping_reason, self.stopping_reason_message = EarlyStoppingReason.NOT_STOPPED, None

    # when to check

    @property
    def _check_on_train_epoch_end(self) -> bool | None:
        chosen = self.check_on_train_epoch_end
        return self._is_final_at_epoch_end if chosen is None else chosen

    @_check_on_train_epoch_end.setter
    def _check_on_train_epoch_end(self, value: bool | None) -> None:
        self.check_on_train_epoch_end = value

    def _should_skip_check(self, trainer: Trainer) -> bool:
        """Whether this hook is not one of the training. A subclass may skip more."""
        return trainer.state.fn != "fit" or trainer.sanity_checking

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        if trainer.state.fn != "fit":
            return
        self._follow(self._direction.look(self.mode, trainer))
        self._is_final_at_epoch_end = final_at_epoch_end(trainer)
        self._validated = self._validated or not trainer.sanity_checking
        if not (self._check_on_train_epoch_end or self._should_skip_check(trainer)):
            self._run_early_stopping_check(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        self._is_final_at_epoch_end = final_at_epoch_end(trainer)
        if not self._check_on_train_epoch_end or self._should_skip_check(trainer):
            return
        if trainer.world_size > 1 and trainer.run is not None:
            trainer.run.results.reduce()  # what the module has logged in this very hook
        chosen = self.check_on_train_epoch_end is not None
        if chosen or not validates(trainer) or trainer.progress.validated == trainer.progress.batch:
            self._run_early_stopping_check(trainer)  # an epoch that was cut before its validation has no new number

    # the check

    def _run_early_stopping_check(self, trainer: Trainer) -> None:
        """Compare the metric as it is now, and stop the run if it is time."""
        if trainer.fast_dev_run or is_old(trainer, self.monitor):
            return
        self._follow(self._direction.look(self.mode, trainer))
        logs = dict(trainer.callback_metrics)
        value = logs.pop(self.monitor, None)
        # A metric of a step differs between ranks; all must decide the same.
        current = trainer.strategy.broadcast(None if value is None else torch.as_tensor(value).detach().cpu())
        if current is not None:
            logs[self.monitor] = current
        self._is_early = validates(trainer) and not self._validated
        if not self._validate_condition_metric(logs):
            return
        stops, message = self._evaluate_stopping_criteria(logs[self.monitor].squeeze())
        if trainer.strategy.reduce_boolean_decision(stops, all=False):
            trainer.should_stop = True
            self.stopped_epoch = trainer.current_epoch
            self.stopping_reason_message = message
            report.info(
                f"EarlyStopping at current_epoch={trainer.current_epoch}" + (f": {message}" if message else ".")
            )
        elif self.verbose and message:
            report.info(message)

    def _validate_condition_metric(self, logs: Mapping[str, Tensor]) -> bool:
        """Whether the metric is among the logged ones; an error or a warning if it should be by now."""
        if self.monitor in logs:
            return True
        if self._is_early:
            return False  # resumed, or cut, before the first validation of this run
        error = missing("EarlyStopping", self.monitor, list(logs))
        if self.strict:
            raise error
        self._once.warn("missing", str(error), report.PossibleUserWarning)
        return False

    def _better(self, value: Tensor | float, than: Tensor | float) -> bool:
        return bool(value < than) if self.mode == "min" else bool(value > than)

    def _evaluate_stopping_criteria(self, current: Tensor) -> tuple[bool, str | None]:
        """Return whether to stop, and why, or a message for `verbose`; note an improvement or the reason."""
        reason, message = self._evaluate(current)
        stops = reason is not EarlyStoppingReason.NOT_STOPPED
        if stops:
            self.stopping_reason = reason
        return stops, message

    def _improvement_message(self, current: Tensor) -> str:
        return f"{self.monitor!r} improved from {self.best_score.item():.5g} to {current.item():.5g}."

    def _evaluate(self, current: Tensor) -> tuple[EarlyStoppingReason, str | None]:
        name, value, best = self.monitor, f"{current.item():.5g}", f"{self.best_score.item():.5g}"
        if self.check_finite and not torch.isfinite(current):
            return (
                EarlyStoppingReason.NON_FINITE_METRIC,
                f"{name!r} is {value}, which is not finite; the best was {best}.",
            )
        if self.stopping_threshold is not None and self._better(current, self.stopping_threshold):
            self._improve(current)
            message = f"{name!r} = {value} has reached the stopping threshold {self.stopping_threshold}."
            return EarlyStoppingReason.STOPPING_THRESHOLD, message
        if self.divergence_threshold is not None and self._better(self.divergence_threshold, current):
            message = f"{name!r} = {value} is worse than the divergence threshold {self.divergence_threshold}."
            return EarlyStoppingReason.DIVERGENCE_THRESHOLD, message
        if self._better(current - self.min_delta, self.best_score):
            message = self._improvement_message(current)
            self._improve(current)
            return EarlyStoppingReason.NOT_STOPPED, message
        self.wait_count += 1
        if self.wait_count >= self.patience:
            message = f"{name!r} has not improved in the last {self.wait_count} checks; the best was {best}."
            return EarlyStoppingReason.PATIENCE_EXHAUSTED, message
        return EarlyStoppingReason.NOT_STOPPED, None

    def _improve(self, current: Tensor) -> None:
        if self._better(current, self.best_score):
            self.best_score = current.clone()
        self.wait_count = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "wait_count": self.wait_count,
            "stopped_epoch": self.stopped_epoch,
            "best_score": self.best_score,
            "patience": self.patience,
            **self._direction.state(self.mode),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue counting. `patience` stays as it was given to this object, so that a resume can change it."""
        self._follow(state_dict.get("mode", self.mode))
        self.wait_count = state_dict["wait_count"]
        self.stopped_epoch = state_dict["stopped_epoch"]
        self.best_score = torch.as_tensor(state_dict["best_score"])
