# Written by scripts/typing_stubs.py --write.
from lightlib import Callback
from lightlib.callbacks import SpikeDetection
from lightlib.callbacks.monitors.spike import FabricSpikeDetection
__all__ = ['Callback', 'FabricSpikeDetection', 'SpikeDetection']
