"""Lightning's connectors as views of a Trainer; the one of accelerators can be made from arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lightlib.accelerators.resolve import choose
from lightlib.core.resume.run_state import dump
from lightlib.core.run.hooks import in_priority
from lightlib.core.setup.plugins import environment_of, plugins_of, precision_of, strategy_of
from lightlib.errors import MisconfigurationException
from lightlib.strategies.single import SingleDeviceStrategy
from lightlib_lightning.internals.loops import DataSource, source_of
from lightlib_lightning.internals.served import Served

__all__ = [
    "AcceleratorConnector", "CallbackConnector", "CheckpointConnector", "DataConnector", "LoggerConnector",
    "SignalConnector",
]  # fmt: skip


class AcceleratorConnector(Served):
    """`_AcceleratorConnector`: the meaning of the arguments accelerator, devices, strategy and precision.

    scvi makes one from its own arguments and reads `_accelerator_flag` and `_devices_flag`; rl4co and nequip import
    it; optuna and darts read `trainer._accelerator_connector.is_distributed`.
    """

    def __init__(
        self,
        devices: Any = "auto",
        num_nodes: int = 1,
        accelerator: Any = "auto",
        strategy: Any = "auto",
        plugins: Any = None,
        precision: Any = None,
        sync_batchnorm: bool = False,
        benchmark: bool | None = None,
        use_distributed_sampler: bool = True,
        deterministic: Any = None,
    ) -> None:
        self.accelerator, chosen = choose(accelerator, devices)
        environment = environment_of(devices, chosen, num_nodes, plugins)
        self.strategy = strategy_of(strategy, environment)
        self.precision_plugin = precision_of(plugins_of(plugins, precision))
        self.strategy.use(self.accelerator, chosen, self.precision_plugin, environment)
        self.use_distributed_sampler = use_distributed_sampler
        self._note(chosen, num_nodes)

    @classmethod
    def of(cls, trainer: Any) -> AcceleratorConnector:
        """Return the one of a Trainer."""
        connector = cls.__new__(cls)
        vars(connector).update(accelerator=trainer.accelerator, strategy=trainer.strategy)
        vars(connector).update(precision_plugin=trainer.precision_plugin)
        vars(connector).update(use_distributed_sampler=trainer.settings.use_distributed_sampler)
        connector._note(trainer.devices, trainer.num_nodes)  # noqa: SLF001  this class's own
        return connector

    def _note(self, devices: Any, num_nodes: int) -> None:
        self._parallel_devices, self._num_nodes_flag = list(devices), num_nodes
        self._accelerator_flag = str(devices[0].type)
        indices = [number if device.index is None else device.index for number, device in enumerate(devices)]
        self._devices_flag = len(devices) if self._accelerator_flag == "cpu" else indices
        self._precision_flag = str(self.precision_plugin.name)
        self._strategy_flag = self.strategy

    @property
    def parallel_devices(self) -> list[Any]:
        """The devices of this machine."""
        return self._parallel_devices

    @property
    def is_distributed(self) -> bool:
        """Whether the strategy is one for several processes."""
        return not isinstance(self.strategy, SingleDeviceStrategy)

    @property
    def cluster_environment(self) -> Any:
        """The environment that gives the rank of this process."""
        return self.strategy.environment

    @property
    def checkpoint_io(self) -> Any:
        """The strategy's."""
        return getattr(self.strategy, "checkpoint_io", None)


class CheckpointConnector(Served):
    """`_CheckpointConnector`: mlflow and NeMo call `trainer._checkpoint_connector.dump_checkpoint()`."""

    def dump_checkpoint(self, weights_only: bool | None = None) -> dict[str, Any]:
        """Return the content of a checkpoint of the run as it is now; `epoch` is `trainer.current_epoch`."""
        run = self.trainer._trained  # noqa: SLF001  the run of the last fit is no public attribute
        if run is None:
            raise MisconfigurationException(
                "dump_checkpoint was called before any run.",
                expected="a Trainer with a module attached.",
                fix="call trainer.fit(module) first.",
            )
        identity = replace(self.trainer._session.identity)  # noqa: SLF001  a copy: nothing is written
        content = dump(run, identity.next_label(run.progress, bool(weights_only)), bool(weights_only))
        return {**content, "epoch": self.trainer.current_epoch}

    @property
    def _ckpt_path(self) -> Any:
        return self.trainer.ckpt_path

    @property
    def _hpc_resume_path(self) -> None:
        return None


class DataConnector(Served):
    """`_DataConnector`: where the loaders of each stage come from."""

    @property
    def _train_dataloader_source(self) -> DataSource:
        return source_of(self.trainer, "train")

    @property
    def _val_dataloader_source(self) -> DataSource:
        return source_of(self.trainer, "val")

    @property
    def _test_dataloader_source(self) -> DataSource:
        return source_of(self.trainer, "test")

    @property
    def _predict_dataloader_source(self) -> DataSource:
        return source_of(self.trainer, "predict")


class LoggerConnector(Served):
    """`_LoggerConnector`: the logged values."""

    @property
    def callback_metrics(self) -> Any:
        """The latest logged values, which callbacks read."""
        return self.trainer.callback_metrics

    @property
    def logged_metrics(self) -> Any:
        """The values that the loggers received last."""
        return self.trainer.logged_metrics

    @property
    def progress_bar_metrics(self) -> Any:
        """The values that the progress bar shows."""
        return self.trainer.progress_bar_metrics

    @property
    def metrics(self) -> dict[str, Any]:
        """All three, by "callback", "log" and "pbar"."""
        return {"callback": self.callback_metrics, "log": self.logged_metrics, "pbar": self.progress_bar_metrics}

    @property
    def should_update_logs(self) -> bool:
        """Whether the values of the running step are written."""
        trainer = self.trainer
        every = trainer.log_every_n_steps
        return bool(trainer.should_stop or (every and (trainer.progress.step + 1) % every == 0))

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Write numbers to all loggers."""
        self.trainer.log_metrics_now(metrics, step)
        if step is not None:
            self.trainer.run.loggers.save()


class CallbackConnector(Served):
    """`_CallbackConnector`: the callbacks of a Trainer."""

    def _attach_model_callbacks(self) -> None:
        """Do nothing: fit adds the callbacks of the module itself."""

    @staticmethod
    def _reorder_callbacks(callbacks: list[Any]) -> list[Any]:
        return in_priority(callbacks)


class SignalConnector(Served):
    """`_SignalConnector`: the signals that were received."""

    @property
    def received_sigterm(self) -> bool:
        """Whether SIGTERM is stopping the run."""
        return bool(self.trainer.received_sigterm)
