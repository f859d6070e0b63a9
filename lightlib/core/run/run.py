"""Run: the parts of one run, put together, and the verbs that join two of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightlib import report
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.early_stopping import EarlyStopping
from lightlib.callbacks.monitored import monitors_of, warn_for_unlogged
from lightlib.callbacks.shared_clock import SharedClock
from lightlib.callbacks.timer import Timer
from lightlib.core.metrics.dummy_steps import run_mute
from lightlib.core.metrics.results import Results, Table, to_floats
from lightlib.core.module.module import Module
from lightlib.core.module.overrides import method_of, overrides
from lightlib.core.module.served import add_what_a_batch_is
from lightlib.core.optimization.optimizers import Schedules
from lightlib.core.optimization.window import Window
from lightlib.core.progress.plan import Plan
from lightlib.core.progress.progress import Progress
from lightlib.core.run.agreement import Agreement
from lightlib.core.run.hooks import Hooks
from lightlib.core.run.signals import Signals
from lightlib.core.run.user_state import UserState
from lightlib.data.evaluation import EvalData
from lightlib.data.seed import isolate_rng, part_random_numbers, rng_state, set_rng_state
from lightlib.data.train import TrainData
from lightlib.errors import MisconfigurationException
from lightlib.loggers.fanout import Fanout
from lightlib.precision.scaler import Scaler
from lightlib.strategies.strategy import Strategy

__all__ = ["PREDICT", "SANITY_CHECK", "TEST", "VALIDATION", "Run", "Stage"]


class Stage(NamedTuple):
    """One kind of evaluation.

    Attributes:
        name: As in the names of its hooks.
        state: As in `trainer.state.stage`.
    """

    name: str
    state: str


SANITY_CHECK = Stage("validation", "sanity_check")
VALIDATION = Stage("validation", "validate")
TEST = Stage("test", "test")
PREDICT = Stage("predict", "predict")
_WITHIN = ("start", "epoch_start", "batch_start", "batch_end")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_MAY_STOP = (EarlyStopping, Timer)


class Run:
    """References to the parts of one fit, validate, test or predict. It decides nothing."""

    __slots__ = (
        "agreement", "asked", "backward", "begun", "callbacks", "clip", "clip_defaults", "clock", "datamodule",
        "deferring", "epoch_from", "eval_data", "evaluated", "evaluations", "gradient_norm", "handles", "hooks",
        "inference", "leavable", "loggers", "manual_backward", "module", "module_backward", "optimization",
        "optimizers", "pending_optimizers", "pending_rng", "pending_validation", "phase", "plan", "progress",
        "removable", "replan", "results", "resumed_whole", "scaler", "schedules", "signals", "stage", "started_at",
        "step_method", "stop_asked", "strategy", "train_data", "trainer", "user_state", "validated_at",
        "validates_first", "validation_rng", "warned_nonfinite", "weights_before", "window", "zero_grad",
    )  # fmt: skip

    trainer: Any
    module: Any
    datamodule: Any
    callbacks: list[Any]
    strategy: Strategy
    hooks: Hooks
    loggers: Fanout
    results: Results
    plan: Plan
    progress: Progress
    window: Window
    schedules: Schedules
    signals: Signals
    optimizers: list[Any]
    handles: list[Any]
    scaler: Scaler | None
    train_data: TrainData | None
    eval_data: Callable[[Stage], EvalData]
    replan: Callable[[float], Plan]
    optimization: Callable[..., Any]
    backward: Callable[..., None]
    module_backward: Callable[..., None]
    step_method: Callable[..., None] | None
    zero_grad: Callable[[Any], None]
    clip: Callable[[Any], None] | None
    clip_defaults: tuple[float | None, str | None]
    manual_backward: Callable[..., None]
    gradient_norm: Tensor | None
    inference: bool
    stage: str
    stop_asked: bool
    asked: list[Callable[[], None]]
    pending_optimizers: list[Callable[[], None]]
    pending_rng: dict[str, Any] | None
    pending_validation: dict[str, Any] | None
    validation_rng: dict[str, Any] | None
    evaluations: dict[str, EvalData]
    started_at: float
    validated_at: float
    clock: SharedClock
    warned_nonfinite: bool
    removable: list[Any]
    deferring: bool
    agreement: Agreement | None
    phase: int
    epoch_from: tuple[int, int]
    evaluated: int
    leavable: bool
    begun: bool
    resumed_whole: bool
    validates_first: bool
    weights_before: list[Any]
    user_state: UserState

    def __init__(self, **parts: Any) -> None:
        self.stage = "setup"
        self.stop_asked = False
        self.asked = []
        self.pending_optimizers = []
        self.removable = []
        self.deferring = False
        self.agreement = None
        self.phase = self.evaluated = 0
        self.epoch_from = 0, 0
        self.resumed_whole = self.validates_first = self.begun = False
        self.leavable, self.weights_before = True, []
        self.pending_rng = self.pending_validation = self.validation_rng = None
        self.gradient_norm = None
        self.warned_nonfinite = False
        self.started_at = self.validated_at = monotonic()
        self.clock = SharedClock()
        self.user_state = UserState(self, saves=False)
        for name, part in parts.items():
            setattr(self, name, part)

    # training
    @property
    def exhausted(self) -> bool:
        """Whether the epoch has no further batch."""
        return self.train_data is not None and self.train_data.exhausted

    def begin_training(self) -> None:
        """Start the clocks and set the generators as a checkpoint holds them: from here on only the run may draw."""
        self.deferring = True
        self.started_at = self.validated_at = monotonic()
        self.clock.start(self.progress.batch)
        if not self.progress.batch:
            _warn_of_eval_mode(self.module)
        resumed = self.pending_rng is not None
        while self.pending_optimizers:
            self.pending_optimizers.pop(0)()
        self.user_state.begin()
        if self.pending_rng is not None:
            if self.plan.validate_every is not None and (self.plan.sanity_batches or self.progress.validated):
                self.eval_data(VALIDATION).start_workers()
            if self.pending_validation is not None and self.plan.validate_every is not None:
                self.eval_data(VALIDATION).load_state_dict(self.pending_validation)
            set_rng_state(self.pending_rng)
            self.strategy.accelerator.set_rng_state(self.pending_rng)
            self.pending_rng = None
        if not self.begun and self.strategy.world_size > 1:
            part_random_numbers(self.strategy.broadcast(rng_state()), self.strategy.data_place)
        self.begun = True
        if resumed and self.progress.epoch_batch == 0:
            self.refuse_early_stop()
        if not self.validates_first:
            self.save_if_asked()  # what the run that is resumed had still to save here

    def end_training(self) -> None:
        """From here on a checkpoint is written when it is asked for."""
        self.save_if_asked()
        self.deferring = False

    def begin_epoch(self) -> Plan:
        """Open the epoch's iterator; return the plan, which a callback or reloaded data may have changed."""
        data = self.train_data
        assert data is not None
        with self.user_state.reading():
            data.start_epoch(self.progress.epoch, self.progress.epoch_batch)
        self.window.begin_epoch()
        self.epoch_from = self.progress.batch, -1 if self.progress.epoch_batch else self.progress.step
        self.plan = self.replan(data.num_batches)
        return self.plan

    def stopping(self) -> bool:
        """Whether somebody asked for an early stop and it may be granted."""
        if not (self.stop_asked and self.plan.may_stop(self.progress) and self.between_windows()):
            return False
        return self.agreement is None or self.agreement.reached("stop", self.position())

    def position(self) -> tuple[int, int, int]:
        """Where this process is, in an order that all share: evaluations begun and ended, batches, batches in it."""
        return self.phase, self.progress.batch, self.evaluated

    def since_validation(self) -> float:
        """Seconds since the last validation; with several processes by the clock of the first, 0 while it is early."""
        limit = self.plan.validate_every_seconds
        if self.strategy.world_size == 1 or limit is None:
            return monotonic() - self.validated_at
        return limit if self.clock.over(self.trainer, self.progress.batch, limit) else 0.0

    def between_windows(self) -> bool:
        """Whether no gradients wait for an optimizer step: only then can a checkpoint hold the whole state."""
        return self.plan.window_closed(self.progress, self.exhausted)

    def refuse_early_stop(self) -> None:
        """Forget a wish to stop that came before the minimum."""
        if self.stop_asked and not self.plan.may_stop(self.progress):
            if self.agreement is not None:
                if not self.agreement.reached("stop", self.position()):
                    return  # others have not come here yet
                self.agreement.forget("stop")
            self.stop_asked = False
            report.info(
                f"A stop was asked for after {self.progress.epoch} epochs and {self.progress.step} steps; training "
                f"goes on until min_epochs={self.plan.min_epochs} and min_steps={self.plan.min_steps}."
            )

    def leave_if_possible(self) -> None:
        """Raise the signal that was received, at an optimizer-step boundary, where a checkpoint holds everything."""
        received = self.signals.received
        if received is None or not (self.train_data is None or self.between_windows()):
            return
        changed = self.weights_before and self.weights_before != _fingerprint(self.module)
        if not self.leavable or changed or not self.user_state.may_be_left:
            return  # in a validation that has changed something: it runs to its end first
        kind = "terminate" if isinstance(received, SystemExit) else "interrupt"
        if self.agreement is None or self.agreement.reached(kind, self.position()):
            raise received

    # numbers
    def log_step(self) -> None:
        """Hand what was logged per step to the loggers."""
        values = self.results.fresh_step_values()
        loss = self.window.value
        floats = to_floats(values if loss is None else {**values, "": loss})
        self._look_for_nonfinite(floats)
        floats.pop("", None)
        if floats:
            self.hand_over(floats)

    def log_epoch(self) -> None:
        """Hand the values of the training epoch to the loggers."""
        if self.progress.epoch == 0 and self.loggers and not self.trainer.fast_dev_run:
            self._warn_when_nothing_was_handed_over()
        self.results.reduce()
        values = to_floats(self.results.epoch_values())
        if values:
            self.hand_over(values)
        self._look_for_nonfinite_weights()

    def log_evaluation_step(self) -> None:
        """Hand what an evaluation step logged per step to the loggers, at the step that training is at."""
        if self.stage != "sanity_check" and (values := self.results.fresh_step_values()):
            self.hand_over(to_floats(values))

    def close_evaluation(self) -> list[dict[str, float]]:
        """Reduce what an evaluation logged, hand it to the loggers and return it, one dictionary per loader."""
        self.results.reduce()
        metrics = self.results.epoch_values_by_loader()
        if self.stage == "sanity_check":
            warn_for_unlogged(monitors_of(self.callbacks, self.schedules.configs), self.results.callback_metrics)
        elif values := to_floats(self.results.epoch_values()):
            self.hand_over(values)
        return metrics

    def hand_over(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Give numbers to all loggers and to `on_log`; x is the optimizer step, or what was logged as "step"."""
        numbers = dict(metrics)
        at = numbers.pop("step", None)
        if step is None:
            step = self.progress.step if at is None or not math.isfinite(at) else int(at)
        numbers.setdefault("epoch", self.progress.epoch)
        self.loggers.log_metrics(numbers, step)
        self.hooks.on_log(numbers)

    def look_for_steps(self) -> None:
        """Warn after a first epoch without any optimizer step: rather a forgotten `return` than a wish.

        Raises:
            MisconfigurationException: There was none in this epoch, and the run ends by steps alone.
        """
        progress = self.progress
        self._refuse_to_run_for_ever()
        if progress.epoch == 1 and progress.step == 0 and progress.batch and self.optimizers:
            if self.window.has_no_loss and self.module.automatic_optimization:
                why = "training_step returned None for every batch, which skips it. Write `return loss` at its end."
            elif self.module.automatic_optimization:
                why = "optimizer_step left out every step, or all gradients overflowed."
            else:
                why = "training_step never called self.optimizers().step()."
            report.warn(
                f"No optimizer stepped in epoch 0 ({progress.batch} batches): {type(self.module).__name__}.{why}",
                report.PossibleUserWarning,
            )

    def _refuse_to_run_for_ever(self) -> None:
        batch, step = self.epoch_from
        batches, plan = self.progress.batch - batch, self.plan
        if not batches or self.progress.step > step or plan.max_epochs < math.inf or plan.max_steps == math.inf:
            return
        if self.stop_asked or any(isinstance(one, _MAY_STOP) for one in self.callbacks):
            return
        name = type(self.module).__name__
        if not self.module.automatic_optimization:
            return
        if not self.optimizers:
            why, fix = "configure_optimizers returned no optimizer", "return an optimizer"
        elif self.window.has_no_loss:
            why, fix = "training_step returned no loss for any batch, which skips it", "return the loss"
        else:
            return
        raise MisconfigurationException(
            f"No optimizer stepped in epoch {self.progress.epoch - 1} ({batches} batches): {name}.{why}. Only "
            f"max_steps={plan.max_steps:g} ends this run, so it would never end.",
            expected="an optimizer step in every epoch, or a limit of another kind.",
            fix=f"{fix}, or Trainer(max_epochs=…).",
        )

    def _warn_when_nothing_was_handed_over(self) -> None:
        """Warn when the first epoch ends before the loggers received any of the values that were logged per step."""
        names = ", ".join(map(repr, self.results.waiting_names()))
        if names and 0 < self.progress.step < self.plan.log_every:
            report.warn(
                f"No logger received a value of {names}: values per step are handed over every "
                f"log_every_n_steps={self.plan.log_every} steps, and the first epoch has only {self.progress.step}.\n"
                "  Expected: an interval that is shorter than an epoch.\n"
                f"  Fix: Trainer(log_every_n_steps={max(1, self.progress.step // 10)}), or self.log(…, on_epoch=True).",
                report.PossibleUserWarning,
            )

    def _look_for_nonfinite(self, floats: Mapping[str, float]) -> None:
        if self.warned_nonfinite:
            return
        for name, value in floats.items():
            if not math.isfinite(value):
                self.warned_nonfinite = True
                where = f"epoch {self.progress.epoch}, batch {self.progress.epoch_batch - 1}, step {self.progress.step}"
                what = f"the logged value {name!r}" if name else "the loss"
                report.warn(
                    f"{what} is {value} at {where} (seen when logging). Training goes on. To find where it began use "
                    "callbacks.TerminateOnNaN(), or Trainer(detect_anomaly=True)."
                )
                return

    def _look_for_nonfinite_weights(self) -> None:
        """Warn when the weights have become NaN and no value that was logged has shown it."""
        if self.warned_nonfinite or not self.optimizers or _are_finite(self.module.parameters()):
            return
        self.warned_nonfinite = True
        name, at = type(self.module).__name__, f"epoch {self.progress.epoch}, step {self.progress.step}"
        report.warn(
            f"The weights of {name} are no longer finite in {at} (seen at the end of the epoch), as after a loss "
            "that is NaN. Training goes on. To find where it began use callbacks.TerminateOnNaN(), or "
            "Trainer(detect_anomaly=True)."
        )

    # gradients
    def clip_gradients(self, optimizer: Any, value: float | None, algorithm: str | None) -> None:
        """Clip the unscaled gradients of `optimizer`; what is None is the Trainer's.

        Raises:
            MisconfigurationException: In automatic optimization, values that contradict the Trainer's.
        """
        names = ("gradient_clip_val", "gradient_clip_algorithm")
        for name, given, own in zip(names, (value, algorithm), self.clip_defaults, strict=True):
            if own is not None and given is not None and given != own and self.module.automatic_optimization:
                raise MisconfigurationException(
                    f"clip_gradients got {name}={given!r}, but the Trainer has {name}={own!r}.",
                    expected="one of the two.",
                    fix=f"leave out Trainer({name}=…) to set it in configure_gradient_clipping.",
                )
        value = self.clip_defaults[0] if value is None else value
        if not value:  # 0 is "do not", as in Lightning, and not "make all gradients 0"
            return
        raw = getattr(optimizer, "optimizer", optimizer)
        if not self.module.automatic_optimization:
            self.strategy.sync_gradients(raw)
        if self.scaler is not None:
            self.scaler.unscale(raw)
        self.gradient_norm = self.strategy.clip_gradients(raw, value, algorithm or self.clip_defaults[1] or "norm")

    def value_of_all(self) -> Tensor | None:
        """Return the batch's loss as the mean over processes, for an optimizer that decides by it: alike on all."""
        value, processes = self.window.value, self.window.processes
        return value if value is None or processes is None else processes.reduce(value)

    def optimizers_for_user(self, wrapped: bool) -> Any:
        """Return the optimizer or the list of them, as handles or as they are."""
        found = self.handles if wrapped else self.optimizers
        return found[0] if len(found) == 1 else list(found)

    # checkpoints
    def rng_state(self) -> dict[str, Any]:
        """Return the generators' states, or in a validation those of its start, where a resumed run begins it again.

        Until a resumed run has taken over what its checkpoint holds, it is that.
        """
        return self.pending_rng or self.validation_rng or {**rng_state(), **self.strategy.accelerator.rng_state()}

    def validation_state(self) -> dict[str, Any] | None:
        """Return the state of the validation loaders' own generators; None while nobody has asked for the loaders."""
        data = self.evaluations.get("val")
        return data.state_dict(self.validation_rng is not None) if data is not None else self.pending_validation

    def save_if_asked(self) -> None:
        """Do what was asked for at the last hook, now that a checkpoint can hold the whole state."""
        if self.asked and self.between_windows():
            self.deferring = False
            while self.asked:
                self.asked.pop(0)()
            self.deferring = True

    # evaluation
    @contextmanager
    def at_stage(self, stage: Stage) -> Iterator[None]:
        """Say that `stage` runs, also to the hooks before and after it."""
        before, self.stage = self.stage, stage.state
        yield
        self.stage = before

    @contextmanager
    def evaluating(self, stage: Stage) -> Iterator[EvalData]:
        """Modes, gradients, generators and the table of `self.log` as an evaluation needs them; put back afterwards."""
        before, self.stage = self.stage, stage.state
        data = self.eval_data(stage)
        self.results.table = Table(training=False)
        self.results.table.num_loaders = data.num_loaders
        step = getattr(self.strategy, f"{stage.name}_step")
        data.mute = partial(run_mute, self.results, self.module, step, several=data.num_loaders > 1)
        modes = {part: part.training for part in self.module.modules()}
        within_fit = before == "train" or stage is SANITY_CHECK
        if stage is VALIDATION and within_fit:
            self.validation_rng = self.rng_state()
            self.user_state.hold()
            data.note()
            self.strategy.share_buffers()
        if stage is VALIDATION and within_fit and self.between_windows():
            method_of(self.module, self.hooks.module_base, "on_validation_model_zero_grad")()
        method_of(self.module, self.hooks.module_base, f"on_{stage.name}_model_eval")()
        fast = self.inference and self.strategy.inference_mode and not within_fit
        grad_off = torch.inference_mode if fast else torch.no_grad
        self.phase, self.evaluated = self.phase + 1, 0
        if within_fit and stage is VALIDATION:
            self.leavable, self.weights_before = not self._count_validation_batches(), _fingerprint(self.module)
        try:
            with grad_off():
                if stage is SANITY_CHECK:
                    with isolate_rng():
                        yield data
                else:
                    yield data
        except Exception as error:
            if not self.evaluated:
                add_what_a_batch_is(error, data.given, self.results.table.batch)
            raise
        finally:
            self._back_to_training_mode(stage, modes)
            self.stage = before
            self.phase, self.evaluated = self.phase + 1, 0
            self.leavable, self.weights_before = True, []
            self.results.table.clear()
            if within_fit:
                self.results.table = self.results.train
            if stage is SANITY_CHECK:
                self.results.forget()

    def _count_validation_batches(self) -> bool:
        """Whether a callback's state may change within a validation, which a resumed run begins again."""
        return any(
            overrides(callback, Callback, "state_dict")
            and any(overrides(callback, Callback, f"on_validation_{hook}") for hook in _WITHIN)
            for callback in self.callbacks
        )

    def _back_to_training_mode(self, stage: Stage, modes: dict[torch.nn.Module, bool]) -> None:
        name, base = f"on_{stage.name}_model_train", self.hooks.module_base
        if hasattr(base, name) and overrides(self.module, base, name):  # there is none for prediction
            getattr(self.module, name)()
        else:
            for part, mode in modes.items():
                part.training = mode

    def end_validation(self) -> None:
        """Note where the run was validated, so that no validation is repeated."""
        self.progress.validated = self.progress.batch
        self.validated_at = monotonic()
        self.clock.start(self.progress.batch)
        self.validation_rng = None
        self.user_state.release()


def _warn_of_eval_mode(module: Module) -> None:
    """Warn of parts that are trained in evaluation mode, in which models of other libraries come."""
    found: list[str] = []
    for name, part in module.named_modules():
        within = any(name.startswith(f"{outer}.") or not outer for outer in found)
        if not within and not part.training and any(p.requires_grad for p in part.parameters()):
            found.append(name)
    if not found:
        return
    names = ", ".join(repr(name) if name else type(module).__name__ for name in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    report.warn(
        f"Training begins with {names}{more} in eval mode, though parameters in there are trained: dropout is off and "
        f"batch norm keeps its statistics. Write self{'.' + found[0] if found[0] else ''}.train() in on_fit_start, "
        "unless that is meant.",
        report.PossibleUserWarning,
    )


def _fingerprint(module: torch.nn.Module) -> list[Any]:
    """Return what changes when anybody writes into the parameters, or puts others in their place.

    Places and versions find most of it; writing through `.data` leaves no trace but in the numbers themselves.
    """
    local = [p.to_local() if hasattr(p, "to_local") else p.detach() for p in module.parameters()]
    numbers = torch.nn.utils.get_total_norm([p.detach() for p in local if p.is_floating_point()])
    return [numbers, *((p.data_ptr(), p._version) for p in local)]  # noqa: SLF001  in torch's notes on autograd


def _are_finite(parameters: Iterable[Tensor]) -> bool:
    """Whether what this process has of the trained parameters holds neither NaN nor infinity."""
    local = [p.to_local() if hasattr(p, "to_local") else p.detach() for p in parameters if p.requires_grad]
    numbers = [p.detach() for p in local if p.dtype in _FLOATS and p.numel()]
    # The largest of all: unlike a sum of squares it does not overflow in half precision, and a NaN stays one.
    return not numbers or math.isfinite(torch.nn.utils.get_total_norm(numbers, math.inf).item())
