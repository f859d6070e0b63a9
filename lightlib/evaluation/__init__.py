"""Evaluation: metrics, dumped predictions, test-time augmentation, and samples as images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.evaluation.metric import Metric
    from lightlib.evaluation.metric_callback import MetricCallback

__all__ = ["Metric", "MetricCallback"]

_get, _names = lazy.attributes(__name__, {"Metric": "metric", "MetricCallback": "metric_callback"})

if not TYPE_CHECKING:  # type checkers see the names above only
    __getattr__, __dir__ = _get, _names
