"""The loop that everybody writes: nothing is shown or logged."""

from __future__ import annotations

import torch
from torch.nn.utils import clip_grad_norm_

from benchmarks.task import MAX_NORM, Task

__all__ = ["predict", "train", "validate"]


def train(task: Task) -> None:
    """Train for one epoch."""
    switches = task.switches
    network = task.network().to(task.place.device)
    optimizer = task.optimizer(network.parameters())
    schedule = task.schedule(optimizer) if switches.schedule else None
    accuracy = task.accuracy() if switches.accuracy else None
    for inputs, targets in task.on_device():
        optimizer.zero_grad()
        logits = network(inputs)
        loss = task.loss(logits, targets)
        loss.backward()
        if switches.clip:
            clip_grad_norm_(network.parameters(), MAX_NORM)
        optimizer.step()
        if schedule is not None:
            schedule.step()
        if accuracy is not None:
            accuracy.update(logits, targets)


def validate(task: Task) -> None:
    """Compute the mean loss of all batches."""
    network = task.network().eval()
    total, count = 0.0, 0
    with torch.inference_mode():
        for inputs, targets in task.loader():
            total += task.loss(network(inputs), targets).item() * len(targets)
            count += len(targets)
    assert total / count > 0


def predict(task: Task) -> None:
    """Compute the logits of all batches, and drop them."""
    network = task.network().eval()
    with torch.inference_mode():
        for inputs, _ in task.loader():
            network(inputs)
