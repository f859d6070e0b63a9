"""Precision: which dtype is used where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy
from lightlib.precision.precision import Precision as Precision
from lightlib.precision.precision import named as named
from lightlib.precision.presets import DoublePrecision as DoublePrecision
from lightlib.precision.presets import HalfPrecision as HalfPrecision
from lightlib.precision.presets import MixedPrecision as MixedPrecision
from lightlib.precision.scaler import LossScaler as LossScaler

if TYPE_CHECKING:
    from lightlib.precision.bitsandbytes import BitsandbytesPrecision as BitsandbytesPrecision
    from lightlib.precision.float8 import Float8Precision as Float8Precision
    from lightlib.precision.transformer_engine import TransformerEnginePrecision as TransformerEnginePrecision

__all__ = [
    "BitsandbytesPrecision",
    "DoublePrecision",
    "Float8Precision",
    "HalfPrecision",
    "LossScaler",
    "MixedPrecision",
    "Precision",
    "TransformerEnginePrecision",
    "named",
]

_OF_PACKAGES = {
    "BitsandbytesPrecision": "bitsandbytes",
    "Float8Precision": "float8",
    "TransformerEnginePrecision": "transformer_engine",
}
_get, _ = lazy.attributes(__name__, _OF_PACKAGES)
if not TYPE_CHECKING:
    __getattr__ = _get


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
