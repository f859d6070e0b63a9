"""Callbacks: what may happen besides the training. Every name is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.callbacks.callback import Callback
    from lightlib.callbacks.checkpoint import Checkpoint
    from lightlib.callbacks.checkpoint_gc import CheckpointGC
    from lightlib.callbacks.early_stopping import EarlyStopping
    from lightlib.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
    from lightlib.callbacks.lambda_callback import LambdaCallback
    from lightlib.callbacks.lr_monitor import LearningRateMonitor
    from lightlib.callbacks.model_checkpoint import ModelCheckpoint
    from lightlib.callbacks.model_summary import ModelSummary, RichModelSummary
    from lightlib.callbacks.on_exception_checkpoint import OnExceptionCheckpoint
    from lightlib.callbacks.progress_bar import (
        PlainProgressBar,
        ProgressBar,
        RichProgressBar,
        RichProgressBarTheme,
        TimedProgressBar,
        TQDMProgressBar,
        default_progress_bar,
    )
    from lightlib.callbacks.terminate_on_nan import TerminateOnNaN
    from lightlib.callbacks.timer import Timer

__all__ = [
    "Callback",
    "Checkpoint",
    "CheckpointGC",
    "EarlyStopping",
    "GradientAccumulationScheduler",
    "LambdaCallback",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "PlainProgressBar",
    "ProgressBar",
    "RichModelSummary",
    "RichProgressBar",
    "RichProgressBarTheme",
    "TQDMProgressBar",
    "TerminateOnNaN",
    "TimedProgressBar",
    "Timer",
    "default_progress_bar",
]

_get, _names = lazy.attributes(
    __name__,
    {
        "Callback": "callback",
        "Checkpoint": "checkpoint",
        "CheckpointGC": "checkpoint_gc",
        "EarlyStopping": "early_stopping",
        "GradientAccumulationScheduler": "gradient_accumulation_scheduler",
        "LambdaCallback": "lambda_callback",
        "LearningRateMonitor": "lr_monitor",
        "ModelCheckpoint": "model_checkpoint",
        "ModelSummary": "model_summary",
        "OnExceptionCheckpoint": "on_exception_checkpoint",
        "PlainProgressBar": "progress_bar",
        "ProgressBar": "progress_bar",
        "RichModelSummary": "model_summary",
        "RichProgressBar": "progress_bar",
        "RichProgressBarTheme": "progress_bar",
        "TQDMProgressBar": "progress_bar",
        "TerminateOnNaN": "terminate_on_nan",
        "TimedProgressBar": "progress_bar",
        "Timer": "timer",
        "default_progress_bar": "progress_bar",
    },
)

if not TYPE_CHECKING:  # for type checkers there are the names above and no others
    __getattr__, __dir__ = _get, _names
