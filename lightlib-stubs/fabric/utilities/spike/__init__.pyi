# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks.monitors.spike import FabricSpikeDetection as SpikeDetection, TrainingSpikeException
from lightlib_lightning.types import _PATH
__all__ = ['SpikeDetection', 'TrainingSpikeException', '_PATH', '_TORCHMETRICS_GREATER_EQUAL_1_0_0']
_TORCHMETRICS_GREATER_EQUAL_1_0_0: bool
