"""torchtnt: functions that run a unit, and callbacks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchtnt.framework import AutoUnit
from torchtnt.framework import train as tnt_train
from torchtnt.framework.callbacks import TQDMProgressBar

from benchmarks.peers.services import Services
from benchmarks.task import MAX_NORM, Task

__all__ = ["train"]


class _Unit(AutoUnit[tuple[Tensor, Tensor]]):
    def __init__(self, task: Task, services: Services) -> None:
        self.task, self.services = task, services
        clip = MAX_NORM if task.switches.clip else None
        super().__init__(
            module=task.network(), device=torch.device("cpu"), step_lr_interval="step", clip_grad_norm=clip
        )

    def configure_optimizers_and_lr_scheduler(self, module: torch.nn.Module) -> tuple[Any, Any]:
        optimizer = self.task.optimizer(module.parameters())
        return optimizer, self.task.schedule(optimizer) if self.task.switches.schedule else None

    def compute_loss(self, state: Any, data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        inputs, targets = data
        logits = self.module(inputs)
        return self.task.loss(logits, targets), logits

    def on_train_step_end(self, state: Any, data: Any, step: int, results: Any) -> None:
        self.services.step(results.loss, results.outputs, data[1])


def train(task: Task) -> None:
    """Train for one epoch."""
    services = Services(task, bar=False)
    callbacks = [TQDMProgressBar()] if task.switches.bar else []
    tnt_train(_Unit(task, services), task.loader(), max_epochs=1, callbacks=callbacks)
    services.close()
