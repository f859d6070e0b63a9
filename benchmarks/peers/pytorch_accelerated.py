"""pytorch-accelerated: a trainer on top of Accelerate."""

from __future__ import annotations

from typing import Any

from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import ProgressBarCallback, TrainerCallback
from torch import nn

from benchmarks.peers.services import Services
from benchmarks.task import MAX_NORM, Task

__all__ = ["train"]


class _AtStep(TrainerCallback):
    def __init__(self, services: Services) -> None:
        self.services = services

    def on_train_step_end(self, trainer: Any, batch: Any, batch_output: Any, **rest: Any) -> None:
        self.services.step(batch_output["loss"], batch_output["model_outputs"], batch[1])


class _Clipping(Trainer):
    def optimizer_step(self) -> None:
        self._accelerator.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        super().optimizer_step()


def train(task: Task) -> None:
    """Train for one epoch."""
    switches = task.switches
    network, services = task.network(), Services(task, bar=False)
    callbacks: list[Any] = [_AtStep(services)] if switches.log is not None else []
    callbacks += [ProgressBarCallback()] if switches.bar else []
    kind = _Clipping if switches.clip else Trainer
    trainer = kind(network, nn.CrossEntropyLoss(), task.optimizer(network.parameters()), callbacks=callbacks)
    trainer.train(
        task.rows,
        num_epochs=1,
        per_device_batch_size=task.batch_size,
        create_scheduler_fn=task.schedule if switches.schedule else None,
        train_dataloader_kwargs={"num_workers": 0, "pin_memory": False, "shuffle": False},
        collate_fn=task.clock,
    )
    services.close()
