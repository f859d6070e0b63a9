"""DeviceStatsMonitor: logs the statistics of the device, such as its memory, around steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightlib.accelerators.cpu import CPUAccelerator
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.requirements import need_receiver
from lightlib.errors import check_type

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class DeviceStatsMonitor(Callback):
    """Logs the statistics that the accelerator has of its device, before and after batches.

    On GPUs these are the numbers of torch's allocator, on the CPU the use of memory and processors. Names have the form
    ``DeviceStatsMonitor.on_train_batch_end/cpu_percent``. Batches of training are those of every
    ``log_every_n_steps``-th step, and in validation and tests every ``log_every_n_steps``-th batch.

    Args:
        cpu_stats: Log the numbers of the CPU, which need the package psutil: True for every accelerator, False for
            none. Default: on the CPU alone.

    Raises:
        ArgumentTypeError: `cpu_stats` is no bool or None.
        MisconfigurationException: When a run begins: no logger or callback receives numbers, or psutil is
            not installed.

    Example:
        >>> DeviceStatsMonitor(cpu_stats=True).cpu_stats
        True
    """

    def __init__(self, cpu_stats: bool | None = None) -> None:
        super().__init__()
        check_type("DeviceStatsMonitor", "cpu_stats", cpu_stats, bool | None, "True, False, or None", True)
        self.cpu_stats = cpu_stats
        self._due = False  # whether the running step is logged
        self._before = 0  # steps before it

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        if stage == "fit":
            need_receiver(self, trainer)
        self._stats(trainer)  # psutil may be missing

    def _stats(self, trainer: Trainer) -> dict[str, float]:
        device = trainer.strategy.root_device
        if device.type == "cpu" and self.cpu_stats is False:
            return {}
        stats = dict(trainer.accelerator.get_device_stats(device))
        if self.cpu_stats and device.type != "cpu":
            stats |= CPUAccelerator().get_device_stats(device)
        return stats

    def _log(self, trainer: Trainer, hook: str) -> None:
        stats, run = self._stats(trainer), trainer.run
        if not stats or run is None:
            return
        step = self._before if run.order.logs_behind and run.train_data is not None else trainer.global_step
        for logger, (log_metrics, report_failure) in zip(
            run.loggers.loggers, run.loggers.targets("log_metrics"), strict=True
        ):
            prefix = f"{type(self).__qualname__}.{hook}{logger.group_separator}"
            try:
                log_metrics({prefix + name: value for name, value in stats.items()}, step)
            except Exception as error:  # noqa: BLE001  a logger may raise anything
                report_failure(error)
        run.hooks.on_log({f"{type(self).__qualname__}.{hook}/{name}": value for name, value in stats.items()})

    # training
    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        every = trainer.log_every_n_steps
        self._before = trainer.progress.step
        self._due = every > 0 and (trainer.progress.step + 1) % every == 0
        if self._due:
            self._log(trainer, "on_train_batch_start")

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._due:
            self._log(trainer, "on_train_batch_end")

    # evaluation
    def _log_evaluation(self, trainer: Trainer, hook: str, batch_idx: int) -> None:
        every = trainer.log_every_n_steps
        if every > 0 and (batch_idx + 1) % every == 0:
            self._log(trainer, hook)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._log_evaluation(trainer, "on_validation_batch_start", batch_idx)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._log_evaluation(trainer, "on_validation_batch_end", batch_idx)

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._log_evaluation(trainer, "on_test_batch_start", batch_idx)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._log_evaluation(trainer, "on_test_batch_end", batch_idx)
