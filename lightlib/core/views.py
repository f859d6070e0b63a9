"""What may be read from a Trainer: one line per property, each a view of the part that owns it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightlib.callbacks.callback import Callback
from lightlib.callbacks.checkpoint.checkpoint import Checkpoint
from lightlib.checkpoint.storage.label import Label
from lightlib.core.metrics.results import Results
from lightlib.core.optimization.schedules import SchedulerConfig
from lightlib.core.progress.plan import Plan
from lightlib.core.progress.progress import Progress
from lightlib.core.progress.states import RunningStage, TrainerState
from lightlib.core.run.run import Run
from lightlib.core.session import Session
from lightlib.core.setup.settings import Settings
from lightlib.data.train import TrainData
from lightlib.errors import MisconfigurationException
from lightlib.loggers.logger import Logger
from lightlib.precision.precision import Precision
from lightlib.profilers.profiler import Profiler
from lightlib.strategies.strategy import Strategy

if TYPE_CHECKING:
    from lightlib.callbacks.early_stopping import EarlyStopping
    from lightlib.callbacks.progress.base import ProgressBar

__all__ = ["TrainerViews"]

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


class _Limits:
    """What is read from the settings under the name of the Trainer's argument, and may be set between two calls."""

    accumulate_grad_batches: int
    barebones: bool
    check_val_every_n_epoch: int | None
    fast_dev_run: int
    global_batch_size: int | None
    gradient_clip_algorithm: str | None
    gradient_clip_val: float | None
    limit_predict_batches: int | float
    limit_test_batches: int | float
    limit_train_batches: int | float
    limit_val_batches: int | float
    log_every_n_steps: int
    max_epochs: int | None
    max_steps: int
    max_time: float | None
    min_epochs: int | None
    min_steps: int | None
    num_sanity_val_steps: float
    overfit_batches: int | float
    reload_dataloaders_every_n_epochs: int
    val_check_interval: int | float


_SETTINGS = frozenset(_Limits.__annotations__)


class TrainerViews(_Limits):
    """The read-only side of a Trainer. Limits (`max_epochs`, …) may be set between two calls."""

    settings: Settings
    progress: Progress
    strategy: Strategy
    profiler: Profiler
    precision_plugin: Precision
    default_root_dir: str
    num_nodes: int
    devices: list[torch.device]
    _loggers: list[Logger]
    _session: Session

    if not TYPE_CHECKING:  # a name that is not there is an error for checkers as well

        def __getattr__(self, name: str) -> Any:
            if name in _SETTINGS and "settings" in self.__dict__:
                return getattr(self.settings, name)
            hint = f" Lightning's `{name}` is part of its inside; read {_INSIDE[name]}." if name in _INSIDE else ""
            raise AttributeError(f"'{type(self).__name__}' object has no attribute {name!r}.{hint}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _SETTINGS:
            self.settings.change(name, value)
            session = self.__dict__.get("_session")
            run = None if session is None else session.run
            if run is not None and self.training and run.train_data is not None:
                plan = run.replan(run.train_data.num_batches)
                if self.progress.epoch_batch:  # another number of batches per step begins with the next epoch
                    plan = replace(plan, accumulate=run.plan.accumulate)
                run.use_plan(plan)
        else:
            object.__setattr__(self, name, value)

    # where the run is
    @property
    def current_epoch(self) -> int:
        """Epochs completed; the index of the running one."""
        return self.progress.epoch

    @property
    def global_step(self) -> int:
        """Batches in which an optimizer stepped."""
        return self.progress.step

    @property
    def plan(self) -> Plan | None:
        """The limits and intervals of the run."""
        return self.run.plan if self.run is not None else None

    @property
    def should_stop(self) -> bool:
        """Whether somebody asked for an early stop. May be set."""
        return self.run is not None and self.run.stop.asked

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        if self.run is not None:
            self.run.stop.request(bool(value))

    @property
    def is_last_batch(self) -> bool:
        """Whether the batch that runs is the last of its epoch."""
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
        """The Ctrl-C or SIGTERM with which all processes leave the run at one optimizer-step boundary, or None."""
        signal: BaseException | None = self._session.signals.received
        return signal

    @property
    def received_sigterm(self) -> bool:
        """Whether the process was asked to end."""
        return isinstance(self._session.signals.received, SystemExit)

    @property
    def state(self) -> TrainerState:
        """What the Trainer is doing."""
        run = self._session.run
        return replace(self._session.state, stage=_STAGES.get(run.stage) if run is not None else None)

    @property
    def run(self) -> Run | None:
        """The run of the last call; None before the first one and while one is being built."""
        return self._session.run

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C or SIGTERM ended the last call."""
        return self._session.interrupted

    @property
    def callbacks(self) -> list[Callback]:
        """In the order in which they are called; during a run it cannot be changed."""
        return self._session.callbacks

    @callbacks.setter
    def callbacks(self, callbacks: list[Callback]) -> None:
        self._session.use_callbacks(callbacks)

    @property
    def run_id(self) -> str:
        """The same for a run and those that continue it."""
        return self._session.identity.run_id

    @property
    def continues(self) -> bool:
        """Whether the run continues the one that wrote the checkpoint."""
        return self._session.identity.continues

    @property
    def resumed_label(self) -> Label | None:
        """Of the checkpoint that the run began with."""
        return self._session.identity.label

    @property
    def resumed_by_path(self) -> bool:
        """Whether the user named that checkpoint by its path."""
        return self._session.identity.by_path

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

    @property
    def num_val_batches(self) -> list[float]:
        """Validation batches, per loader."""
        return self._num_batches("val")

    @property
    def num_test_batches(self) -> list[float]:
        """Test batches, per loader."""
        return self._num_batches("test")

    @property
    def num_predict_batches(self) -> list[float]:
        """Batches to predict, per loader."""
        return self._num_batches("predict")

    @property
    def num_sanity_val_batches(self) -> list[float]:
        """Validation batches of the sanity check of the last fit, per loader; empty before any."""
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
        self._session.use_checkpoint(path)

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
    def optimizers(self) -> list[Optimizer]:
        """The optimizers; after an evaluation still those of the last fit."""
        return self._trained.optimization.optimizers if self._trained is not None else []

    @property
    def lr_scheduler_configs(self) -> list[SchedulerConfig]:
        """The schedules, with their interval, frequency and name."""
        return self._trained.optimization.schedules.configs if self._trained is not None else []

    @property
    def scaler(self) -> Any:
        """The GradScaler of 16-mixed, or None."""
        return getattr(self._trained.optimization.scaler, "grad_scaler", None) if self._trained is not None else None

    @property
    def gradient_norm(self) -> Tensor | None:
        """The norm of all gradients before the last clipping by norm; None without any."""
        return self.run.optimization.gradient_norm if self.run is not None else None

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

    @property
    def checkpoint_callbacks(self) -> list[Checkpoint]:
        """All checkpoint callbacks."""
        return self._callbacks_of("Checkpoint")

    @property
    def early_stopping_callbacks(self) -> list[EarlyStopping]:
        """All EarlyStoppings."""
        return self._callbacks_of("EarlyStopping")

    @property
    def checkpoint_callback(self) -> Checkpoint | None:
        """The first checkpoint callback, or None."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def early_stopping_callback(self) -> EarlyStopping | None:
        """The first EarlyStopping, or None."""
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def progress_bar_callback(self) -> ProgressBar | None:
        """The progress bar, or None."""
        return next(iter(self._callbacks_of("ProgressBar")), None)

    # loaders
    @property
    def train_dataloader(self) -> Any:
        """What was given or returned as training loaders."""
        return self._train_data.loaders if self._train_data is not None else None

    def _loaders(self, key: str) -> Any:
        evaluations = self._session.builder.evaluations if self._session.builder is not None else {}
        return evaluations[key].loaders if key in evaluations else None

    @property
    def val_dataloaders(self) -> Any:
        """What was given as validation loaders."""
        return self._loaders("val")

    @property
    def test_dataloaders(self) -> Any:
        """What was given as test loaders."""
        return self._loaders("test")

    @property
    def predict_dataloaders(self) -> Any:
        """What was given to be predicted."""
        return self._loaders("predict")

    # metrics
    @property
    def _results(self) -> Results:
        """Those of the run, or what was left by one in other processes."""
        return self._session.left if self.run is None else self.run.results

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """What callbacks read."""
        return self._results.callback_metrics

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        """What loggers got last."""
        return self._results.logged_metrics

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """What the bar shows."""
        return self._results.progress_bar_metrics

    # ranks and devices
    @property
    def global_rank(self) -> int:
        """This process's index among all."""
        return self.strategy.global_rank

    @property
    def local_rank(self) -> int:
        """This process's index on its machine."""
        return self.strategy.local_rank

    @property
    def node_rank(self) -> int:
        """This machine's index."""
        return self.strategy.node_rank

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        return self.strategy.world_size

    @property
    def is_global_zero(self) -> bool:
        """Whether this process writes and speaks."""
        return self.strategy.is_global_zero

    @property
    def num_devices(self) -> int:
        """Devices of this machine."""
        return len(self.devices)

    @property
    def device_ids(self) -> list[int]:
        """Their indices."""
        indices: list[int | None] = [device.index for device in self.devices]
        return [place if index is None else index for place, index in enumerate(indices)]

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        """For samplers."""
        return {"num_replicas": self.strategy.data_size, "rank": self.strategy.data_rank}
