"""A pass over the training data that trains nothing: for statistics such as those of batch norms."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from lightlib.core.metrics.dummy_steps import run_dummy_step
from lightlib.data.generators import set_states, states_of
from lightlib.data.seed import isolate_rng
from lightlib.errors import MisconfigurationException

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightlib.core.run.run import Run
    from lightlib.data.train import TrainData

STEP = "training_forward"  # the strategy's name for `training_step` outside of training


def forward_training_data(run: Run, num_batches: int | None = None) -> int:
    """Run `training_step` on training batches without gradients, and discard its output.

    Logged values, updates of torchmetrics, random numbers and the position in the data are as before. All processes
    call this; each reads its shard. Attributes that `training_step` sets stay set.

    Args:
        num_batches: How many batches on each process, at most. Default: those of an epoch.

    Returns:
        How many batches were read.
    """
    step = getattr(run.strategy, STEP, None)
    if run.train_data is None or step is None:
        raise MisconfigurationException(
            f"{type(run.strategy).__name__} cannot run training_step outside of training.",
            expected="a strategy that binds all steps that its `place` gets, within trainer.fit.",
            fix='Trainer(strategy="ddp")',
        )
    with isolate_rng(), torch.no_grad(), _second_reader(run.train_data, run.progress.epoch) as data:
        while not data.exhausted and (num_batches is None or data.position < num_batches):
            position = data.position
            run_dummy_step(run.results, run.module, step, next(data), position, 0, several=False, training=True)
        return data.position


@contextmanager
def _second_reader(train_data: TrainData, epoch: int) -> Iterator[TrainData]:
    """Read an epoch of the training data next to the one that is trained."""
    generators = [states_of(source.generators) for source in train_data.sources]
    data = train_data.second_reader()
    try:
        data.start_epoch(epoch, 0)
        yield data
    finally:
        data.close()
        for source, states in zip(train_data.sources, generators, strict=True):
            set_states(source.generators, states)
