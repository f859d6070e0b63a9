# Written by scripts/typing_stubs.py --write.
from lightlib.compat.plugins.precision import Precision as FabricPrecision, Precision, Precision as PrecisionPlugin
from lightlib.compat.tools.values import CheckpointHooks, GradClipAlgorithmType, Steppable
__all__ = ['CheckpointHooks', 'FabricPrecision', 'GradClipAlgorithmType', 'Precision', 'PrecisionPlugin', 'Steppable']
