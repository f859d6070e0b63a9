"""Bar, scalars and the mean of an epoch, by hand: for frameworks that leave them to their users."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from benchmarks.task import LOG_EVERY, Task

__all__ = ["Services"]


class Services:
    """The services that are switched on, run once per step.

    Args:
        task: Its `switches` select the services.
        bar: Whether to show a tqdm bar; False for a framework that has its own.
    """

    def __init__(self, task: Task, bar: bool = True) -> None:
        self.switches = task.switches
        self.accuracy = task.accuracy() if task.switches.accuracy else None
        self.writer = task.writer() if task.switches.tensorboard else None
        self.bar: Any = None
        if task.switches.bar and bar:
            from tqdm import tqdm  # optional: tqdm

            self.bar = tqdm(total=task.batches)
        self.steps, self.total, self.rows = 0, 0.0, 0

    def step(self, loss: Tensor | float, logits: Tensor | None = None, targets: Tensor | None = None) -> None:
        """A step is done."""
        self.steps += 1
        if self.accuracy is not None and logits is not None:
            self.accuracy.update(logits.detach(), targets)
        if self.switches.log is None:
            return
        value = loss if isinstance(loss, float) else loss.item()
        count = 1 if targets is None else len(targets)
        self.total += value * count
        self.rows += count
        if self.bar is not None:
            self.bar.set_postfix(loss=value, refresh=False)
            self.bar.update()
        if self.writer is not None and self.steps % LOG_EVERY == 0:
            self.writer.add_scalar("loss_step", value, self.steps)

    def close(self) -> None:
        """The epoch is over."""
        if self.bar is not None:
            self.bar.close()
        if self.writer is not None:
            self.writer.add_scalar("loss_epoch", self.total / self.rows, self.steps)
            if self.accuracy is not None:
                self.writer.add_scalar("accuracy", self.accuracy.compute(), self.steps)
            self.writer.close()
