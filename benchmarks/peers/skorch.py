"""skorch: training behind the interface of scikit-learn."""

from __future__ import annotations

from typing import Any

import torch
from skorch import NeuralNet
from skorch.callbacks import Callback, GradientNormClipping, LRScheduler, ProgressBar
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.peers.services import Services
from benchmarks.task import MAX_NORM, Task, decay

__all__ = ["train"]


class _AtStep(Callback):
    def __init__(self, services: Services) -> None:
        self.services = services

    def on_batch_end(self, net: Any, batch: Any, training: bool, loss: Any, y_pred: Any, **rest: Any) -> None:
        self.services.step(loss, y_pred, batch[1])


def train(task: Task) -> None:
    """Train for one epoch."""
    switches = task.switches
    services = Services(task, bar=False)
    callbacks: list[Any] = []
    if switches.clip:
        callbacks.append(GradientNormClipping(MAX_NORM))
    if switches.schedule:
        callbacks.append(LRScheduler(LambdaLR, lr_lambda=decay, step_every="batch"))
    if switches.log is not None:
        callbacks.append(_AtStep(services))
    if switches.bar:
        callbacks.append(ProgressBar(postfix_keys=["train_loss"], detect_notebook=False))
    net = NeuralNet(
        task.network(),
        nn.CrossEntropyLoss,
        optimizer=torch.optim.SGD,
        lr=task.learning_rate,
        max_epochs=1,
        batch_size=task.batch_size,
        train_split=None,
        iterator_train__collate_fn=task.clock,
        callbacks=callbacks or "disable",
        verbose=0,
    )
    net.fit(task.rows, None)
    services.close()
