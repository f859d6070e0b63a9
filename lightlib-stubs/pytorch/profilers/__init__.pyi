# Written by scripts/typing_stubs.py --write.
from lightlib.profilers import AdvancedProfiler, PassThroughProfiler, Profiler, PyTorchProfiler, SimpleProfiler
from lightlib.pytorch.profilers import advanced, base, profiler, pytorch, simple, xla
from lightlib_lightning.absent import Absent
__all__ = ['AdvancedProfiler', 'PassThroughProfiler', 'Profiler', 'PyTorchProfiler', 'SimpleProfiler', 'XLAProfiler', 'advanced', 'base', 'profiler', 'pytorch', 'simple', 'xla']
class XLAProfiler(Absent): ...
