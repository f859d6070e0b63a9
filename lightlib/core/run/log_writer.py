"""LogWriter: hands logged values to the loggers, and warns once when values or weights are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightlib import report
from lightlib.callbacks.monitored import monitors_of, warn_for_unlogged
from lightlib.core.metrics.results import to_floats
from lightlib.core.setup.timing import Timing

if TYPE_CHECKING:
    from lightlib.core.run.run import Run

_KEYS = {"validate": "val", "test": "test"}  # keys of the data, by stage
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_HOW_TO_FIND = (
    "Training continues. To find where it began, use callbacks.TerminateOnNaN(), or Trainer(detect_anomaly=True)."
)


class LogWriter:
    """Writes the numbers of one run to its loggers.

    Attributes:
        write_evaluation_step: Writes the step values of an evaluation step, by default at the current training step.
    """

    write_evaluation_step: Callable[[], None]

    def __init__(self, run: Run) -> None:
        self._run = run
        timing, targets = Timing(run.trainer.profiler), run.loggers.targets("log_metrics")
        names = [f"[Logger]{type(logger).__name__}.log_metrics" for logger in run.loggers.loggers]
        # bound once: a value goes from here to the logger
        self._targets = [(timing.call(name, log), report) for name, (log, report) in zip(names, targets, strict=True)]
        self._warned = False  # of values or weights that are not finite
        self._behind = run.order.logs_behind
        self.write_evaluation_step = self._write_numbered if self._behind else self._write_evaluation_step

    def write_step(self) -> None:
        values = self._run.results.fresh_step_values()
        loss = self._run.optimization.window.value
        floats = to_floats(values if loss is None else {**values, "": loss})
        self._check_values(floats)
        floats.pop("", None)
        if floats:
            self.write(floats)

    def write_epoch(self) -> None:
        run = self._run
        if run.progress.epoch == 0 and run.loggers and not run.trainer.fast_dev_run:
            self._warn_if_nothing_was_written()
        run.results.reduce()
        values = to_floats(run.results.epoch_values())
        if values:
            self.write(values)
        if run.optimization.optimizers and not self._warned and not _are_finite(run.module.parameters()):
            self._warned = True
            report.warn(
                f"The weights of {type(run.module).__name__} are no longer finite in epoch {run.progress.epoch}, step "
                f"{run.progress.step} (seen at the end of the epoch), as after a loss that is NaN. {_HOW_TO_FIND}"
            )

    def _write_numbered(self) -> None:
        """Write the step values of an evaluation step at the number of its batch, counted over evaluations."""
        run = self._run
        if run.stage != "sanity_check":
            number = run.evaluations.loaded[_KEYS[run.stage]].count(run.results.table.loader)
            if values := run.results.fresh_step_values():
                self.write(to_floats(values), number)
                run.loggers.save()

    def _write_evaluation_step(self) -> None:
        if self._run.stage != "sanity_check" and (values := self._run.results.fresh_step_values()):
            self.write(to_floats(values))

    def write_evaluation(self) -> list[dict[str, float]]:
        """Reduce, write and return the metrics of an evaluation, one dictionary per loader."""
        run = self._run
        run.results.reduce()
        metrics = run.results.epoch_values_by_loader()
        if run.stage == "sanity_check":
            monitors = monitors_of(run.callbacks, run.optimization.schedules.configs)
            warn_for_unlogged(monitors, run.results.callback_metrics, run.results.table.endings)
        elif values := to_floats(run.results.epoch_values()):
            self.write(values)
        return metrics

    def write(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Pass numbers to all loggers and to `on_log`.

        Args:
            step: The x-axis. Default: the value logged as "step", else the number of optimizer steps.
        """
        run, numbers = self._run, dict(metrics)
        at, requested_step = numbers.pop("step", None), step
        if step is None:
            step = self._position() if at is None or not math.isfinite(at) else int(at)
        if not self._behind or (requested_step is None and at is None):
            numbers.setdefault("epoch", run.progress.epoch + run.progress.shift)
        for log_metrics, report_failure in self._targets:
            try:
                log_metrics(numbers, step)
            except Exception as error:  # noqa: BLE001  a logger may raise anything
                report_failure(error)
        if self._behind and requested_step is None:
            run.loggers.save()
        run.hooks.on_log(numbers)

    def _position(self) -> int:
        """Return the x-axis: the number of optimizer steps, or of those before the batch that has just stepped."""
        run, progress = self._run, self._run.progress
        counted = self._behind and run.train_data is not None and progress.epoch_batch > 0 and run.between_windows()
        return progress.step - counted

    def _check_values(self, values: Mapping[str, float]) -> None:
        """Warn about the first value that is not finite; the loss has the name ""."""
        if self._warned or all(map(math.isfinite, values.values())):
            return
        strange = next(name for name, value in values.items() if not math.isfinite(value))
        self._warned, progress = True, self._run.progress
        position = f"epoch {progress.epoch}, batch {progress.epoch_batch - 1}, step {progress.step}"
        subject = f"the logged value {strange!r}" if strange else "the loss"
        others = ", ".join(f"{name} = {value:.6g}" for name, value in values.items() if name not in ("", strange))
        logged = f" Logged with it: {others}." if others else ""
        report.warn(f"{subject} is {values[strange]} at {position} (seen when logging).{logged} {_HOW_TO_FIND}")

    def _warn_if_nothing_was_written(self) -> None:
        """Warn if the first epoch ends before any step value has reached the loggers."""
        names = ", ".join(map(repr, self._run.results.waiting_names()))
        step, every = self._run.progress.step, self._run.plan.log_every
        if names and 0 < step < every:
            report.warn(
                f"No logger received a value of {names}: step values are written every "
                f"log_every_n_steps={every} steps, and the first epoch has only {step}.\n"
                "  Expected: an interval shorter than an epoch.\n"
                f"  Fix: Trainer(log_every_n_steps={max(1, step // 10)}), or self.log(…, on_epoch=True).",
                report.PossibleUserWarning,
            )


def _are_finite(parameters: Iterable[Tensor]) -> bool:
    """Whether this process's shards of the trained parameters are free of NaN and infinity."""
    local = [p.to_local() if hasattr(p, "to_local") else p.detach() for p in parameters if p.requires_grad]
    numbers = [p.detach() for p in local if p.dtype in _FLOATS and p.numel()]
    # The maximum: unlike a sum of squares it does not overflow in half precision, and it keeps a NaN.
    return not numbers or math.isfinite(torch.nn.utils.get_total_norm(numbers, math.inf).item())
