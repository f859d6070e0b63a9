"""Evaluation: metrics, dumped predictions, test-time augmentation, and samples as images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.evaluation.augmentation import TestTimeAugmentation
    from lightlib.evaluation.dump import PredictionDump
    from lightlib.evaluation.metric import Metric
    from lightlib.evaluation.metric_callback import MetricCallback
    from lightlib.evaluation.offline import evaluate_offline
    from lightlib.evaluation.visualizer import SampleVisualizer

__all__ = [
    "Metric",
    "MetricCallback",
    "PredictionDump",
    "SampleVisualizer",
    "TestTimeAugmentation",
    "evaluate_offline",
]

_get, _names = lazy.attributes(
    __name__,
    {
        "Metric": "metric",
        "MetricCallback": "metric_callback",
        "PredictionDump": "dump",
        "SampleVisualizer": "visualizer",
        "TestTimeAugmentation": "augmentation",
        "evaluate_offline": "offline",
    },
)

if not TYPE_CHECKING:  # type checkers see the names above only
    __getattr__, __dir__ = _get, _names
