# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks import batch_size_finder, callback, checkpoint, device_stats_monitor, early_stopping, finetuning, gradient_accumulation_scheduler, lambda_function, lr_finder, lr_monitor, model_checkpoint, model_summary, on_exception_checkpoint, prediction_writer, progress, pruning, rich_model_summary, spike, stochastic_weight_avg, throughput_monitor, timer, weight_averaging
from lightlib.callbacks.averaging.precise_bn import PreciseBN
from lightlib.callbacks.averaging.stochastic import StochasticWeightAveraging
from lightlib.callbacks.averaging.weight_averaging import EMAWeightAveraging, WeightAveraging
from lightlib.callbacks.callback import Callback
from lightlib.callbacks.checkpoint.checkpoint import Checkpoint
from lightlib.callbacks.checkpoint.gc import CheckpointGC
from lightlib.callbacks.checkpoint.model_checkpoint import ModelCheckpoint
from lightlib.callbacks.checkpoint.on_exception_checkpoint import OnExceptionCheckpoint
from lightlib.callbacks.checkpoint.publish import PublishAdapter, PublishCheckpoint
from lightlib.callbacks.checkpoint.ray_train_report import RayTrainReport
from lightlib.callbacks.checkpoint.restore_best import RestoreBest
from lightlib.callbacks.data_counter import DataCounter
from lightlib.callbacks.early_stopping import EarlyStopping
from lightlib.callbacks.finetuning.backbone import BackboneFinetuning
from lightlib.callbacks.finetuning.base import BaseFinetuning
from lightlib.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
from lightlib.callbacks.lambda_callback import LambdaCallback
from lightlib.callbacks.lr_monitor import LearningRateMonitor
from lightlib.callbacks.memory.channels_last import ChannelsLast
from lightlib.callbacks.memory.efficient_conv_bn import EfficientConvBN
from lightlib.callbacks.memory.empty_cache import EmptyCache
from lightlib.callbacks.memory.optimizer_in_backward import OptimizerInBackward
from lightlib.callbacks.memory.quantization import QuantizationAwareTraining
from lightlib.callbacks.moments import end_of_epoch, every_n_epochs, every_n_inner_iters, every_n_train_iters, is_last_train_epoch, is_last_train_iter
from lightlib.callbacks.monitors.activations import ActivationMonitor
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
from lightlib.callbacks.progress.base import ProgressBar
from lightlib.callbacks.progress.plain import PlainProgressBar
from lightlib.callbacks.progress.progress_bar import default_progress_bar
from lightlib.callbacks.progress.rich import RichProgressBar, RichProgressBarTheme
from lightlib.callbacks.progress.timed import TimedProgressBar
from lightlib.callbacks.progress.tqdm import TQDMProgressBar
from lightlib.callbacks.pruning.model_pruning import ModelPruning
from lightlib.callbacks.records.environment import EnvironmentRecord
from lightlib.callbacks.records.history import History
from lightlib.callbacks.records.metric_printer import MetricPrinter
from lightlib.callbacks.records.rank_logs import RankLogFiles
from lightlib.callbacks.records.rank_metrics import RankMetricFiles
from lightlib.callbacks.records.run_config import RunConfigRecord
from lightlib.callbacks.summary.batch_summary import BatchSummary
from lightlib.callbacks.summary.model_summary import ModelSummary, RichModelSummary
from lightlib.callbacks.sync_buffers import SyncBuffers
from lightlib.callbacks.terminate_on_nan import TerminateOnNaN
from lightlib.callbacks.timer import Timer
from lightlib.tuner.batch_size_finder import BatchSizeFinder
from lightlib.tuner.learning_rate_finder import LearningRateFinder
from lightlib.tuner.learning_rate_scaler import LearningRateScaler
from lightlib.tuner.micro_batches import MicroBatches
__all__ = ['ActivationMonitor', 'BackboneFinetuning', 'BaseFinetuning', 'BasePredictionWriter', 'BatchSizeFinder', 'BatchSummary', 'Callback', 'ChannelsLast', 'Checkpoint', 'CheckpointGC', 'DataCounter', 'DeviceStatsMonitor', 'EMAWeightAveraging', 'EarlyStopping', 'EfficientConvBN', 'EmptyCache', 'EnvironmentRecord', 'EpochMonitor', 'ExpectedMetrics', 'GradientAccumulationScheduler', 'History', 'LambdaCallback', 'LearningRateFinder', 'LearningRateMonitor', 'LearningRateScaler', 'LossScaleMonitor', 'MetricPrinter', 'MicroBatches', 'ModelCheckpoint', 'ModelPruning', 'ModelSummary', 'MoveModulesToDevice', 'NormMonitor', 'OnExceptionCheckpoint', 'OptimizerInBackward', 'PlainProgressBar', 'PreciseBN', 'PrintProgress', 'ProgressBar', 'PublishAdapter', 'PublishCheckpoint', 'QuantizationAwareTraining', 'RankLogFiles', 'RankMetricFiles', 'RayTrainReport', 'RestoreBest', 'RichModelSummary', 'RichProgressBar', 'RichProgressBarTheme', 'RunConfigRecord', 'SpikeDetection', 'StochasticWeightAveraging', 'SyncBuffers', 'TQDMProgressBar', 'TerminateOnNaN', 'ThroughputMonitor', 'TimedProgressBar', 'Timer', 'WeightAveraging', 'batch_size_finder', 'callback', 'checkpoint', 'default_progress_bar', 'device_stats_monitor', 'early_stopping', 'end_of_epoch', 'every_n_epochs', 'every_n_inner_iters', 'every_n_train_iters', 'finetuning', 'gradient_accumulation_scheduler', 'is_last_train_epoch', 'is_last_train_iter', 'lambda_function', 'lr_finder', 'lr_monitor', 'model_checkpoint', 'model_summary', 'on_exception_checkpoint', 'prediction_writer', 'progress', 'pruning', 'rich_model_summary', 'spike', 'stochastic_weight_avg', 'throughput_monitor', 'timer', 'weight_averaging']
