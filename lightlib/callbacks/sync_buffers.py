"""SyncBuffers: gives all replicas the mean of their buffers at the end of each epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lightlib.callbacks.callback import Callback

if TYPE_CHECKING:
    from lightlib.core.module.module import Module
    from lightlib.core.trainer import Trainer


class SyncBuffers(Callback):
    """Averages buffers of floating point, such as running statistics, over the processes that read different data.

    It does so after the last batch of an epoch, before its validation and its checkpoints, and when training ends.
    Without it a validation and a checkpoint have the buffers of the first process. Other buffers are left alone. With
    DDP the buffers of the first process are sent at each step; pass ``broadcast_buffers=False`` to keep each its own.

    Example:
        >>> SyncBuffers()
        SyncBuffers()
    """

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        run = trainer.run
        if run is not None and run.exhausted:
            _average(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        _average(trainer, pl_module)


@torch.no_grad()
def _average(trainer: Trainer, module: Module) -> None:
    strategy = trainer.strategy
    if strategy.data_size == 1:
        return
    for buffer in module.buffers():
        if buffer.is_floating_point() and not buffer.is_meta:
            buffer.copy_(strategy.data.reduce(buffer, reduce_op="mean"))
