"""RunViews: the Trainer's limits, and the position, batch counts and metrics of its run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lightlib.conventions import assigned, internal, leniency
from lightlib.core.metrics.results import Results
from lightlib.core.progress.plan import Intervals, Plan
from lightlib.core.progress.progress import Progress
from lightlib.core.progress.states import RunningStage, TrainerState, TrainerStatus
from lightlib.core.run.parts import END_EPOCH, VALIDATE
from lightlib.core.run.run import Run
from lightlib.core.session import Session
from lightlib.core.setup.batch_sizes import largest_batch
from lightlib.core.setup.settings import Settings
from lightlib.data.train import TrainData
from lightlib.errors import MisconfigurationException
from lightlib.strategies.strategy import Strategy

_STAGES = {stage.value: stage for stage in RunningStage}


_INTERNALS = {  # of Lightning's Trainer, and their public counterparts here
    "fit_loop": "`trainer.progress`, `trainer.plan`; `trainer.max_epochs` and `trainer.max_steps`, which may be set",
    "validate_loop": "`trainer.num_val_batches`",
    "test_loop": "`trainer.num_test_batches`",
    "predict_loop": "`trainer.num_predict_batches`",
    "_callback_connector": "`trainer.callbacks`",
    "_signal_connector": "`trainer.received_sigterm`",
    "_data_connector": "`trainer.train_dataloader` and its siblings",
    "_logger_connector": "`trainer.callback_metrics`",
    "_checkpoint_connector": "`trainer.save_checkpoint`",
    "_accelerator_connector": "`trainer.strategy` and `trainer.accelerator`",
}
_REMOVED = {  # from Lightning's Trainer in 2.0, and what serves instead
    "lightning_optimizers": "`module.optimizers()`",
    "lr_schedulers": "`trainer.lr_scheduler_configs`",
    "tuner": "`lightlib.tuner.Tuner(trainer)`, or the callbacks LearningRateFinder and BatchSizeFinder",
}


class _Limits:
    """The settings that are attributes of the Trainer, under the names of its arguments."""

    accumulate_grad_batches: int
    barebones: bool
    check_val_every_n_epoch: int | Intervals | None
    fast_dev_run: int
    global_batch_size: int | None
    gradient_clip_algorithm: str | None
    gradient_clip_val: float | None
    limit_predict_batches: int | float
    limit_test_batches: int | float
    limit_train_batches: int | float
    limit_val_batches: int | float
    log_every_n_steps: int
    max_epochs: int | float | None
    max_steps: int
    max_time: float | None
    min_epochs: int | None
    min_steps: int | None
    num_sanity_val_steps: float
    overfit_batches: int | float
    reload_dataloaders_every_n_epochs: int
    val_check_at_end: bool
    val_check_interval: int | float | Intervals


_SETTINGS = frozenset(_Limits.__annotations__)


class TrainerLimits(_Limits):
    """Reads the limits from the settings. Setting one checks it, and changes the plan of a fit that runs."""

    settings: Settings
    strategy: Strategy
    progress: Progress
    _session: Session

    if not TYPE_CHECKING:  # type checkers must report unknown names

        def __getattr__(self, name: str) -> Any:
            if name in _SETTINGS and "settings" in self.__dict__:
                return getattr(self.settings, name)
            hint = ""
            if name in _INTERNALS:
                hint = f" `{name}` is internal to Lightning; use {_INTERNALS[name]}."
            elif name in _REMOVED:
                hint = f" `{name}` was removed in Lightning 2.0; use {_REMOVED[name]}."
            return internal(self, name, f"'{type(self).__name__}' object has no attribute {name!r}.{hint}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _SETTINGS:
            self.settings.change(name, value)
            session = self.__dict__.get("_session")
            run = None if session is None else session.run
            if run is not None and run.stage == "train" and run.train_data is not None:
                plan = run.replan(run.train_data.num_batches)
                if self.progress.epoch_batch:  # a new accumulation begins with the next epoch
                    plan = replace(plan, accumulate=run.plan.accumulate)
                run.use_plan(plan)
        elif name not in (*_INTERNALS, *_REMOVED) or not assigned(self, name, value):
            object.__setattr__(self, name, value)


class RunViews(TrainerLimits):
    """The position, numbers and metrics of the run."""

    # where the run is
    @property
    def current_epoch(self) -> int:
        """Completed epochs, which is the index of the running one; with compat, also one that training ended within."""
        return self.progress.epoch + self.progress.shift

    @property
    def global_step(self) -> int:
        """Batches in which an optimizer stepped; with compat, the steps of all optimizers."""
        return self.progress.step + self.progress.more

    @property
    def plan(self) -> Plan | None:
        """The limits and intervals of the run."""
        return self.run.plan if self.run is not None else None

    @property
    def should_stop(self) -> bool:
        """Whether an early stop is requested. May be set."""
        return self.run is not None and self.run.stop.asked

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        if self.run is not None:
            self.run.stop.request(wanted=bool(value))

    @property
    def stop_reason(self) -> str | None:
        """The reason of the `StopTraining` that has ended the last fit, or will; None without one."""
        return self.run.stop.reason if self.run is not None else None

    def request_validation(self) -> None:
        """Validate after the running batch, once; with several processes one of them may request it for all.

        During a validation it does nothing. At most one validation runs after a batch.

        Raises:
            MisconfigurationException: No fit runs, or the fit has no validation data.
        """
        run = self._fitting("request_validation")
        if run.plan.validate_every is None:
            raise MisconfigurationException(
                "A validation was requested, but this fit does not validate.",
                expected="validation data, a validation_step, and a limit_val_batches above 0.",
                fix="trainer.fit(module, train_loader, val_loader)",
            )
        if run.stage == "train":
            run.stop.request(VALIDATE)

    def request_epoch_end(self) -> None:
        """End the running epoch at the next optimizer-step boundary, as if its data ended there.

        With several processes one of them may request it for all. The hooks at the end of the epoch run, and the
        validation at its end. During the last batch of an epoch it does nothing.

        Raises:
            MisconfigurationException: No fit runs.
        """
        run = self._fitting("request_epoch_end")
        if not run.exhausted:
            run.stop.request(END_EPOCH)

    def _fitting(self, name: str) -> Run:
        run = self.run
        if run is None or run.train_data is None or run.stage not in ("train", "validate", "sanity_check"):
            raise MisconfigurationException(
                f"trainer.{name}() was called, but no fit runs.",
                expected="a call within a hook of a callback or module, from on_fit_start to on_train_end.",
                fix=f"call it in on_train_batch_end: trainer.{name}()",
            )
        return run

    @property
    def is_last_batch(self) -> bool:
        """Whether the running batch is the last of its epoch."""
        return self.run is not None and self.run.exhausted

    @property
    def elapsed(self) -> float:
        """Seconds since training began in this process."""
        return self.run.clocks.since_start() if self.run is not None else 0.0

    @property
    def data_wait(self) -> float:
        """Seconds spent waiting for training batches."""
        return self.run.train_data.waited if self.run is not None and self.run.train_data is not None else 0.0

    @property
    def stop_signal(self) -> BaseException | None:
        """The Ctrl-C or SIGTERM that stops all processes at the same optimizer-step boundary, or None."""
        signal: BaseException | None = self._session.signals.received
        return signal

    @property
    def received_sigterm(self) -> bool:
        """Whether SIGTERM is stopping the run."""
        return isinstance(self._session.signals.received, SystemExit)

    @property
    def state(self) -> TrainerState:
        """The function that runs or ran last, its stage and its status."""
        run = self._session.run
        return replace(self._session.state, stage=_STAGES.get(run.stage) if run is not None else None)

    @property
    def run(self) -> Run | None:
        """The run of the last call; None before the first call and during set-up."""
        return self._session.run

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C or SIGTERM ended the last call; with compat also whether an error did, as in Lightning."""
        return self._session.interrupted or self.state.status is TrainerStatus.INTERRUPTED

    def _in(self, *stages: str) -> bool:
        return self.run is not None and self.run.stage in stages

    @property
    def training(self) -> bool:
        """Whether a training batch or epoch hook runs."""
        return self._in("train")

    @property
    def validating(self) -> bool:
        """Whether validation runs."""
        return self._in("validate")

    @property
    def testing(self) -> bool:
        """Whether the test runs."""
        return self._in("test")

    @property
    def predicting(self) -> bool:
        """Whether prediction runs."""
        return self._in("predict")

    @property
    def sanity_checking(self) -> bool:
        """Whether the sanity check runs."""
        return self._in("sanity_check")

    @property
    def evaluating(self) -> bool:
        """Whether an evaluation runs."""
        return self._in("validate", "test", "sanity_check")

    @property
    def _train_data(self) -> TrainData | None:
        """The training data of the last fit, or during set-up of the present one, for `configure_optimizers`."""
        run, builder = self._trained, self._session.builder
        if run is not None:
            return run.train_data
        return builder.loaded if builder is not None else None

    # numbers of batches
    @property
    def per_device_batch_size(self) -> int | None:
        """Samples in a training batch of one process.

        Until the training data are known, the largest number that `global_batch_size` allows; None without it, and for
        data without a batch size. `train_dataloader` may read it.
        """
        data, settings = self._train_data, self.settings
        if data is not None and data.is_loaded:
            sizes = set(data.loaded.batch_sizes())
            return sizes.pop() if len(sizes) == 1 else None
        return largest_batch(settings.global_batch_size, self.strategy.data_size, settings.given_accumulation or 1)

    @property
    def num_training_batches(self) -> float:
        """Training batches per epoch; `inf` if the loader is not known yet or has no length."""
        return self._train_data.num_batches if self._train_data is not None else math.inf

    def _num_batches(self, key: str) -> list[float]:
        evaluations = self._session.builder.evaluations if self._session.builder is not None else {}
        return list(evaluations[key].num_batches) if key in evaluations else []

    @property
    def num_val_batches(self) -> list[float]:
        """Validation batches, per loader."""
        return self._num_batches("val")

    @property
    def enable_validation(self) -> bool:
        """Whether the fit validates: the module has the step, there are loaders, and the limit is not 0."""
        counts, plan = self.num_val_batches, self.plan  # with compat loaders may be requested in a later epoch
        found = any(counts) if counts else plan is not None and plan.validate_every is not None
        return found and self.limit_val_batches > 0

    @property
    def num_test_batches(self) -> list[float]:
        """Test batches, per loader."""
        return self._num_batches("test")

    @property
    def num_predict_batches(self) -> list[float]:
        """Prediction batches, per loader."""
        return self._num_batches("predict")

    @property
    def num_sanity_val_batches(self) -> list[float]:
        """Validation batches in the sanity check of the last fit, per loader; empty before a fit."""
        data = None if self._session.fit_run is None else self._session.fit_run.evaluations.loaded.get("val")
        return [] if data is None else [min(n, self.settings.num_sanity_val_steps) for n in data.num_batches]

    @property
    def val_check_batch(self) -> float | None:
        """Training batches between two validations."""
        plan = self.plan
        every = plan.validate_every if plan is not None else None
        return plan.num_batches if plan is not None and every == math.inf else every

    @property
    def estimated_stepping_batches(self) -> float:
        """Optimizer steps of the complete run; `inf` without a limit. May be read in `configure_optimizers`.

        Raises:
            MisconfigurationException: `max_epochs` limits the run, and the training data are not known yet.
        """
        run, builder, settings = self._trained, self._session.builder, self.settings
        if run is not None and run.train_data is not None:
            return run.plan.total_steps_from(run.progress)
        if builder is not None and builder.sources["train"] is not None:
            total: float = builder.plan(builder.train_data().num_batches).total_steps
            return total
        if settings.max_epochs in (None, -1):
            return math.inf if settings.max_steps == -1 else settings.max_steps
        error = MisconfigurationException(
            f"estimated_stepping_batches was read before fit: with max_epochs={settings.max_epochs} it depends on the "
            "number of training batches.",
            expected="to be read in configure_optimizers, or later.",
            fix="move it into configure_optimizers, or use a schedule factory: lambda optimizer, total_steps: ….",
        )
        leniency().tolerate(error, "it is max_steps")
        return settings.max_steps

    @property
    def _trained(self) -> Run | None:
        """The run of the last fit if its module is still the present one; otherwise the present run."""
        last, run = self._session.fit_run, self.run
        return last if last is not None and run is not None and run.module is last.module else run

    @property
    def gradient_norm(self) -> Tensor | None:
        """The total gradient norm before the last clipping by norm; None before that."""
        return self.run.optimization.gradient_norm if self.run is not None else None

    # metrics
    @property
    def _results(self) -> Results:
        """The results of the last run, also of one in spawned processes."""
        return self._session.results

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The latest logged values, which callbacks read."""
        return self._results.callback_metrics

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        """The values that the loggers received last."""
        return self._results.logged_metrics

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """The values that the progress bar shows."""
        return self._results.progress_bar_metrics
