# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator, CUDAAccelerator, MPSAccelerator
from lightlib.compat.absent import Absent
from lightlib.compat.environments import ClusterEnvironment, LSFEnvironment, LightningEnvironment, MPIEnvironment, TorchElasticEnvironment
from lightlib.compat.internals.connectors import AcceleratorConnector as _AcceleratorConnector
from lightlib.compat.internals.devices import root_gpu as _determine_root_gpu_device
from lightlib.compat.loggers import log
from lightlib.compat.plugins.io import CheckpointIO
from lightlib.compat.plugins.layer_precision import BitsandbytesPrecision, TransformerEnginePrecision
from lightlib.compat.plugins.layer_sync import LayerSync, TorchSyncBatchNorm
from lightlib.compat.plugins.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from lightlib.compat.plugins.registries import ACCELERATOR_REGISTRY as AcceleratorRegistry, STRATEGY_REGISTRY as StrategyRegistry
from lightlib.compat.plugins.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, ParallelStrategy, SingleDeviceStrategy
from lightlib.compat.plugins.strategy import Strategy
from lightlib.compat.plugins.strategy_precision import DeepSpeedPrecision, FSDPPrecision
from lightlib.errors import MisconfigurationException
from lightlib.launch import SLURMEnvironment
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
__all__ = ['Accelerator', 'AcceleratorRegistry', 'BitsandbytesPrecision', 'CUDAAccelerator', 'CheckpointIO', 'ClusterEnvironment', 'DDPStrategy', 'DeepSpeedPrecision', 'DeepSpeedStrategy', 'DoublePrecision', 'FSDPPrecision', 'FSDPStrategy', 'HalfPrecision', 'LSFEnvironment', 'LayerSync', 'LightningEnvironment', 'MPIEnvironment', 'MPSAccelerator', 'MisconfigurationException', 'MixedPrecision', 'ModelParallelStrategy', 'ParallelStrategy', 'Precision', 'SLURMEnvironment', 'SingleDeviceStrategy', 'SingleDeviceXLAStrategy', 'Strategy', 'StrategyRegistry', 'TorchElasticEnvironment', 'TorchSyncBatchNorm', 'TransformerEnginePrecision', 'XLAAccelerator', 'XLAPrecision', 'XLAStrategy', '_AcceleratorConnector', '_IS_INTERACTIVE', '_determine_root_gpu_device', 'log', 'rank_zero_info', 'rank_zero_warn']
class SingleDeviceXLAStrategy(Absent): ...
class XLAAccelerator(Absent): ...
class XLAPrecision(Absent): ...
class XLAStrategy(Absent): ...
_IS_INTERACTIVE: bool
