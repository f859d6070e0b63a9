"""What may be read from a Trainer: one line per property, each a view of the part that owns it."""

from __future__ import annotations

import math
from dataclasses import replace
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from lightlib.core.data import TrainData
from lightlib.core.plan import Plan
from lightlib.core.progress import Progress
from lightlib.core.run import Run
from lightlib.core.settings import Settings
from lightlib.core.states import RunningStage, TrainerState
from lightlib.errors import MisconfigurationException
from lightlib.loggers.logger import Logger

__all__ = ["TrainerViews"]

_SETTINGS = (
    "accumulate_grad_batches", "barebones", "check_val_every_n_epoch", "fast_dev_run", "global_batch_size",
    "gradient_clip_algorithm", "gradient_clip_val", "limit_predict_batches", "limit_test_batches",
    "limit_train_batches", "limit_val_batches", "log_every_n_steps", "max_epochs", "max_steps", "max_time",
    "min_epochs", "min_steps", "num_sanity_val_steps", "overfit_batches", "reload_dataloaders_every_n_epochs",
    "val_check_interval",
)  # fmt: skip
_INSIDE = {
    "fit_loop": "`trainer.progress`, `trainer.plan` and `trainer.max_epochs`",
    "validate_loop": "`trainer.num_val_batches`",
    "test_loop": "`trainer.num_test_batches`",
    "predict_loop": "`trainer.num_predict_batches`",
    "lightning_optimizers": "`module.optimizers()`",
    "tuner": "a tuner callback",
    "lr_schedulers": "`trainer.lr_scheduler_configs`",
    "_data_connector": "`trainer.train_dataloader` and its siblings",
    "_logger_connector": "`trainer.callback_metrics`",
    "_checkpoint_connector": "`trainer.save_checkpoint`",
    "_accelerator_connector": "`trainer.strategy` and `trainer.accelerator`",
}


_STAGES = {stage.value: stage for stage in RunningStage}


class TrainerViews:
    """The read-only side of a Trainer. Limits (`max_epochs`, …) may be set between two calls."""

    settings: Settings
    progress: Progress
    _state: TrainerState
    strategy: Any
    callbacks: Any
    profiler: Any
    precision_plugin: Any
    default_root_dir: str
    num_nodes: int
    devices: list[torch.device]
    _loggers: list[Logger]
    run: Run | None
    _session: Any

    def __getattr__(self, name: str) -> Any:
        if name in _SETTINGS and "settings" in self.__dict__:
            return getattr(self.settings, name)
        hint = f" Lightning's `{name}` is part of its inside; read {_INSIDE[name]}." if name in _INSIDE else ""
        raise AttributeError(f"'{type(self).__name__}' object has no attribute {name!r}.{hint}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _SETTINGS:
            self.settings.change(name, value)
            run = self.__dict__.get("run")
            if run is not None and self.training and run.train_data is not None:
                plan = run.replan(run.train_data.num_batches)
                if self.progress.epoch_batch:  # another number of batches per step begins with the next epoch
                    plan = replace(plan, accumulate=run.plan.accumulate)
                run.plan = plan
        else:
            object.__setattr__(self, name, value)

    # where the run is
    current_epoch = property(lambda self: self.progress.epoch, doc="Epochs completed; the index of the running one.")
    global_step = property(lambda self: self.progress.step, doc="Batches in which an optimizer stepped.")
    interrupted: bool = False

    @property
    def plan(self) -> Plan | None:
        """The limits and intervals of the run."""
        return self.run.plan if self.run is not None else None

    @property
    def should_stop(self) -> bool:
        """Whether somebody asked for an early stop. May be set."""
        return self.run is not None and self.run.stop_asked

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        if self.run is not None:
            self.run.stop_asked = bool(value)

    @property
    def is_last_batch(self) -> bool:
        """Whether the batch that runs is the last of its epoch."""
        return self.run is not None and self.run.exhausted

    @property
    def elapsed(self) -> float:
        """Seconds since training began in this process."""
        return monotonic() - self.run.started_at if self.run is not None else 0.0

    @property
    def data_wait(self) -> float:
        """Seconds spent waiting for training batches."""
        return self.run.train_data.waited if self.run is not None and self.run.train_data is not None else 0.0

    @property
    def stop_signal(self) -> BaseException | None:
        """The Ctrl-C or SIGTERM with which all processes leave the run at one optimizer-step boundary, or None."""
        signal: BaseException | None = self._session.signals.received
        return signal

    @property
    def received_sigterm(self) -> bool:
        """Whether the process was asked to end."""
        return isinstance(self._session.signals.received, SystemExit)

    @property
    def state(self) -> TrainerState:
        """What was called, what is running, how it stands."""
        return replace(self._state, stage=_STAGES.get(self.run.stage) if self.run is not None else None)

    @state.setter
    def state(self, state: TrainerState) -> None:
        self._state = state

    def _in(self, *stages: str) -> bool:
        return self.run is not None and self.run.stage in stages

    training = property(lambda self: self._in("train"), doc="Whether a training batch or epoch hook runs.")
    validating = property(lambda self: self._in("validate"), doc="Whether validation runs.")
    testing = property(lambda self: self._in("test"), doc="Whether the test runs.")
    predicting = property(lambda self: self._in("predict"), doc="Whether prediction runs.")
    sanity_checking = property(lambda self: self._in("sanity_check"), doc="Whether the sanity check runs.")
    evaluating = property(lambda self: self._in("validate", "test", "sanity_check"), doc="Whether an evaluation runs.")

    @property
    def _train_data(self) -> TrainData | None:
        """The training data of the last fit, or of the one that is being built: `configure_optimizers` may ask."""
        run, builder = self._trained, self._session.builder
        if run is not None:
            return run.train_data
        return builder.loaded if builder is not None else None

    # numbers of batches
    @property
    def num_training_batches(self) -> float:
        """Training batches per epoch; `inf` before the loader is known or when it has no length."""
        return self._train_data.num_batches if self._train_data is not None else math.inf

    def _num_batches(self, key: str) -> list[float]:
        evaluations = self._session.builder.evaluations if self._session.builder is not None else {}
        return list(evaluations[key].num_batches) if key in evaluations else []

    num_val_batches = property(lambda self: self._num_batches("val"), doc="Validation batches, per loader.")
    num_test_batches = property(lambda self: self._num_batches("test"), doc="Test batches, per loader.")
    num_predict_batches = property(lambda self: self._num_batches("predict"), doc="Batches to predict, per loader.")

    @property
    def num_sanity_val_batches(self) -> list[float]:
        """Validation batches of the sanity check of the last fit, per loader; empty before any."""
        data = None if self._session.fit_run is None else self._session.fit_run.evaluations.get("val")
        return [] if data is None else [min(n, self.settings.num_sanity_val_steps) for n in data.num_batches]

    @property
    def val_check_batch(self) -> float | None:
        """Training batches between two validations."""
        plan = self.plan
        every = plan.validate_every if plan is not None else None
        return plan.num_batches if plan is not None and every == math.inf else every

    @property
    def estimated_stepping_batches(self) -> float:
        """Optimizer steps of the whole run; `inf` when there is no limit. May be read in `configure_optimizers`.

        Raises:
            MisconfigurationException: `max_epochs` limits the run, and no training data are known yet.
        """
        run, builder, settings = self._trained, self._session.builder, self.settings
        if run is not None and run.train_data is not None:
            return run.plan.total_steps
        if builder is not None and builder.sources["train"] is not None:
            total: float = builder.plan(builder.train_data().num_batches).total_steps
            return total
        if settings.max_epochs in (None, -1):
            return math.inf if settings.max_steps == -1 else settings.max_steps
        raise MisconfigurationException(
            f"estimated_stepping_batches was read before fit: with max_epochs={settings.max_epochs} it depends on the "
            "number of training batches.",
            expected="to be read in configure_optimizers, or later.",
            fix="move it into configure_optimizers, or let a schedule ask: lambda optimizer, total_steps: ….",
        )

    # objects
    @property
    def ckpt_path(self) -> Any:
        """The checkpoint that the last call loaded, or None. Set to a path, it stands for calls that name none."""
        return self._session.loaded_path

    @ckpt_path.setter
    def ckpt_path(self, path: Any) -> None:
        self._session.asked_path = self._session.loaded_path = path

    @property
    def lightning_module(self) -> Any:
        """The module of the last call."""
        return self._session.module

    model = lightning_module

    @property
    def datamodule(self) -> Any:
        """The data module of the last call."""
        return self._session.datamodule

    @property
    def hooks(self) -> Any:
        """The table of hooks; printed, it shows who is called where."""
        return self._session.hooks

    @property
    def _trained(self) -> Run | None:
        """The last fit, as long as its module is the present one; otherwise the present run."""
        last, run = self._session.fit_run, self.run
        return last if last is not None and run is not None and run.module is last.module else run

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers; after an evaluation still those of the last fit."""
        return self._trained.optimizers if self._trained is not None else []

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """The schedules, with their interval, frequency and name."""
        return self._trained.schedules.configs if self._trained is not None else []

    @property
    def scaler(self) -> Any:
        """The GradScaler of 16-mixed, or None."""
        return getattr(self._trained.scaler, "grad_scaler", None) if self._trained is not None else None

    @property
    def gradient_norm(self) -> Tensor | None:
        """The norm of all gradients before the last clipping by norm; None without any."""
        return self.run.gradient_norm if self.run is not None else None

    @property
    def precision(self) -> str:
        """The name of the precision."""
        return str(self.precision_plugin.name)

    @property
    def logger(self) -> Logger | None:
        """The first logger."""
        return self._loggers[0] if self._loggers else None

    @logger.setter
    def logger(self, logger: Logger | None) -> None:
        self._loggers = [] if logger is None else [logger]

    @property
    def loggers(self) -> list[Logger]:
        """All loggers."""
        return self._loggers

    @loggers.setter
    def loggers(self, loggers: list[Logger] | None) -> None:
        self._loggers = list(loggers or [])

    @property
    def log_dir(self) -> str | None:
        """The folder of the first logger; `default_root_dir` without any. From a run's start on that of rank zero."""
        logger, folder = self._session.log_dir
        if folder is not None and logger is self.logger:
            return str(folder)
        return self.default_root_dir if self.logger is None else (self.logger.log_dir or self.logger.save_dir)

    def _callbacks_of(self, name: str) -> list[Any]:
        from lightlib import callbacks  # optional: rich, only when asked for

        return [callback for callback in self.callbacks if isinstance(callback, getattr(callbacks, name))]

    checkpoint_callbacks = property(lambda self: self._callbacks_of("Checkpoint"), doc="All checkpoint callbacks.")
    early_stopping_callbacks = property(lambda self: self._callbacks_of("EarlyStopping"), doc="All EarlyStoppings.")
    checkpoint_callback = property(lambda self: next(iter(self.checkpoint_callbacks), None), doc="The first of them.")
    early_stopping_callback = property(lambda self: next(iter(self.early_stopping_callbacks), None), doc="The first.")
    progress_bar_callback = property(
        lambda self: next(iter(self._callbacks_of("ProgressBar")), None), doc="The progress bar, or None."
    )

    # loaders
    @property
    def train_dataloader(self) -> Any:
        """What was given or returned as training loaders."""
        return self._train_data.loaders if self._train_data is not None else None

    def _loaders(self, key: str) -> Any:
        evaluations = self._session.builder.evaluations if self._session.builder is not None else {}
        return evaluations[key].loaders if key in evaluations else None

    val_dataloaders = property(lambda self: self._loaders("val"), doc="What was given as validation loaders.")
    test_dataloaders = property(lambda self: self._loaders("test"), doc="What was given as test loaders.")
    predict_dataloaders = property(lambda self: self._loaders("predict"), doc="What was given to be predicted.")

    # metrics
    callback_metrics = property(
        lambda self: self.run.results.callback_metrics if self.run is not None else {}, doc="What callbacks read."
    )
    logged_metrics = property(
        lambda self: self.run.results.logged_metrics if self.run is not None else {}, doc="What loggers got last."
    )
    progress_bar_metrics = property(
        lambda self: self.run.results.progress_bar_metrics if self.run is not None else {}, doc="What the bar shows."
    )

    # ranks and devices
    global_rank = property(lambda self: self.strategy.global_rank, doc="This process's index among all.")
    local_rank = property(lambda self: self.strategy.local_rank, doc="This process's index on its machine.")
    node_rank = property(lambda self: self.strategy.node_rank, doc="This machine's index.")
    world_size = property(lambda self: self.strategy.world_size, doc="How many processes there are.")
    is_global_zero = property(lambda self: self.strategy.is_global_zero, doc="Whether this process writes and speaks.")
    num_devices = property(lambda self: len(self.devices), doc="Devices of this machine.")
    device_ids = property(
        lambda self: [i if one.index is None else one.index for i, one in enumerate(self.devices)], doc="Their indices."
    )
    distributed_sampler_kwargs = property(
        lambda self: {"num_replicas": self.strategy.data_size, "rank": self.strategy.data_rank}, doc="For samplers."
    )
