"""BitsandbytesPrecision and TransformerEnginePrecision under Lightning's protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch

from lightlib.precision import bitsandbytes, transformer_engine
from lightlib.precision.precision import Applies
from lightlib.precision.precision import Precision as Ours
from lightlib_lightning.plugins import precision as precisions
from lightlib_lightning.plugins.precision import Precision

__all__ = ["BitsandbytesPrecision", "TransformerEnginePrecision", "named"]


class _Replacing(Precision):
    """Base: a precision with Lightning's methods around one of lightlib's, which does the work."""

    _made: Ours

    def _stand_for(self, inner: Ours) -> None:
        vars(self).update(vars(inner))
        self._made = inner

    @property
    def _plain(self) -> Ours:
        return self._made

    def check_strategy(self, strategy: Applies) -> None:
        self._made.check_strategy(strategy)
        super().check_strategy(strategy)


class BitsandbytesPrecision(_Replacing, bitsandbytes.BitsandbytesPrecision):
    """Linear layers with weights in 4 or 8 bits; see :class:`lightlib.precision.BitsandbytesPrecision`.

    Args:
        mode: ``"nf4"``, ``"nf4-dq"``, ``"fp4"``, ``"fp4-dq"``, ``"int8"`` or ``"int8-training"``.
        dtype: The dtype of the computation.
        ignore_modules: Names of modules, or beginnings of names, whose linear layers are left as they are.
    """

    def __init__(
        self, mode: bitsandbytes.Mode, dtype: torch.dtype | None = None, ignore_modules: Iterable[str] | None = None
    ) -> None:
        self._stand_for(bitsandbytes.BitsandbytesPrecision(mode, dtype, ignore_modules))


class TransformerEnginePrecision(_Replacing, transformer_engine.TransformerEnginePrecision):
    """Linear layers in 8-bit floats; see :class:`lightlib.precision.TransformerEnginePrecision`.

    Args:
        weights_dtype: The dtype of the parameters.
        recipe: Of Transformer Engine's `DelayedScaling`.
        replace_layers: Whether layers are replaced.
        fallback_compute_dtype: What autocast casts other operations to.
    """

    precision = "transformer-engine"

    def __init__(
        self,
        *,
        weights_dtype: torch.dtype,
        recipe: Mapping[str, Any] | Any = None,
        replace_layers: bool | None = None,
        fallback_compute_dtype: torch.dtype | None = None,
    ) -> None:
        inner = transformer_engine.TransformerEnginePrecision(
            weights_dtype=weights_dtype,
            recipe=recipe,
            replace_layers=replace_layers,
            fallback_compute_dtype=fallback_compute_dtype,
        )
        self._stand_for(inner)
        self.precision = inner.name


def named(name: str) -> Callable[[], Precision] | None:
    """Return the factory of the precision of a name; None if Lightning does not have it."""
    if name in _ENGINE:
        return partial(TransformerEnginePrecision, weights_dtype=_ENGINE[name])
    return precisions.named(name)


_ENGINE = {"transformer-engine": torch.bfloat16, "transformer-engine-float16": torch.float16}
