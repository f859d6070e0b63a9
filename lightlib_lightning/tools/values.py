"""Lightning's small constants, enumerations, protocols, warnings and conversions of tensors."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from lightning_utilities.core.enums import StrEnum
from lightning_utilities.core.rank_zero import WarningCache
from torch import Tensor, nn

from lightlib import report, tree

__all__ = [
    "CONVERSION_DTYPES",
    "CPU_DEVICE",
    "FLOAT16_EPSILON",
    "FLOAT32_EPSILON",
    "FLOAT64_EPSILON",
    "FRAMEWORK_NAME",
    "LIGHTNING_LOGO",
    "LOCAL_FILE_URI_PREFIX",
    "CheckpointHooks",
    "CollectibleGroup",
    "GradClipAlgorithmType",
    "Interval",
    "LightningDeprecationWarning",
    "Optimizable",
    "Steppable",
    "cli_lightning_logo",
    "convert_inf",
    "convert_tensors_to_scalars",
    "convert_to_tensors",
    "disable_possible_user_warnings",
    "get_standard_metrics",
    "is_cudnn_snafu",
    "remove_module_hooks",
    "warning_cache",
]

FLOAT16_EPSILON = torch.finfo(torch.float16).eps
FLOAT32_EPSILON = torch.finfo(torch.float32).eps
FLOAT64_EPSILON = torch.finfo(torch.float64).eps
CPU_DEVICE = torch.device("cpu")
FRAMEWORK_NAME = "lightlib"
LOCAL_FILE_URI_PREFIX = "file:"
LIGHTNING_LOGO = "lightlib"


class GradClipAlgorithmType(StrEnum):
    """How gradients are clipped: ``"value"`` or ``"norm"``."""

    VALUE = "value"
    NORM = "norm"

    @staticmethod
    def supported_type(val: str) -> bool:
        """Whether a name is one of them."""
        return val in GradClipAlgorithmType.supported_types()

    @staticmethod
    def supported_types() -> list[str]:
        """Return the names."""
        return [member.value for member in GradClipAlgorithmType]


class Interval(StrEnum):
    """When a Timer looks at the clock: ``"step"`` or ``"epoch"``."""

    step = "step"
    epoch = "epoch"


class LightningDeprecationWarning(DeprecationWarning):
    """Category for names that will be removed."""


def disable_possible_user_warnings(module: str = "") -> None:
    """Ignore warnings of the category ``PossibleUserWarning``.

    Args:
        module: Of the modules whose names this regular expression matches; default: of all.
    """
    warnings.filterwarnings("ignore", module=module, category=report.PossibleUserWarning)


def cli_lightning_logo() -> None:
    """Print the logo."""
    print(f"\n{LIGHTNING_LOGO}\n")  # noqa: T201 (its purpose)


@runtime_checkable
class Steppable(Protocol):
    """An object with ``step``, such as an optimizer."""

    def step(self, closure: Any = None) -> Any:
        """Step."""


@runtime_checkable
class Optimizable(Steppable, Protocol):
    """An object with the attributes of an optimizer that Fabric uses."""

    param_groups: list[dict[Any, Any]]
    defaults: dict[Any, Any]
    state: Any

    def state_dict(self) -> dict[str, dict[Any, Any]]:
        """Return the state."""

    def load_state_dict(self, state_dict: dict[str, dict[Any, Any]]) -> None:
        """Take the state."""


@runtime_checkable
class CollectibleGroup(Protocol):
    """A group of processes."""

    def size(self) -> int:
        """Return the number of processes."""

    def rank(self) -> int:
        """Return the rank of this process."""


class CheckpointHooks:
    """The hooks of saving and loading, as a base class."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add to a checkpoint before it is written."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Read from a checkpoint before it is restored."""


def _number(dtype: torch.dtype, value: Any) -> Tensor:
    return torch.tensor(value, dtype=dtype)


def _from_numpy(value: Any) -> Tensor:
    return torch.from_numpy(value)


def _conversions() -> list[tuple[Any, Any]]:
    numbers = [(bool, torch.uint8), (int, torch.int), (float, torch.float)]
    conversions: list[tuple[Any, Any]] = [(kind, partial(_number, dtype)) for kind, dtype in numbers]
    try:
        import numpy  # optional: numpy
    except ImportError:
        return conversions
    return [*conversions, (numpy.ndarray, _from_numpy)]


CONVERSION_DTYPES = _conversions()


def convert_to_tensors(data: Any, device: torch.device | str | int) -> Any:
    """Turn numbers and arrays of nested collections into tensors, and move all tensors to a device."""
    for kind, convert in CONVERSION_DTYPES:
        data = apply_to_collection(data, kind, convert)
    return tree.to_device(data, torch.device(device))


def convert_tensors_to_scalars(data: Any) -> Any:
    """Turn tensors of one element in nested collections into numbers.

    Raises:
        ValueError: A tensor has several elements.

    Example:
        >>> convert_tensors_to_scalars({"loss": torch.tensor(0.5), "name": "a"})
        {'loss': 0.5, 'name': 'a'}
    """

    def number(value: Tensor) -> Any:
        if value.numel() != 1:
            raise ValueError(
                f"The metric {value} does not contain a single element, so it cannot become a number. "
                "Expected: one element. Fix: log its mean."
            )
        return value.item()

    return tree.map_tensors(number, data)


def convert_inf(x: float | None) -> float | None:
    """Return None for infinity and NaN, which tqdm does not take."""
    return x if x is not None and abs(x) < float("inf") else None


def is_cudnn_snafu(exception: BaseException) -> bool:
    """Whether cuDNN refused an input that is not contiguous, which it does when memory is short."""
    text = "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED."
    return isinstance(exception, RuntimeError) and len(exception.args) == 1 and text in exception.args[0]


def get_standard_metrics(trainer: Any) -> dict[str, int | str]:
    """Return the metrics that progress bars show in every run: the logger's version as ``v_num``."""
    version = trainer.logger.version if trainer.loggers else None
    if version in ("", None):
        return {}
    return {"v_num": version[-4:] if isinstance(version, str) else version}


def remove_module_hooks(model: nn.Module) -> None:
    """Remove all hooks of all layers."""
    for module in model.modules():
        for kind in ("backward", "forward", "forward_pre"):
            getattr(module, f"_{kind}_hooks").clear()


class _WarnedOnce(WarningCache):
    """Texts of warnings that were given."""

    def warn(self, message: str, stacklevel: int = 5, **kwargs: Any) -> None:
        """Warn, unless this text was given before."""
        if message not in self:
            self.add(message)
            report.warn(message)


warning_cache = _WarnedOnce()
