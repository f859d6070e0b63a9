"""Timing: puts the Trainer's profiler around the calls of a run, and nothing if there is none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from lightlib.data.resumable_loader import batch_size_of_loader
from lightlib.profilers.profiler import PassThroughProfiler, Profiler, RunFacts

if TYPE_CHECKING:
    from lightlib.core.run.run import Run


class Timing:
    """Returns calls and iterators that a profiler measures; without a profiler those that were given.

    Args:
        profiler: The Trainer's; a `PassThroughProfiler` counts as none.

    Attributes:
        profiler: The profiler, or None.
    """

    def __init__(self, profiler: Profiler) -> None:
        self.profiler = None if isinstance(profiler, PassThroughProfiler) else profiler

    def call(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call`, measured under a name."""
        return call if self.profiler is None else _measured(self.profiler, name, call)

    def iterator(self, name: str, iterator: Iterator[Any]) -> Iterator[Any]:
        """Return an iterator that measures how long each item takes."""
        return iterator if self.profiler is None else _each_measured(self.profiler, name, iterator)

    def optimizers(self, optimizers: list[Any]) -> list[Any]:
        """Measure the steps of torch's optimizers; return handles with a `remove` that ends it."""
        handles: list[Any] = []
        for optimizer in optimizers if self.profiler is not None else ():
            if isinstance(optimizer, Optimizer):
                step = _Step(self.profiler, f"[Optimizer]{type(optimizer).__name__}.step")
                handles.append(optimizer.register_step_pre_hook(step.start))
                handles.append(optimizer.register_step_post_hook(step.stop))
        return handles


class _Step:
    """Measures one optimizer's steps. A `step` that calls that of its base runs the hooks of both."""

    def __init__(self, profiler: Profiler | None, name: str) -> None:
        self._profiler, self._name, self._depth = profiler, name, 0

    def start(self, *_: Any) -> None:
        self._depth += 1
        if self._depth == 1 and self._profiler is not None:
            self._profiler.start(self._name)

    def stop(self, *_: Any) -> None:
        self._depth -= 1
        if self._depth == 0 and self._profiler is not None:
            self._profiler.stop(self._name)


def _measured(profiler: Profiler, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def measured(*args: Any) -> Any:
        with profiler.profile(name):
            return call(*args)

    return measured


def _each_measured(profiler: Profiler, name: str, iterator: Iterator[Any]) -> Iterator[Any]:
    end = object()
    while True:
        with profiler.profile(name):
            item = next(iterator, end)
        if item is end:
            return
        yield item


def facts_of(run: Run) -> RunFacts:
    """Return the facts on which a profiler's recommendation depends."""
    trainer, data = run.trainer, run.train_data
    loaders = data.given if data is not None and data.is_loaded else []
    workers = [loader.num_workers for loader in loaders if hasattr(loader, "num_workers")]
    pinned = [loader.pin_memory for loader in loaders if hasattr(loader, "pin_memory")]
    groups = [group for optimizer in run.optimization.optimizers for group in optimizer.param_groups]
    fused = [bool(group["fused"]) for group in groups if "fused" in group]
    sizes = [batch_size_of_loader(loader) for loader in loaders]
    return RunFacts(
        device=run.strategy.root_device.type,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        num_workers=min(workers, default=None),
        pin_memory=all(pinned) if pinned else None,
        batch_size=next(iter(sizes), None),
        log_every_n_steps=trainer.log_every_n_steps,
        async_save=any(getattr(callback, "async_save", False) for callback in trainer.checkpoint_callbacks),
        fused=all(fused) if fused else None,
    )
