# Written by scripts/typing_stubs.py --write.
from lightlib.accelerators import CUDAAccelerator, MPSAccelerator
from lightlib.errors import MisconfigurationException
from lightlib.loggers import DummyLogger
from lightlib.profilers import AdvancedProfiler, PassThroughProfiler, Profiler, PyTorchProfiler, SimpleProfiler
from lightlib.report import PossibleUserWarning
from lightlib_lightning.absent import Absent
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
__all__ = ['AdvancedProfiler', 'CUDAAccelerator', 'DummyLogger', 'MPSAccelerator', 'MisconfigurationException', 'PassThroughProfiler', 'PossibleUserWarning', 'Profiler', 'PyTorchProfiler', 'SimpleProfiler', 'XLAAccelerator', 'XLAProfiler', 'rank_zero_info', 'rank_zero_warn']
class XLAAccelerator(Absent): ...
class XLAProfiler(Absent): ...
