"""EpochMonitor: logs the time of steps and epochs, and the memory, once per epoch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from lightlib.callbacks.callback import Callback
from lightlib.errors import check_flag, check_int

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer

MIB = 2**20


class EpochMonitor(Callback):
    """Logs the time and memory of each epoch to the loggers.

    At the end of an epoch, before its values are final, these go to the loggers, in seconds and MiB of rank zero:

    - ``time/train_epoch``: from the start of the epoch to its end, without validations.
    - ``time/train_step_mean``, ``time/train_step_last``: of a batch with its data; the mean is over the epoch.
    - ``time/val_epoch``: the validations of the epoch together.
    - ``memory/peak``: the largest amount of the device's memory so far, on the CPU of the process's resident memory.
    - ``memory/allocated``: the present amount; on the CPU ``memory/resident``, where the system gives it.

    On a GPU the device is waited for only at these ends, so the mean is exact and the last step may not be.

    Args:
        every_n_epochs: Log every n-th epoch. Default: 1.
        warmup_steps: How many batches of the run the mean leaves out at the beginning. Default: 0.
        memory: Whether the memory is logged. Default: True.

    Raises:
        ArgumentTypeError: `every_n_epochs` or `warmup_steps` is no int, or `memory` no bool.
        MisconfigurationException: `every_n_epochs` is below 1, or `warmup_steps` below 0.

    Example:
        >>> import lightlib as L
        >>> trainer = L.Trainer(callbacks=[EpochMonitor(warmup_steps=10)])
    """

    def __init__(self, every_n_epochs: int = 1, warmup_steps: int = 0, memory: bool = True) -> None:
        super().__init__()
        check_int("EpochMonitor", "every_n_epochs", every_n_epochs, 1)
        check_int("EpochMonitor", "warmup_steps", warmup_steps, 0, example=10)
        check_flag("EpochMonitor", "memory", memory)
        self.every_n_epochs, self.warmup_steps, self.memory = every_n_epochs, warmup_steps, memory
        self._wait: Callable[[], None] | None = None
        self._begun = self._mark = self._last = self._validated = self._warm = 0.0
        self._batches = self._warm_batches = 0

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        device = trainer.strategy.root_device
        self._wait = None if device.type == "cpu" else trainer.accelerator.synchronize
        self._restart()  # a resumed run begins within an epoch

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._restart()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        now = perf_counter()
        self._last, self._mark = now - self._mark, now
        self._batches += 1
        if trainer.progress.batch <= self.warmup_steps:
            self._warm, self._warm_batches = self._elapsed(now), self._batches

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        self._mark = self._now()

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        now = self._now()
        self._validated += now - self._mark
        self._mark = now

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        if (trainer.current_epoch + 1) % self.every_n_epochs:
            return
        elapsed = self._elapsed(self._now())
        values = {"time/train_epoch": elapsed, "time/train_step_last": self._last}
        measured = self._batches - self._warm_batches
        if measured:
            values["time/train_step_mean"] = (elapsed - self._warm) / measured
        if self._validated:
            values["time/val_epoch"] = self._validated
        if self.memory:
            values |= memory_of(trainer.strategy.root_device)
        if trainer.run is not None:
            trainer.run.results.note(values)
        trainer.log_metrics_now(values)

    def _restart(self) -> None:
        self._begun = self._mark = self._now()
        self._last = self._validated = self._warm = 0.0
        self._batches = self._warm_batches = 0

    def _elapsed(self, now: float) -> float:
        return now - self._begun - self._validated

    def _now(self) -> float:
        if self._wait is not None:
            self._wait()
        return perf_counter()


def memory_of(device: torch.device) -> dict[str, float]:
    """Return the memory of a device in MiB, or on the CPU that of this process; as far as it is known.

    Example:
        >>> all(value > 0 for value in memory_of(torch.device("cpu")).values())
        True
    """
    if device.type != "cpu":
        attributes = {"peak": "max_memory_allocated", "allocated": "memory_allocated"}
        module = torch.get_device_module(device)
        calls = {name: getattr(module, attribute, None) for name, attribute in attributes.items()}
        return {f"memory/{name}": call(device) / MIB for name, call in calls.items() if call is not None}
    try:
        import resource  # optional: absent on Windows
    except ImportError:
        return {}
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB
    return {"memory/peak": peak, **_resident()}


def _resident() -> dict[str, float]:
    """Return the resident memory that Linux gives for this process."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            import resource  # optional: absent on Windows

            return {"memory/resident": int(file.read().split()[1]) * resource.getpagesize() / MIB}
    except OSError:
        return {}
