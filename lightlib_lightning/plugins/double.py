"""LightningDoublePrecisionModule: casts the inputs of a module's steps to float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lightlib import report
from lightlib.precision.context import cast_floating

if TYPE_CHECKING:
    from lightlib.core.module.module import Module

__all__ = ["LightningDoublePrecisionModule"]


class LightningDoublePrecisionModule(nn.Module):
    """Calls a module's steps and its forward with floating tensors cast to float64.

    ``Trainer(precision="64-true")`` does the same without it; a warning reports that.

    Args:
        pl_module: The module; its parameters stay as they are.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     wrapped = LightningDoublePrecisionModule(nn.Identity())
        >>> wrapped(torch.ones(1)).dtype
        torch.float64
    """

    def __init__(self, pl_module: Module) -> None:
        super().__init__()
        report.warn(
            f"{type(self).__name__} is deprecated in Lightning and not needed: Trainer(precision='64-true') casts the "
            "module and its inputs.",
            DeprecationWarning,
        )
        self.module = pl_module
        ignored = getattr(pl_module, "_ddp_params_and_buffers_to_ignore", [])
        self._ddp_params_and_buffers_to_ignore = [f"module.{name}" for name in ignored]

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's training step."""
        return _in_double(self.module.training_step, args, kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's validation step."""
        return _in_double(self.module.validation_step, args, kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's test step."""
        return _in_double(self.module.test_step, args, kwargs)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's prediction step."""
        return _in_double(self.module.predict_step, args, kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward."""
        return _in_double(self.module, args, kwargs)


def _in_double(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    args, kwargs = cast_floating((args, kwargs), torch.float64)
    return call(*args, **kwargs)
