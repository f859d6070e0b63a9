# Written by scripts/typing_stubs.py --write.
from lightlib import Callback, LightningModule
from lightlib.core.module.hook_defaults import DataHooks, ModelHooks
from lightlib.core.optimization.wrapper import LightningOptimizer
from lightlib.core.values.hparams import HyperparametersMixin
from lightlib.errors import MisconfigurationException
from lightlib.fabric.wrapped import FabricOptimizer as _FabricOptimizer
from lightlib.loggers import FabricLogger, Logger
from lightlib_lightning.internals.saving import load_object as _load_from_checkpoint
from lightlib_lightning.loggers import log
from lightlib_lightning.tools.small_functions import get_filesystem, is_param_in_hook_signature
from lightlib_lightning.tools.values import CheckpointHooks, GradClipAlgorithmType, convert_to_tensors, warning_cache
from lightlib_lightning.types import LRSchedulerPLType, LRSchedulerTypeUnion, MODULE_OPTIMIZERS, OptimizerLRScheduler, STEP_OUTPUT, _MAP_LOCATION_TYPE, _METRIC, _PATH
from lightning_utilities.core.apply_func import apply_to_collection
from lightning_utilities.core.imports import RequirementCache
from lightning_utilities.core.rank_zero import WarningCache, rank_zero_deprecation, rank_zero_warn
__all__ = ['Callback', 'CheckpointHooks', 'DataHooks', 'FabricLogger', 'GradClipAlgorithmType', 'HyperparametersMixin', 'LRSchedulerPLType', 'LRSchedulerTypeUnion', 'LightningModule', 'LightningOptimizer', 'Logger', 'MODULE_OPTIMIZERS', 'MisconfigurationException', 'ModelHooks', 'OptimizerLRScheduler', 'RequirementCache', 'STEP_OUTPUT', 'WarningCache', '_FabricOptimizer', '_MAP_LOCATION_TYPE', '_METRIC', '_ONNXSCRIPT_AVAILABLE', '_ONNX_AVAILABLE', '_PATH', '_TORCHMETRICS_GREATER_EQUAL_0_9_1', '_TORCH_GREATER_EQUAL_2_2', '_TORCH_GREATER_EQUAL_2_5', '_TORCH_GREATER_EQUAL_2_6', '_TORCH_TRT_AVAILABLE', '_load_from_checkpoint', 'apply_to_collection', 'convert_to_tensors', 'get_filesystem', 'is_param_in_hook_signature', 'log', 'rank_zero_deprecation', 'rank_zero_warn', 'warning_cache']
_ONNXSCRIPT_AVAILABLE: bool
_ONNX_AVAILABLE: bool
_TORCHMETRICS_GREATER_EQUAL_0_9_1: bool
_TORCH_GREATER_EQUAL_2_2: bool
_TORCH_GREATER_EQUAL_2_5: bool
_TORCH_GREATER_EQUAL_2_6: bool
_TORCH_TRT_AVAILABLE: bool
