"""Lightning's type aliases (`STEP_OUTPUT`, `_PATH`, …) and typed dictionaries."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Union

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from typing_extensions import NotRequired, Required

from lightlib.core.optimization.wrapper import LightningOptimizer
from lightlib.fabric.wrapped import FabricOptimizer
from lightlib.signatures import StepOutput

if TYPE_CHECKING:
    from comet_ml import ExistingExperiment, Experiment, OfflineExperiment

__all__ = [
    "EVAL_DATALOADERS",
    "MODULE_OPTIMIZERS",
    "STEP_OUTPUT",
    "TRAIN_DATALOADERS",
    "BType",
    "DistributedDataParallel",
    "LRScheduler",
    "LRSchedulerConfigType",
    "LRSchedulerPLType",
    "LRSchedulerType",
    "LRSchedulerTypeTuple",
    "LRSchedulerTypeUnion",
    "ModuleType",
    "OptimizerConfig",
    "OptimizerLRScheduler",
    "OptimizerLRSchedulerConfig",
    "RedOpType",
    "ReduceLROnPlateau",
    "T",
    "TBroadcast",
    "TModel",
    "TReduce",
    "T_destination",
    "comet_experiment",
]

STEP_OUTPUT = StepOutput
TRAIN_DATALOADERS = Any
EVAL_DATALOADERS = Any
LRSchedulerTypeTuple = (LRScheduler, ReduceLROnPlateau)
LRSchedulerTypeUnion = LRScheduler | ReduceLROnPlateau
LRSchedulerPLType = LRSchedulerTypeUnion
LRSchedulerType = type[LRScheduler] | type[ReduceLROnPlateau]
BType = Union[Tensor, str, Mapping[Any, "BType"], Iterable["BType"]]  # noqa: UP007  `|` takes no name that comes later
MODULE_OPTIMIZERS = (
    Optimizer
    | LightningOptimizer
    | FabricOptimizer
    | list[Optimizer]
    | list[LightningOptimizer]
    | list[FabricOptimizer]
)
comet_experiment = Union["Experiment", "ExistingExperiment", "OfflineExperiment"]

RedOpType = torch.distributed.ReduceOp.RedOpType
T = TypeVar("T")
T_destination = TypeVar("T_destination", bound=dict[str, Any])
TBroadcast = TypeVar("TBroadcast")
TModel = TypeVar("TModel", bound=nn.Module)
TReduce = TypeVar("TReduce")
ModuleType = TypeVar("ModuleType")

_PATH = str | os.PathLike[str]
_DEVICE = torch.device | str | int
_MAP_LOCATION_TYPE = (
    _DEVICE | Callable[[torch.UntypedStorage, str], torch.UntypedStorage | None] | dict[_DEVICE, _DEVICE] | None
)
_PARAMETERS = Any
_PLUGIN_INPUT = Any
_PRECISION_INPUT = Any
_LITERAL_WARN = Literal["warn"]
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
    interval: Literal["epoch", "step", "batch", "manual"]
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
