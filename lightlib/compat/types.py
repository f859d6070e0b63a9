"""Lightning's type aliases (`STEP_OUTPUT`, `_PATH`, …) and typed dictionaries."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from typing_extensions import NotRequired, Required

__all__ = [
    "EVAL_DATALOADERS",
    "STEP_OUTPUT",
    "TRAIN_DATALOADERS",
    "DistributedDataParallel",
    "LRScheduler",
    "LRSchedulerConfigType",
    "LRSchedulerTypeTuple",
    "LRSchedulerTypeUnion",
    "OptimizerConfig",
    "OptimizerLRScheduler",
    "OptimizerLRSchedulerConfig",
    "ReduceLROnPlateau",
]

STEP_OUTPUT = Tensor | Mapping[str, Any] | None
TRAIN_DATALOADERS = Any
EVAL_DATALOADERS = Any
LRSchedulerTypeTuple = (LRScheduler, ReduceLROnPlateau)
LRSchedulerTypeUnion = LRScheduler | ReduceLROnPlateau

_PATH = str | os.PathLike[str]
_DEVICE = torch.device | str | int
_MAP_LOCATION_TYPE = (
    _DEVICE | Callable[[torch.UntypedStorage, str], torch.UntypedStorage | None] | dict[_DEVICE, _DEVICE] | None
)
_PARAMETERS = Any
_DATALOADER = Any
_METRIC = Any
_NUMBER = int | float
_OUT_DICT = dict[str, Tensor]
_PBAR_DICT = dict[str, int | float | str]
_METRICS = _OUT_DICT
_EVALUATE_OUTPUT = list[Mapping[str, float]]
_PREDICT_OUTPUT = list[Any] | list[list[Any]]


class LRSchedulerConfigType(TypedDict, total=False):
    """A scheduler and when it steps, as `configure_optimizers` returns it below ``"lr_scheduler"``."""

    scheduler: Required[LRSchedulerTypeUnion]
    name: str | None
    interval: str
    frequency: int
    reduce_on_plateau: bool
    monitor: str | None
    strict: bool
    begin: int
    end: int | None
    convert_to_iter_based: bool


class OptimizerConfig(TypedDict):
    """An optimizer alone, as `configure_optimizers` may return it."""

    optimizer: Optimizer


class OptimizerLRSchedulerConfig(TypedDict):
    """An optimizer with its schedule, as `configure_optimizers` may return it."""

    optimizer: Optimizer
    lr_scheduler: NotRequired[LRSchedulerTypeUnion | LRSchedulerConfigType]
    monitor: NotRequired[str]


OptimizerLRScheduler = (
    Optimizer
    | Sequence[Optimizer]
    | tuple[Sequence[Optimizer], Sequence[LRSchedulerTypeUnion | LRSchedulerConfigType]]
    | OptimizerConfig
    | OptimizerLRSchedulerConfig
    | Sequence[OptimizerConfig]
    | Sequence[OptimizerLRSchedulerConfig]
    | None
)
