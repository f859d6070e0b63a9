"""Accelerate: the user's own loop, with device and precision taken care of."""

from __future__ import annotations

from accelerate import Accelerator

from benchmarks.peers.services import Services
from benchmarks.task import MAX_NORM, Task

__all__ = ["train"]


def train(task: Task) -> None:
    """Train for one epoch."""
    accelerator = Accelerator()
    network = task.network()
    optimizer = task.optimizer(network.parameters())
    schedule = task.schedule(optimizer) if task.switches.schedule else None
    network, optimizer, loader, schedule = accelerator.prepare(network, optimizer, task.loader(), schedule)
    services = Services(task)
    for inputs, targets in loader:
        optimizer.zero_grad()
        logits = network(inputs)
        loss = task.loss(logits, targets)
        accelerator.backward(loss)
        if task.switches.clip:
            accelerator.clip_grad_norm_(network.parameters(), MAX_NORM)
        optimizer.step()
        if schedule is not None:
            schedule.step()
        services.step(loss, logits, targets)
    services.close()
