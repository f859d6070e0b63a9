# Written by scripts/typing_stubs.py --write.
from lightlib.profilers import advanced, base, profiler, pytorch, simple, xla
from lightlib.profilers.advanced import AdvancedProfiler
from lightlib.profilers.memory import MemoryProfiler
from lightlib.profilers.profiler import PassThroughProfiler, Profiler, RunFacts
from lightlib.profilers.pytorch import PyTorchProfiler
from lightlib.profilers.simple import SimpleProfiler
from lightlib.profilers.throughput import Throughput
from lightlib_lightning.absent import Absent
__all__ = ['AdvancedProfiler', 'MemoryProfiler', 'PassThroughProfiler', 'Profiler', 'PyTorchProfiler', 'RunFacts', 'SimpleProfiler', 'Throughput', 'XLAProfiler', 'advanced', 'base', 'profiler', 'pytorch', 'simple', 'xla']
class XLAProfiler(Absent): ...
