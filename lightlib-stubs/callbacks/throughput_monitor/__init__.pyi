# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.callbacks import ThroughputMonitor
from lightlib.core.progress.states import RunningStage, TrainerFn
from lightlib.profilers import Throughput
from lightlib.profilers.flops import get_available_flops
from lightlib_lightning.absent import Absent
from lightlib_lightning.plugins.layer_precision import BitsandbytesPrecision, TransformerEnginePrecision
from lightlib_lightning.plugins.precision import DoublePrecision, Precision as FabricPrecision, HalfPrecision, MixedPrecision, Precision
from lightlib_lightning.plugins.strategy_precision import DeepSpeedPrecision, FSDPPrecision
from lightning_utilities.core.rank_zero import rank_zero_only, rank_zero_warn
__all__ = ['BitsandbytesPrecision', 'Callback', 'DeepSpeedPrecision', 'DoublePrecision', 'FSDPPrecision', 'FabricPrecision', 'HalfPrecision', 'MixedPrecision', 'Precision', 'RunningStage', 'Throughput', 'ThroughputMonitor', 'TrainerFn', 'TransformerEnginePrecision', 'XLAPrecision', 'fabric_plugin_to_compute_dtype', 'get_available_flops', 'rank_zero_only', 'rank_zero_warn']
class XLAPrecision(Absent): ...
class fabric_plugin_to_compute_dtype(Absent): ...
