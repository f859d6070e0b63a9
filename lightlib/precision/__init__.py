"""Precision: which dtype is used where."""

from __future__ import annotations

from lightlib.precision.precision import Precision as Precision
from lightlib.precision.precision import named as named
from lightlib.precision.presets import DoublePrecision as DoublePrecision
from lightlib.precision.presets import HalfPrecision as HalfPrecision
from lightlib.precision.presets import MixedPrecision as MixedPrecision
from lightlib.precision.scaler import LossScaler as LossScaler

__all__ = ["DoublePrecision", "HalfPrecision", "LossScaler", "MixedPrecision", "Precision", "named"]
