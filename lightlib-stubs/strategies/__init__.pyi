# Written by scripts/typing_stubs.py --write.
from lightlib.strategies import ddp, deepspeed, fsdp, hpu_parallel, launchers, model_parallel, parallel, single_device, single_hpu, single_tpu, single_xla, strategy, xla
from lightlib.strategies.advice import Advice, advise
from lightlib.strategies.axes.axis import Axis, AxisContext, LocalParameters
from lightlib.strategies.axes.context import Context
from lightlib.strategies.axes.expert import Expert
from lightlib.strategies.axes.parallel_plan import ParallelPlan
from lightlib.strategies.axes.replicate import Replicate
from lightlib.strategies.axes.shard import Shard
from lightlib.strategies.axes.tensor.tensor_axis import Tensor
from lightlib.strategies.axes.transforms import ActivationCheckpoint, ActivationOffload, Compile
from lightlib.strategies.deepspeed.deepspeed_strategy import DeepSpeedStrategy
from lightlib.strategies.group.collectives import Collectives
from lightlib.strategies.mesh import MeshStrategy
from lightlib.strategies.mesh_presets import DDPStrategy, FSDPStrategy, ModelParallelStrategy, PipelineStrategy, TensorParallelStrategy
from lightlib.strategies.pipeline.pipeline_axis import Pipeline
from lightlib.strategies.single import SingleDeviceStrategy
from lightlib.strategies.strategy import Strategy
from lightlib_lightning.absent import Absent
from lightlib_lightning.plugins.registries import STRATEGY_REGISTRY as StrategyRegistry, _StrategyRegistry, _register_classes
from lightlib_lightning.plugins.strategies import ParallelStrategy
__all__ = ['ActivationCheckpoint', 'ActivationOffload', 'Advice', 'Axis', 'AxisContext', 'Collectives', 'Compile', 'Context', 'DDPStrategy', 'DeepSpeedStrategy', 'Expert', 'FSDPStrategy', 'HPUParallelStrategy', 'LocalParameters', 'MeshStrategy', 'ModelParallelStrategy', 'ParallelPlan', 'ParallelStrategy', 'Pipeline', 'PipelineStrategy', 'Replicate', 'Shard', 'SingleDeviceStrategy', 'SingleDeviceXLAStrategy', 'SingleHPUStrategy', 'SingleTPUStrategy', 'Strategy', 'StrategyRegistry', 'Tensor', 'TensorParallelStrategy', 'XLAStrategy', '_StrategyRegistry', '_register_classes', 'advise', 'ddp', 'deepspeed', 'fsdp', 'hpu_parallel', 'launchers', 'model_parallel', 'parallel', 'single_device', 'single_hpu', 'single_tpu', 'single_xla', 'strategy', 'xla']
class HPUParallelStrategy(Absent): ...
class SingleDeviceXLAStrategy(Absent): ...
class SingleHPUStrategy(Absent): ...
class SingleTPUStrategy(Absent): ...
class XLAStrategy(Absent): ...
