"""Ignite: an engine that calls a function per batch, and handlers for the rest."""

from __future__ import annotations

from ignite.engine import Engine, Events
from ignite.handlers import ProgressBar
from ignite.handlers.tensorboard_logger import TensorboardLogger
from ignite.metrics import Average
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from benchmarks.task import LOG_EVERY, MAX_NORM, Task

__all__ = ["train"]


def train(task: Task) -> None:
    """Train for one epoch."""
    switches = task.switches
    network = task.network()
    optimizer = task.optimizer(network.parameters())
    accuracy = task.accuracy() if switches.accuracy else None

    def update(engine: Engine, batch: tuple[Tensor, Tensor]) -> float | None:  # noqa: ARG001  Ignite's signature
        inputs, targets = batch
        optimizer.zero_grad()
        logits = network(inputs)
        loss = task.loss(logits, targets)
        loss.backward()
        if switches.clip:
            clip_grad_norm_(network.parameters(), MAX_NORM)
        optimizer.step()
        if accuracy is not None:
            accuracy.update(logits.detach(), targets)
        return loss.item() if switches.log is not None else None

    trainer = Engine(update)
    if switches.schedule:
        schedule = task.schedule(optimizer)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: schedule.step())  # noqa: PLW0108  or it would get the engine
    if switches.log is not None:
        Average().attach(trainer, "loss_epoch")
    if switches.bar:
        ProgressBar().attach(trainer, output_transform=lambda loss: {"loss": loss})
    logger = TensorboardLogger(log_dir=task.folder) if switches.tensorboard else None
    if logger is not None:
        logger.attach_output_handler(
            trainer, Events.ITERATION_COMPLETED(every=LOG_EVERY), "train", output_transform=lambda loss: {"loss": loss}
        )
        logger.attach_output_handler(trainer, Events.EPOCH_COMPLETED, "train", metric_names="all")
    trainer.run(task.loader(), max_epochs=1)
    if logger is not None:
        logger.close()
