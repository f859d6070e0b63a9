"""LogWriter: hands what was logged to the loggers, and warns of what is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightlib import report
from lightlib.callbacks.monitored import monitors_of, warn_for_unlogged
from lightlib.core.metrics.results import to_floats

if TYPE_CHECKING:
    from lightlib.core.run.run import Run

__all__ = ["LogWriter"]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class LogWriter:
    """Writes the numbers of one run to its loggers.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._warned = False

    def write_step(self) -> None:
        """Write what was logged per step."""
        values = self._run.results.fresh_step_values()
        loss = self._run.optimization.window.value
        floats = to_floats(values if loss is None else {**values, "": loss})
        self._look_for_nonfinite(floats)
        floats.pop("", None)
        if floats:
            self.write(floats)

    def write_epoch(self) -> None:
        """Write the values of the training epoch."""
        run = self._run
        if run.progress.epoch == 0 and run.loggers and not run.trainer.fast_dev_run:
            self._warn_when_nothing_was_written()
        run.results.reduce()
        values = to_floats(run.results.epoch_values())
        if values:
            self.write(values)
        self._look_for_nonfinite_weights()

    def write_evaluation_step(self) -> None:
        """Write what an evaluation step logged per step, at the step that training is at."""
        if self._run.stage != "sanity_check" and (values := self._run.results.fresh_step_values()):
            self.write(to_floats(values))

    def write_evaluation(self) -> list[dict[str, float]]:
        """Reduce what an evaluation logged, write it and return it, one dictionary per loader."""
        run = self._run
        run.results.reduce()
        metrics = run.results.epoch_values_by_loader()
        if run.stage == "sanity_check":
            monitors = monitors_of(run.callbacks, run.optimization.schedules.configs)
            warn_for_unlogged(monitors, run.results.callback_metrics)
        elif values := to_floats(run.results.epoch_values()):
            self.write(values)
        return metrics

    def write(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Give numbers to all loggers and to `on_log`.

        Args:
            metrics: By name.
            step: The x-axis. Default: what was logged as "step", else the number of optimizer steps.
        """
        run, numbers = self._run, dict(metrics)
        at = numbers.pop("step", None)
        if step is None:
            step = run.progress.step if at is None or not math.isfinite(at) else int(at)
        numbers.setdefault("epoch", run.progress.epoch)
        run.loggers.log_metrics(numbers, step)
        run.hooks.on_log(numbers)

    def _warn_when_nothing_was_written(self) -> None:
        """Warn when the first epoch ends before the loggers received any of the values that were logged per step."""
        names = ", ".join(map(repr, self._run.results.waiting_names()))
        step, every = self._run.progress.step, self._run.plan.log_every
        if names and 0 < step < every:
            report.warn(
                f"No logger received a value of {names}: values per step are handed over every "
                f"log_every_n_steps={every} steps, and the first epoch has only {step}.\n"
                "  Expected: an interval that is shorter than an epoch.\n"
                f"  Fix: Trainer(log_every_n_steps={max(1, step // 10)}), or self.log(…, on_epoch=True).",
                report.PossibleUserWarning,
            )

    def _look_for_nonfinite(self, floats: Mapping[str, float]) -> None:
        if self._warned:
            return
        for name, value in floats.items():
            if not math.isfinite(value):
                self._warned = True
                progress = self._run.progress
                where = f"epoch {progress.epoch}, batch {progress.epoch_batch - 1}, step {progress.step}"
                what = f"the logged value {name!r}" if name else "the loss"
                report.warn(
                    f"{what} is {value} at {where} (seen when logging). Training goes on. To find where it began use "
                    "callbacks.TerminateOnNaN(), or Trainer(detect_anomaly=True)."
                )
                return

    def _look_for_nonfinite_weights(self) -> None:
        """Warn when the weights have become NaN and no value that was logged has shown it."""
        run = self._run
        if self._warned or not run.optimization.optimizers or _are_finite(run.module.parameters()):
            return
        self._warned = True
        name, at = type(run.module).__name__, f"epoch {run.progress.epoch}, step {run.progress.step}"
        report.warn(
            f"The weights of {name} are no longer finite in {at} (seen at the end of the epoch), as after a loss "
            "that is NaN. Training goes on. To find where it began use callbacks.TerminateOnNaN(), or "
            "Trainer(detect_anomaly=True)."
        )


def _are_finite(parameters: Iterable[Tensor]) -> bool:
    """Whether what this process has of the trained parameters holds neither NaN nor infinity."""
    local = [p.to_local() if hasattr(p, "to_local") else p.detach() for p in parameters if p.requires_grad]
    numbers = [p.detach() for p in local if p.dtype in _FLOATS and p.numel()]
    # The largest of all: unlike a sum of squares it does not overflow in half precision, and a NaN stays one.
    return not numbers or math.isfinite(torch.nn.utils.get_total_norm(numbers, math.inf).item())
