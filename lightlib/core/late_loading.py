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


def _reload(run: Run | None) -> None:
    """Request the training loaders again if that is due.

    Lightning begins to read such loaders twice, so a seed for their workers is drawn once more.
    """
    assert run is not None
    data = run.train_data
    assert data is not None
    with run.user_state.reading():
        reloaded = data.reload_if_due(run.progress.epoch)
    for loader in data.given if reloaded else ():
        if isinstance(loader, DataLoader):
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
