"""The order within a batch: Lightning's where it differs, and schedules that step with batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightlib.core.progress.progress import Progress
from lightlib.core.run.optimization import Optimization
from lightlib.core.run.run import Run


def clear_and_backward(optimization: Optimization, backward: Callable[..., None], output: Any, **options: Any) -> None:
    """Clear the gradients if the window has just been opened, then call `backward` with the output of the step."""
    if optimization.window.take_fresh():
        for optimizer in optimization.optimizers:
            optimization.hooks.on_before_zero_grad(optimizer)
            optimization.zero_grad(optimizer)
    backward(output, **options)


def then_schedules(run_batch: Callable[..., Any]) -> Callable[..., Any]:
    """Return `run_batch`, with the schedules that step with epochs stepped after the last batch of each."""

    def run_and_step(run: Run, batch: Any, i: int, steps_now: bool) -> Any:
        output = run_batch(run, batch, i, steps_now)
        if run.exhausted:
            run.optimization.schedules.step_epoch_early(run.progress)
        return output

    return run_and_step


def then_batch_schedules(run_batch: Callable[..., Any]) -> Callable[..., Any]:
    """Return `run_batch`, with the schedules that step with batches stepped after each."""

    def run_and_step(run: Run, batch: Any, i: int, steps_now: bool) -> Any:
        output = run_batch(run, batch, i, steps_now)
        run.optimization.schedules.step_micro_batch(run.progress, run.optimization.window.stepped)
        return output

    return run_and_step


def step_of_counted_batch(step: Callable[[Any, Any], None], progress: Progress) -> Callable[[Any, Any], None]:
    """Return the step of a schedule, for which `global_step` counts the running batch already."""

    def counted(scheduler: Any, metric: Any) -> None:
        with progress.counting_ahead():
            step(scheduler, metric)

    return counted
