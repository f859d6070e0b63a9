# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import Accelerator, CUDAAccelerator, MPSAccelerator
from lightlib.launch import SLURMEnvironment
from lightlib_lightning.absent import Absent
from lightlib_lightning.environments import ClusterEnvironment, LSFEnvironment, LightningEnvironment, MPIEnvironment, TorchElasticEnvironment
from lightlib_lightning.internals.devices import root_gpu as _determine_root_gpu_device
from lightlib_lightning.plugins.base_strategy import Strategy
from lightlib_lightning.plugins.io import CheckpointIO
from lightlib_lightning.plugins.layer_precision import BitsandbytesPrecision, TransformerEnginePrecision
from lightlib_lightning.plugins.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from lightlib_lightning.plugins.registries import ACCELERATOR_REGISTRY, STRATEGY_REGISTRY
from lightlib_lightning.plugins.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, ParallelStrategy, SingleDeviceStrategy
from lightlib_lightning.plugins.strategy_precision import DeepSpeedPrecision, FSDPPrecision
from lightlib_lightning.types import _PLUGIN_INPUT, _PRECISION_INPUT
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
__all__ = ['ACCELERATOR_REGISTRY', 'Accelerator', 'BitsandbytesPrecision', 'CUDAAccelerator', 'CheckpointIO', 'ClusterEnvironment', 'DeepSpeedPrecision', 'DeepSpeedStrategy', 'DoublePrecision', 'FSDPPrecision', 'FSDPStrategy', 'HalfPrecision', 'LSFEnvironment', 'LightningEnvironment', 'MPIEnvironment', 'MPSAccelerator', 'MixedPrecision', 'ModelParallelStrategy', 'ParallelStrategy', 'Precision', 'SLURMEnvironment', 'STRATEGY_REGISTRY', 'SingleDeviceStrategy', 'SingleDeviceXLAStrategy', 'Strategy', 'TorchElasticEnvironment', 'TransformerEnginePrecision', 'XLAAccelerator', 'XLAFSDPStrategy', 'XLAPrecision', 'XLAStrategy', '_IS_INTERACTIVE', '_PLUGIN_INPUT', '_PRECISION_INPUT', '_determine_root_gpu_device', 'rank_zero_info', 'rank_zero_warn']
class SingleDeviceXLAStrategy(Absent): ...
class XLAAccelerator(Absent): ...
class XLAFSDPStrategy(Absent): ...
class XLAPrecision(Absent): ...
class XLAStrategy(Absent): ...
_IS_INTERACTIVE: bool
