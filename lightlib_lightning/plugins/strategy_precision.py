"""Precisions for one strategy: FSDPPrecision and DeepSpeedPrecision."""

from __future__ import annotations

from typing import Any

import torch

from lightlib import precision as ours
from lightlib import report
from lightlib.errors import MisconfigurationException, UnknownNameError
from lightlib.precision.precision import Applies
from lightlib.precision.scaler import Scaler
from lightlib.strategies import DeepSpeedStrategy, FSDPStrategy, MeshStrategy
from lightlib_lightning.plugins.precision import Precision

__all__ = ["DeepSpeedPrecision", "FSDPPrecision"]

_NAMES = ("32-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed")


class FSDPPrecision(Precision):
    """The precision of a run with FSDP: the same numbers as ``Trainer(precision=…)`` with that strategy.

    Args:
        precision: ``"32-true"``, ``"16-true"``, ``"bf16-true"``, ``"16-mixed"`` or ``"bf16-mixed"``.
        scaler: A `torch.amp.GradScaler` (torch's ShardedGradScaler is one) for ``"16-mixed"``. Default: one of torch's
            with its defaults, from the beginning of the run.

    Raises:
        UnknownNameError: Another `precision`.
        MisconfigurationException: A `scaler` for a precision that scales no loss; or, when the Trainer is built, a
            strategy that shards no parameters.

    Example:
        >>> FSDPPrecision("bf16-mixed").mixed_precision_config.param_dtype
        torch.bfloat16
    """

    def __init__(self, precision: str, scaler: torch.amp.GradScaler | None = None) -> None:
        vars(self).update(vars(_of(type(self).__name__, precision, scaler)))
        self.precision = precision

    def check_strategy(self, strategy: Applies) -> None:
        if not isinstance(strategy, FSDPStrategy) and not (
            isinstance(strategy, MeshStrategy) and strategy.sizes.get("shard", 1) != 1
        ):
            raise _for_another(self, strategy, "fsdp", "FSDPStrategy")
        super().check_strategy(strategy)

    @property
    def mixed_precision_config(self) -> Any:
        """The dtypes as arguments of torch's first FSDP; lightlib's FSDP2 adds up gradients in float32 if mixed."""
        from torch.distributed.fsdp import MixedPrecision  # optional: slow, for users who pass it on

        if self.precision in ("16-true", "bf16-true"):
            report.warn(
                f"FSDPPrecision({self.precision!r}): torch's first FSDP keeps a copy in the dtype of the module."
            )
        dtype = self.compute_dtype
        return MixedPrecision(param_dtype=dtype, reduce_dtype=dtype, buffer_dtype=dtype)

    def loss_scaler(self, device_type: str) -> Scaler | None:
        """Return the loss scaler of a run; its `torch.amp.GradScaler` is `scaler` from then on."""
        scaler = super().loss_scaler(device_type)
        if scaler is not None:
            vars(self)["scaler"] = scaler.grad_scaler
        return scaler


class DeepSpeedPrecision(Precision):
    """The precision of a run with DeepSpeed: the same numbers as ``Trainer(precision=…)`` with that strategy.

    Args:
        precision: ``"32-true"``, ``"16-true"``, ``"bf16-true"``, ``"16-mixed"`` or ``"bf16-mixed"``.

    Raises:
        UnknownNameError: Another `precision`.
        MisconfigurationException: When the Trainer is built, another strategy.

    Example:
        >>> DeepSpeedPrecision("16-mixed").compute_dtype
        torch.float16
    """

    def __init__(self, precision: str) -> None:
        vars(self).update(vars(_of(type(self).__name__, precision)))
        self.precision = precision

    def check_strategy(self, strategy: Applies) -> None:
        if not isinstance(strategy, DeepSpeedStrategy):
            raise _for_another(self, strategy, "deepspeed", "DeepSpeedStrategy")
        super().check_strategy(strategy)


def _of(kind: str, name: object, scaler: torch.amp.GradScaler | None = None) -> ours.Precision:
    if not isinstance(name, str) or name not in _NAMES:
        raise UnknownNameError(f"precision of {kind}", name, _NAMES, fix=f'{kind}("bf16-mixed")')
    precision = ours.named(name)
    dtypes = precision.param_dtype, precision.compute_dtype, precision.reduce_dtype
    return ours.Precision(name, *dtypes, precision.scales_loss, scaler)


def _for_another(precision: Precision, strategy: object, name: str, kind: str) -> MisconfigurationException:
    class_name = type(precision).__name__
    return MisconfigurationException(
        f"{class_name}({precision.name!r}) was given with the strategy {type(strategy).__name__}.",
        expected=f"{kind}, for which it is.",
        fix=f'Trainer(strategy="{name}", plugins=[{class_name}({precision.name!r})]), or '
        f"Trainer(precision={precision.name!r}).",
    )
