"""Statistics of batch norms, computed again from training batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from lightlib.torch_private import AnyBatchNorm

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer


def update_batch_norms(trainer: Trainer, module: nn.Module, num_batches: int | None = None) -> int:
    """Set the running statistics of batch norms to their means over training batches.

    As `torch.optim.swa_utils.update_bn`, over the batches of all processes. Batch norms in eval mode and those that
    track no statistics are left alone. All processes call this.

    Args:
        num_batches: How many batches of each process; None: those of an epoch.

    Returns:
        How many batches each process has read: 0 if there is no such batch norm.
    """
    norms = [part for part in module.modules() if _is_updated(part)]
    strategy = trainer.strategy
    if not strategy.reduce_boolean_decision(bool(norms), all=False):  # stages of a pipeline have different layers
        return 0
    run = trainer.run
    assert run is not None
    with _means(norms):
        read = run.forward_training_data(num_batches)
    for norm in norms if strategy.data_size > 1 else ():
        for mean in (norm.running_mean, norm.running_var):
            mean.copy_(strategy.data.reduce(mean, reduce_op="mean"))  # type: ignore[operator]
    return read


def _is_updated(part: nn.Module) -> bool:
    is_norm = isinstance(part, AnyBatchNorm) and part.training and part.track_running_stats
    return is_norm and isinstance(getattr(part, "running_mean", None), torch.Tensor)


@contextmanager
def _means(norms: list[nn.Module]) -> Iterator[None]:
    """Let the statistics begin again and be means of those of the batches, each of which counts equally."""
    momenta = [norm.momentum for norm in norms]
    try:
        for norm in norms:
            norm.reset_running_stats()  # type: ignore[operator]
            norm.momentum = None  # type: ignore[assignment]
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
