# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks.pruning.model_pruning import ModelPruning
__all__ = ['ModelPruning']
