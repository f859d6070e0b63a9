# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator, CUDAAccelerator, MPSAccelerator
from lightlib.errors import MisconfigurationException
from lightlib.launch import SLURMEnvironment
from lightlib_lightning.absent import Absent
from lightlib_lightning.environments import ClusterEnvironment, LSFEnvironment, LightningEnvironment, MPIEnvironment, TorchElasticEnvironment
from lightlib_lightning.internals.connectors import AcceleratorConnector as _AcceleratorConnector
from lightlib_lightning.internals.devices import root_gpu as _determine_root_gpu_device
from lightlib_lightning.loggers import log
from lightlib_lightning.plugins.base_strategy import Strategy
from lightlib_lightning.plugins.io import CheckpointIO
from lightlib_lightning.plugins.layer_precision import BitsandbytesPrecision, TransformerEnginePrecision
from lightlib_lightning.plugins.layer_sync import LayerSync, TorchSyncBatchNorm
from lightlib_lightning.plugins.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from lightlib_lightning.plugins.registries import ACCELERATOR_REGISTRY as AcceleratorRegistry, STRATEGY_REGISTRY as StrategyRegistry
from lightlib_lightning.plugins.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, ParallelStrategy, SingleDeviceStrategy
from lightlib_lightning.plugins.strategy_precision import DeepSpeedPrecision, FSDPPrecision
from lightlib_lightning.types import _LITERAL_WARN, _PLUGIN_INPUT, _PRECISION_INPUT
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
__all__ = ['Accelerator', 'AcceleratorRegistry', 'BitsandbytesPrecision', 'CUDAAccelerator', 'CheckpointIO', 'ClusterEnvironment', 'DDPStrategy', 'DeepSpeedPrecision', 'DeepSpeedStrategy', 'DoublePrecision', 'FSDPPrecision', 'FSDPStrategy', 'HalfPrecision', 'LSFEnvironment', 'LayerSync', 'LightningEnvironment', 'MPIEnvironment', 'MPSAccelerator', 'MisconfigurationException', 'MixedPrecision', 'ModelParallelStrategy', 'ParallelStrategy', 'Precision', 'SLURMEnvironment', 'SingleDeviceStrategy', 'SingleDeviceXLAStrategy', 'Strategy', 'StrategyRegistry', 'TorchElasticEnvironment', 'TorchSyncBatchNorm', 'TransformerEnginePrecision', 'XLAAccelerator', 'XLAPrecision', 'XLAStrategy', '_AcceleratorConnector', '_IS_INTERACTIVE', '_LITERAL_WARN', '_PLUGIN_INPUT', '_PRECISION_INPUT', '_determine_root_gpu_device', 'log', 'rank_zero_info', 'rank_zero_warn']
class SingleDeviceXLAStrategy(Absent): ...
class XLAAccelerator(Absent): ...
class XLAPrecision(Absent): ...
class XLAStrategy(Absent): ...
_IS_INTERACTIVE: bool
