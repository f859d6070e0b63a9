# Written by scripts/typing_stubs.py --write.
from lightlib.fabric.throughput import ThroughputMonitor
from lightlib.profilers import Throughput
from lightlib.profilers.flops import get_available_flops, measure_flops
from lightlib_lightning.types import T
from lightning_utilities.core.rank_zero import rank_zero_only, rank_zero_warn
__all__ = ['T', 'Throughput', 'ThroughputMonitor', 'get_available_flops', 'measure_flops', 'rank_zero_only', 'rank_zero_warn']
