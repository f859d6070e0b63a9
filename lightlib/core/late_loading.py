"""Late loading: requests loaders where Lightning does, if that convention is followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from lightlib.conventions import Order
from lightlib.core.run.parts import VALIDATION, Stage
from lightlib.core.run.run import Run
from lightlib.core.setup.loaders import check_loaders
from lightlib.data.train import TrainData

if TYPE_CHECKING:
    from lightlib.core.trainer import Trainer


def before_hooks(trainer: Trainer, eval_data: Callable[[Stage], Any], order: Order) -> dict[str, Callable[..., Any]]:
    """Return the calls that load data, by the name of the hook that follows each."""
    if not order.loads_late:
        return {}
    return {
        "on_train_start": lambda: _load(trainer.run, eval_data),
        "on_train_epoch_start": lambda: _reload(trainer.run),
    }


def _load(run: Run | None, eval_data: Callable[[Stage], Any]) -> None:
    """Request the training loaders, and those of validation unless the sanity check has."""
    assert run is not None
    data = run.train_data
    assert data is not None
    check_loaders(data.given, "train")
    plan = run.replan(data.num_batches)
    if plan.validate_every is not None and plan.validates_epoch(run.progress.epoch):
        eval_data(VALIDATION)
    run.use_plan(run.replan(data.num_batches))
    if run.progress.epoch and run.trainer.ckpt_path is None:
        _draw_seeds(data)


def _reload(run: Run | None) -> None:
    """Request the training loaders again if that is due."""
    assert run is not None
    data = run.train_data
    assert data is not None
    with run.user_state.reading():
        reloaded = data.reload_if_due(run.progress.epoch)
    if reloaded:
        _draw_seeds(data)


def _draw_seeds(data: TrainData) -> None:
    """Draw seeds once more: Lightning begins twice to read loaders that it requests after epoch 0."""
    for loader in data.given:
        if isinstance(loader, DataLoader):
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            if loader.num_workers:  # they are given the first indices at once
                next(iter(loader.batch_sampler or loader.sampler), None)
