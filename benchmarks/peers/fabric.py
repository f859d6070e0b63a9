"""Fabric: the user's own loop, with device, precision and strategy taken care of."""

from __future__ import annotations

from lightning.fabric import Fabric

from benchmarks.peers.services import Services
from benchmarks.task import MAX_NORM, Task

__all__ = ["train"]


def train(task: Task) -> None:
    """Train for one epoch."""
    fabric = Fabric(accelerator="cpu", devices=1)
    network = task.network()
    plain_optimizer = task.optimizer(network.parameters())
    schedule = task.schedule(plain_optimizer) if task.switches.schedule else None
    network, optimizer = fabric.setup(network, plain_optimizer)
    services = Services(task)
    for inputs, targets in fabric.setup_dataloaders(task.loader()):
        optimizer.zero_grad()
        logits = network(inputs)
        loss = task.loss(logits, targets)
        fabric.backward(loss)
        if task.switches.clip:
            fabric.clip_gradients(network, optimizer, max_norm=MAX_NORM)
        optimizer.step()
        if schedule is not None:
            schedule.step()
        services.step(loss, logits, targets)
    services.close()
