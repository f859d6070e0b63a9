# Written by scripts/typing_stubs.py --write.
from lightlib.profilers.advanced import AdvancedProfiler
from lightlib.profilers.memory import MemoryProfiler
from lightlib.profilers.profiler import PassThroughProfiler, Profiler, RunFacts
from lightlib.profilers.pytorch import PyTorchProfiler
from lightlib.profilers.simple import SimpleProfiler
from lightlib.profilers.throughput import Throughput
__all__ = ['AdvancedProfiler', 'MemoryProfiler', 'PassThroughProfiler', 'Profiler', 'PyTorchProfiler', 'RunFacts', 'SimpleProfiler', 'Throughput']
