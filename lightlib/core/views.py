"""TrainerViews: a Trainer's properties, each a view of the object that owns the value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from lightlib.callbacks.callback import Callback
from lightlib.callbacks.checkpoint.checkpoint import Checkpoint
from lightlib.checkpoint.storage.label import Label
from lightlib.core.optimization.schedules import SchedulerConfig
from lightlib.core.resume.save import Saver
from lightlib.core.run_config import RunConfig, run_config_of
from lightlib.core.run_views import RunViews
from lightlib.errors import MisconfigurationException
from lightlib.loggers.logger import Logger
from lightlib.precision.precision import Precision
from lightlib.profilers.profiler import Profiler
from lightlib.strategies.strategy import Strategy

if TYPE_CHECKING:
    from lightlib.callbacks.early_stopping import EarlyStopping
    from lightlib.callbacks.progress.base import ProgressBar
    from lightlib.callbacks.records.history import History


class TrainerViews(RunViews):
    """The properties of a Trainer: limits, the run, and here its objects, loaders and devices."""

    strategy: Strategy
    profiler: Profiler
    precision_plugin: Precision
    default_root_dir: str
    num_nodes: int
    devices: list[torch.device]
    _loggers: list[Logger]

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks in call order; the list cannot be changed during a run."""
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

    @property
    def trusts_checkpoints(self) -> bool:
        """Whether the last call reads checkpoints that hold Python objects: it has `weights_only=False`."""
        return self._session.trusts_checkpoints

    # objects
    @property
    def ckpt_path(self) -> Any:
        """The checkpoint that the last call loaded, or None. Setting it gives a default for calls that name none."""
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
        """The table of hooks; printed, it lists the methods that each hook calls."""
        return self._session.hooks

    @property
    def saver(self) -> Saver:
        """Writes the checkpoints of the last fit, or of the current run; `save_checkpoint` calls it.

        Raises:
            MisconfigurationException: No module is attached yet.
        """
        run = self._trained
        if run is None:
            raise MisconfigurationException(
                "save_checkpoint was called before any run.",
                expected="a Trainer with a module attached.",
                fix="call trainer.fit(module) first.",
            )
        return run.saver

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers of the last fit, also after an evaluation."""
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
        """The folder of the first logger, else `default_root_dir`. During a run it is rank zero's on all ranks."""
        logger, folder = self._session.log_dir
        if folder is not None and logger is self.logger:
            return str(folder)
        return self.default_root_dir if self.logger is None else (self.logger.log_dir or self.logger.save_dir)

    def _callbacks_of(self, name: str) -> list[Any]:
        from lightlib import callbacks  # optional: rich, only when these properties are read

        return [callback for callback in self.callbacks if isinstance(callback, getattr(callbacks, name))]

    @property
    def checkpoint_callbacks(self) -> list[Checkpoint]:
        """All checkpoint callbacks."""
        return self._callbacks_of("Checkpoint")

    @property
    def early_stopping_callbacks(self) -> list[EarlyStopping]:
        """All EarlyStopping callbacks."""
        return self._callbacks_of("EarlyStopping")

    @property
    def checkpoint_callback(self) -> Checkpoint | None:
        """The first checkpoint callback, or None."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def early_stopping_callback(self) -> EarlyStopping | None:
        """The first EarlyStopping callback, or None."""
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def history(self) -> History | None:
        """The first History callback, or None."""
        return next(iter(self._callbacks_of("History")), None)

    @property
    def progress_bar_callback(self) -> ProgressBar | None:
        """The progress bar, or None."""
        return next(iter(self._callbacks_of("ProgressBar")), None)

    @property
    def run_config(self) -> RunConfig:
        """The resolved numbers of the present or the last call: epochs, batch sizes, steps, processes.

        Raises:
            MisconfigurationException: There was no call.
        """
        return run_config_of(self)  # type: ignore[arg-type]  # the only subclass is the Trainer

    # loaders
    @property
    def train_dataloader(self) -> Any:
        """The training loaders, in the user's nesting."""
        return self._train_data.loaders if self._train_data is not None else None

    def _loaders(self, key: str) -> Any:
        evaluations = self._session.builder.evaluations if self._session.builder is not None else {}
        return evaluations[key].loaders if key in evaluations else None

    @property
    def val_dataloaders(self) -> Any:
        """The validation loaders, in the user's nesting."""
        return self._loaders("val")

    @property
    def test_dataloaders(self) -> Any:
        """The test loaders, in the user's nesting."""
        return self._loaders("test")

    @property
    def predict_dataloaders(self) -> Any:
        """The prediction loaders, in the user's nesting."""
        return self._loaders("predict")

    # ranks and devices
    @property
    def global_rank(self) -> int:
        """The rank of this process among all."""
        return self.strategy.global_rank

    @property
    def local_rank(self) -> int:
        """The rank of this process on its machine."""
        return self.strategy.local_rank

    @property
    def node_rank(self) -> int:
        """The index of this machine."""
        return self.strategy.node_rank

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return self.strategy.world_size

    @property
    def is_global_zero(self) -> bool:
        """Whether this is rank zero, which writes files and prints."""
        return self.strategy.is_global_zero

    @property
    def num_devices(self) -> int:
        """The number of devices on this machine."""
        return len(self.devices)

    @property
    def device_ids(self) -> list[int]:
        """The indices of this machine's devices."""
        indices: list[int | None] = [device.index for device in self.devices]
        return [place if index is None else index for place, index in enumerate(indices)]

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        """Keyword arguments for a DistributedSampler."""
        return {"num_replicas": self.strategy.data_size, "rank": self.strategy.data_rank}
