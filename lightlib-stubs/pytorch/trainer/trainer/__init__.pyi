# Written by scripts/typing_stubs.py --write.
from lightlib import Callback, LightningDataModule, Trainer, isolate_rng
from lightlib.accelerators import Accelerator
from lightlib.callbacks import Checkpoint, EarlyStopping, ProgressBar
from lightlib.core.optimization.schedules import SchedulerConfig as LRSchedulerConfig
from lightlib.core.progress.states import RunningStage, TrainerFn, TrainerState, TrainerStatus
from lightlib.errors import MisconfigurationException
from lightlib.loggers import CSVLogger, Logger, TensorBoardLogger
from lightlib.profilers import Profiler
from lightlib.report import PossibleUserWarning
from lightlib_lightning.absent import Absent
from lightlib_lightning.internals.connectors import AcceleratorConnector as _AcceleratorConnector, CallbackConnector as _CallbackConnector, CheckpointConnector as _CheckpointConnector, DataConnector as _DataConnector, LoggerConnector as _LoggerConnector, SignalConnector as _SignalConnector
from lightlib_lightning.internals.functions import defaults_from_environment as _defaults_from_env_vars, is_local as _is_local_file_protocol
from lightlib_lightning.internals.loops import EvaluationLoop as _EvaluationLoop, FitLoop as _FitLoop, PredictionLoop as _PredictionLoop, EpochLoop as _TrainingEpochLoop
from lightlib_lightning.loggers import log
from lightlib_lightning.plugins.base_strategy import Strategy
from lightlib_lightning.plugins.precision import Precision
from lightlib_lightning.plugins.strategies import ParallelStrategy
from lightlib_lightning.tools.small_functions import is_overridden
from lightlib_lightning.tools.values import GradClipAlgorithmType, convert_tensors_to_scalars
from lightlib_lightning.types import EVAL_DATALOADERS, TRAIN_DATALOADERS, _EVALUATE_OUTPUT, _LITERAL_WARN, _OUT_DICT, _PATH, _PBAR_DICT, _PLUGIN_INPUT, _PRECISION_INPUT, _PREDICT_OUTPUT
from lightning_utilities.core.imports import module_available
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
__all__ = ['Accelerator', 'CSVLogger', 'Callback', 'Checkpoint', 'EVAL_DATALOADERS', 'EarlyStopping', 'GradClipAlgorithmType', 'LRSchedulerConfig', 'LightningDataModule', 'Logger', 'MisconfigurationException', 'ParallelStrategy', 'PossibleUserWarning', 'Precision', 'Profiler', 'ProgressBar', 'RunningStage', 'Strategy', 'TRAIN_DATALOADERS', 'TensorBoardLogger', 'Trainer', 'TrainerFn', 'TrainerState', 'TrainerStatus', '_AcceleratorConnector', '_CallbackConnector', '_CheckpointConnector', '_DataConnector', '_EVALUATE_OUTPUT', '_EvaluationLoop', '_FitLoop', '_LITERAL_WARN', '_LoggerConnector', '_OUT_DICT', '_PATH', '_PBAR_DICT', '_PLUGIN_INPUT', '_PRECISION_INPUT', '_PREDICT_OUTPUT', '_PredictionLoop', '_SignalConnector', '_TrainingEpochLoop', '_defaults_from_env_vars', '_is_local_file_protocol', 'convert_tensors_to_scalars', 'download_model_from_registry', 'is_overridden', 'isolate_rng', 'log', 'module_available', 'rank_zero_info', 'rank_zero_warn']
class download_model_from_registry(Absent): ...
