"""Learning-rate schedules that torch does not have, and schedules of momentum, betas and weight decay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.schedulers.annealing import (
        CosineAnnealingWarmupLR,
        FlatAnnealingLR,
        FlatAnnealingWarmupLR,
        LinearWarmupLR,
        PolynomialWarmupLR,
        WarmupStableDecayLR,
    )
    from lightlib.schedulers.by_name import get_scheduler
    from lightlib.schedulers.closed_form import ClosedFormLR
    from lightlib.schedulers.endless import ConstantWarmupLR, CosineRestartLR, InverseSquareRootLR, MultiStepWarmupLR
    from lightlib.schedulers.parameter import ParamScheduler
    from lightlib.schedulers.placeholders import (
        EVAL_DATALOADER_LEN,
        NUM_EPOCHS,
        TOTAL_UPDATE_STEPS,
        TRAIN_DATALOADER_LEN,
        UPDATE_STEPS_PER_EPOCH,
        Placeholder,
    )

_PLACES = {
    "EVAL_DATALOADER_LEN": "placeholders",
    "NUM_EPOCHS": "placeholders",
    "TOTAL_UPDATE_STEPS": "placeholders",
    "TRAIN_DATALOADER_LEN": "placeholders",
    "UPDATE_STEPS_PER_EPOCH": "placeholders",
    "ClosedFormLR": "closed_form",
    "ConstantWarmupLR": "endless",
    "CosineAnnealingWarmupLR": "annealing",
    "CosineRestartLR": "endless",
    "FlatAnnealingLR": "annealing",
    "FlatAnnealingWarmupLR": "annealing",
    "InverseSquareRootLR": "endless",
    "LinearWarmupLR": "annealing",
    "MultiStepWarmupLR": "endless",
    "ParamScheduler": "parameter",
    "Placeholder": "placeholders",
    "PolynomialWarmupLR": "annealing",
    "WarmupStableDecayLR": "annealing",
    "get_scheduler": "by_name",
}
__all__ = [
    "EVAL_DATALOADER_LEN",
    "NUM_EPOCHS",
    "TOTAL_UPDATE_STEPS",
    "TRAIN_DATALOADER_LEN",
    "UPDATE_STEPS_PER_EPOCH",
    "ClosedFormLR",
    "ConstantWarmupLR",
    "CosineAnnealingWarmupLR",
    "CosineRestartLR",
    "FlatAnnealingLR",
    "FlatAnnealingWarmupLR",
    "InverseSquareRootLR",
    "LinearWarmupLR",
    "MultiStepWarmupLR",
    "ParamScheduler",
    "Placeholder",
    "PolynomialWarmupLR",
    "WarmupStableDecayLR",
    "get_scheduler",
]
_get, _names = lazy.attributes(__name__, _PLACES)

if not TYPE_CHECKING:  # type checkers see only the names above
    __getattr__, __dir__ = _get, _names
