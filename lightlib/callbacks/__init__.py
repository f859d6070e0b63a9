"""Callbacks: built-in ones and their base class. Every name is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.callbacks.averaging.precise_bn import PreciseBN
    from lightlib.callbacks.averaging.stochastic import StochasticWeightAveraging
    from lightlib.callbacks.averaging.weight_averaging import EMAWeightAveraging, WeightAveraging
    from lightlib.callbacks.callback import Callback
    from lightlib.callbacks.checkpoint.checkpoint import Checkpoint
    from lightlib.callbacks.checkpoint.gc import CheckpointGC
    from lightlib.callbacks.checkpoint.model_checkpoint import ModelCheckpoint
    from lightlib.callbacks.checkpoint.on_exception_checkpoint import OnExceptionCheckpoint
    from lightlib.callbacks.checkpoint.publish import PublishCheckpoint
    from lightlib.callbacks.checkpoint.restore_best import RestoreBest
    from lightlib.callbacks.early_stopping import EarlyStopping
    from lightlib.callbacks.empty_cache import EmptyCache
    from lightlib.callbacks.finetuning.backbone import BackboneFinetuning
    from lightlib.callbacks.finetuning.base import BaseFinetuning
    from lightlib.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
    from lightlib.callbacks.lambda_callback import LambdaCallback
    from lightlib.callbacks.lr_monitor import LearningRateMonitor
    from lightlib.callbacks.memory.channels_last import ChannelsLast
    from lightlib.callbacks.memory.efficient_conv_bn import EfficientConvBN
    from lightlib.callbacks.moments import (
        end_of_epoch,
        every_n_epochs,
        every_n_inner_iters,
        every_n_train_iters,
        is_last_train_epoch,
        is_last_train_iter,
    )
    from lightlib.callbacks.monitors.device_stats import DeviceStatsMonitor
    from lightlib.callbacks.monitors.epochs import EpochMonitor
    from lightlib.callbacks.monitors.expected import ExpectedMetrics
    from lightlib.callbacks.monitors.loss_scale import LossScaleMonitor
    from lightlib.callbacks.monitors.norms import NormMonitor
    from lightlib.callbacks.monitors.spike import SpikeDetection
    from lightlib.callbacks.monitors.throughput_monitor import ThroughputMonitor
    from lightlib.callbacks.prediction_writer import BasePredictionWriter
    from lightlib.callbacks.presets.move_modules import MoveModulesToDevice
    from lightlib.callbacks.presets.print_progress import PrintProgress
    from lightlib.callbacks.progress.progress_bar import (
        PlainProgressBar,
        ProgressBar,
        RichProgressBar,
        RichProgressBarTheme,
        TimedProgressBar,
        TQDMProgressBar,
        default_progress_bar,
    )
    from lightlib.callbacks.pruning.model_pruning import ModelPruning
    from lightlib.callbacks.records.environment import EnvironmentRecord
    from lightlib.callbacks.records.history import History
    from lightlib.callbacks.records.metric_printer import MetricPrinter
    from lightlib.callbacks.records.rank_logs import RankLogFiles
    from lightlib.callbacks.records.rank_metrics import RankMetricFiles
    from lightlib.callbacks.records.run_config import RunConfigRecord
    from lightlib.callbacks.summary.model_summary import ModelSummary, RichModelSummary
    from lightlib.callbacks.sync_buffers import SyncBuffers
    from lightlib.callbacks.terminate_on_nan import TerminateOnNaN
    from lightlib.callbacks.timer import Timer
    from lightlib.callbacks.tuning.batch_size_finder import BatchSizeFinder
    from lightlib.callbacks.tuning.learning_rate_finder import LearningRateFinder
    from lightlib.callbacks.tuning.learning_rate_scaler import LearningRateScaler

__all__ = [
    "BackboneFinetuning",
    "BaseFinetuning",
    "BasePredictionWriter",
    "BatchSizeFinder",
    "Callback",
    "ChannelsLast",
    "Checkpoint",
    "CheckpointGC",
    "DeviceStatsMonitor",
    "EMAWeightAveraging",
    "EarlyStopping",
    "EfficientConvBN",
    "EmptyCache",
    "EnvironmentRecord",
    "EpochMonitor",
    "ExpectedMetrics",
    "GradientAccumulationScheduler",
    "History",
    "LambdaCallback",
    "LearningRateFinder",
    "LearningRateMonitor",
    "LearningRateScaler",
    "LossScaleMonitor",
    "MetricPrinter",
    "ModelCheckpoint",
    "ModelPruning",
    "ModelSummary",
    "MoveModulesToDevice",
    "NormMonitor",
    "OnExceptionCheckpoint",
    "PlainProgressBar",
    "PreciseBN",
    "PrintProgress",
    "ProgressBar",
    "PublishCheckpoint",
    "RankLogFiles",
    "RankMetricFiles",
    "RestoreBest",
    "RichModelSummary",
    "RichProgressBar",
    "RichProgressBarTheme",
    "RunConfigRecord",
    "SpikeDetection",
    "StochasticWeightAveraging",
    "SyncBuffers",
    "TQDMProgressBar",
    "TerminateOnNaN",
    "ThroughputMonitor",
    "TimedProgressBar",
    "Timer",
    "WeightAveraging",
    "default_progress_bar",
    "end_of_epoch",
    "every_n_epochs",
    "every_n_inner_iters",
    "every_n_train_iters",
    "is_last_train_epoch",
    "is_last_train_iter",
]

_get, _names = lazy.attributes(
    __name__,
    {
        "BackboneFinetuning": "finetuning.backbone",
        "BaseFinetuning": "finetuning.base",
        "BasePredictionWriter": "prediction_writer",
        "Callback": "callback",
        "ChannelsLast": "memory.channels_last",
        "Checkpoint": "checkpoint.checkpoint",
        "CheckpointGC": "checkpoint.gc",
        "DeviceStatsMonitor": "monitors.device_stats",
        "EMAWeightAveraging": "averaging.weight_averaging",
        "EarlyStopping": "early_stopping",
        "EfficientConvBN": "memory.efficient_conv_bn",
        "EmptyCache": "empty_cache",
        "EnvironmentRecord": "records.environment",
        "EpochMonitor": "monitors.epochs",
        "ExpectedMetrics": "monitors.expected",
        "GradientAccumulationScheduler": "gradient_accumulation_scheduler",
        "History": "records.history",
        "LambdaCallback": "lambda_callback",
        "BatchSizeFinder": "tuning.batch_size_finder",
        "LearningRateFinder": "tuning.learning_rate_finder",
        "LearningRateMonitor": "lr_monitor",
        "LossScaleMonitor": "monitors.loss_scale",
        "LearningRateScaler": "tuning.learning_rate_scaler",
        "MetricPrinter": "records.metric_printer",
        "ModelCheckpoint": "checkpoint.model_checkpoint",
        "ModelPruning": "pruning.model_pruning",
        "ModelSummary": "summary.model_summary",
        "MoveModulesToDevice": "presets.move_modules",
        "NormMonitor": "monitors.norms",
        "OnExceptionCheckpoint": "checkpoint.on_exception_checkpoint",
        "PlainProgressBar": "progress.progress_bar",
        "PreciseBN": "averaging.precise_bn",
        "PrintProgress": "presets.print_progress",
        "ProgressBar": "progress.progress_bar",
        "PublishCheckpoint": "checkpoint.publish",
        "RankLogFiles": "records.rank_logs",
        "RestoreBest": "checkpoint.restore_best",
        "RankMetricFiles": "records.rank_metrics",
        "RichModelSummary": "summary.model_summary",
        "RichProgressBar": "progress.progress_bar",
        "RichProgressBarTheme": "progress.progress_bar",
        "RunConfigRecord": "records.run_config",
        "SpikeDetection": "monitors.spike",
        "StochasticWeightAveraging": "averaging.stochastic",
        "SyncBuffers": "sync_buffers",
        "TQDMProgressBar": "progress.progress_bar",
        "TerminateOnNaN": "terminate_on_nan",
        "ThroughputMonitor": "monitors.throughput_monitor",
        "TimedProgressBar": "progress.progress_bar",
        "Timer": "timer",
        "WeightAveraging": "averaging.weight_averaging",
        "default_progress_bar": "progress.progress_bar",
        "end_of_epoch": "moments",
        "every_n_epochs": "moments",
        "every_n_inner_iters": "moments",
        "every_n_train_iters": "moments",
        "is_last_train_epoch": "moments",
        "is_last_train_iter": "moments",
    },
)

if not TYPE_CHECKING:  # type checkers see the names above only
    __getattr__, __dir__ = _get, _names
