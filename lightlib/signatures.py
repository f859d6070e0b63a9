"""Types that the public signatures of several folders share: logged values, fixed words, optimizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsFloat

from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import TypedDict

if TYPE_CHECKING:
    from torchmetrics import Metric, MetricCollection

    Loggable = SupportsFloat | Metric
    Loggables = Mapping[str, Loggable] | MetricCollection
    PrecisionName = Literal[
        "64-true", "32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true", "fp8-mixed", "fp8-true",
        "transformer-engine", "transformer-engine-float16", "64", "32", "16", "bf16", 64, 32, 16,
    ]  # fmt: skip
else:  # the command line accepts names of other packages as well
    PrecisionName = str | int

__all__ = [
    "ClipAlgorithm",
    "LogOptions",
    "Loggable",
    "Loggables",
    "OptimizersAndSchedules",
    "PrecisionName",
    "ProfilerName",
    "Reduction",
    "Schedule",
    "StepOutput",
]

ClipAlgorithm = Literal["norm", "value"]
ProfilerName = Literal["simple", "advanced", "pytorch", "memory"]
Reduction = Literal["mean", "sum", "min", "max", "avg"]
StepOutput = Tensor | Mapping[str, Any] | None  # of `training_step`


class LogOptions(TypedDict, total=False):
    """The arguments of `Module.log` and `Module.log_dict` after the values."""

    prog_bar: bool
    logger: bool | None
    on_step: bool | None
    on_epoch: bool | None
    reduce_fx: Reduction | Callable[[Any], Any]
    enable_graph: bool
    sync_dist: bool
    sync_dist_group: Any
    add_dataloader_idx: bool
    batch_size: int | None
    rank_zero_only: bool


class Schedule(Protocol):
    """Any object with `step` and `state_dict`, such as a scheduler of torch."""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Advance."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""


# What `configure_optimizers` may return. Each optimizer and each scheduler may be a factory that builds it.
_Optimizer = Optimizer | Callable[..., Optimizer]
_Schedule = Schedule | Callable[..., Any] | Mapping[str, Any]
OptimizersAndSchedules = (
    _Optimizer
    | Sequence[_Optimizer]
    | tuple[Sequence[_Optimizer], Sequence[_Schedule] | _Schedule]
    | Mapping[str, Any]
    | Sequence[Mapping[str, Any]]
    | None
)
