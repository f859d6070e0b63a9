"""(l) Calls and microseconds that a feature adds to each step while it is on."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lightlib
from benchmarks.calls import calls_per_batch
from benchmarks.measure import Result, Row, Size
from benchmarks.peers import LIGHTLIB, lightning_style
from benchmarks.task import BARE, LOG_EVERY, Task, tiny
from lightlib.callbacks import ActivationMonitor, NormMonitor
from lightlib.loggers import CSVLogger

__all__ = ["run"]

Options = Callable[[Path], dict[str, Any]]


def _logged(callback: Callable[[], Any]) -> Options:
    return lambda folder: {"callbacks": [callback()], "logger": CSVLogger(folder), "log_every_n_steps": LOG_EVERY}


_OFF = "everything off"
FEATURES: dict[str, Options] = {
    _OFF: lambda folder: {},
    "a logger that has nothing to write": lambda folder: {"logger": CSVLogger(folder), "log_every_n_steps": LOG_EVERY},
    'accumulate_grad_batches="auto"': lambda folder: {"accumulate_grad_batches": "auto"},
    'max_duration="1e9sp", which counts samples': lambda folder: {"max_duration": "1e9sp"},
    f'NormMonitor(layers="*") every {LOG_EVERY} steps': _logged(partial(NormMonitor, layers="*")),
    f"ActivationMonitor() every {LOG_EVERY} steps": _logged(ActivationMonitor),
}


def run(size: Size) -> Iterator[Result]:
    """Yield the calls of a batch with each feature less those without, and the times of a step, all in turns."""
    calls = {what: calls_per_batch(partial(train, options), size.counted) for what, options in FEATURES.items()}
    for what, count in calls.items():
        if what != _OFF:
            yield Row(f"calls per batch added by {what}", LIGHTLIB.name, [count - calls[_OFF]], "calls")
    times: dict[str, list[float]] = {what: [] for what in FEATURES}
    for _ in range(size.rounds):
        taken = {what: _microseconds(options, size) for what, options in FEATURES.items()}
        for what, time in taken.items():
            times[what].append(time - (taken[_OFF] if what != _OFF else 0))
    for what, values in times.items():
        yield Row(
            "µs per step, " + what if what == _OFF else f"µs per step added by {what}", LIGHTLIB.name, values, "µs"
        )


def train(options: Options, task: Task) -> None:
    """Train for one epoch with these options of the Trainer."""
    off: dict[str, Any] = {"enable_checkpointing": False, "enable_model_summary": False, "enable_progress_bar": False}
    trainer = lightlib.Trainer(
        **{"logger": False, "accelerator": "cpu", "max_epochs": 1, **off, **options(task.folder)}
    )
    trainer.fit(lightning_style.module(lightlib, task), task.loader())


def _microseconds(options: Options, size: Size) -> float:
    """Return the mean time of a step in µs, with the work that only some steps do."""
    with tempfile.TemporaryDirectory() as folder:
        task = tiny(size.steps, size.warm_up, BARE, Path(folder))
        gc.collect()
        train(options, task)
    return 1e6 * task.clock.mean
