# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.plugins.precision import Precision as FabricPrecision, Precision, Precision as PrecisionPlugin
from lightlib_lightning.tools.values import CheckpointHooks, GradClipAlgorithmType, Steppable
__all__ = ['CheckpointHooks', 'FabricPrecision', 'GradClipAlgorithmType', 'Precision', 'PrecisionPlugin', 'Steppable']
