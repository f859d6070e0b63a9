"""ThroughputMonitor: the throughput of a loop with Fabric, logged to its loggers by rank zero."""

from __future__ import annotations

from typing import Any

from lightlib.fabric.fabric import Fabric
from lightlib.profilers.flops import get_available_flops
from lightlib.profilers.throughput import Throughput


class ThroughputMonitor:
    """Computes rates as `lightlib.profilers.Throughput` does, on rank zero, and logs them to the loggers of a Fabric.

    Args:
        fabric: A Fabric that is launched.
        **options: ``window_size`` and ``separator`` of `lightlib.profilers.Throughput`.

    Attributes:
        step: The x-axis of the last row that was logged.

    Raises:
        MisconfigurationException: The Fabric is not launched, or an option is wrong.

    Example:
        >>> import lightlib as L
        >>> fabric = L.Fabric(accelerator="cpu", devices=1)
        >>> fabric.launch()
        >>> monitor = ThroughputMonitor(fabric, window_size=2)
        >>> for done in (1, 2):  # on a GPU, torch.cuda.synchronize() before the clock is read
        ...     monitor.update(time=0.5 * done, batches=done, samples=8 * done)
        >>> monitor.compute_and_log()["device/samples_per_sec"]
        16.0
    """

    def __init__(self, fabric: Fabric, **options: Any) -> None:
        strategy = fabric.strategy
        fabric._ready("ThroughputMonitor")  # noqa: SLF001  (of the same package; sizes are known only then)
        self._fabric, self.step = fabric, -1
        available = get_available_flops(fabric.device, strategy.precision.compute_dtype)
        self._rates = Throughput(available, fabric.world_size, data_size=strategy.data_size, **options)

    def update(self, **totals: Any) -> None:
        """Add the totals of this process so far, by the names that `Throughput.update` takes."""
        if self._fabric.is_global_zero:
            self._rates.update(**totals)

    def compute(self) -> dict[str, float]:
        """Return totals and rates; an empty dict on other ranks."""
        return self._rates.compute()

    def compute_and_log(self, step: int | None = None) -> dict[str, float]:
        """Log totals and rates, and return them; an empty dict on other ranks.

        Args:
            step: The x-axis. Default: one more than the last time.
        """
        self.step = self.step + 1 if step is None else step
        metrics = self.compute()
        if metrics:
            self._fabric.log_dict(metrics, self.step)
        return metrics

    def reset(self) -> None:
        """Forget all updates."""
        self._rates.reset()
