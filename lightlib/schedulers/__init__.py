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

_PLACES = {
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
    "PolynomialWarmupLR": "annealing",
    "WarmupStableDecayLR": "annealing",
    "get_scheduler": "by_name",
}
__all__ = [
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
    "PolynomialWarmupLR",
    "WarmupStableDecayLR",
    "get_scheduler",
]
_get, _names = lazy.attributes(__name__, _PLACES)

if not TYPE_CHECKING:  # type checkers see only the names above
    __getattr__, __dir__ = _get, _names
