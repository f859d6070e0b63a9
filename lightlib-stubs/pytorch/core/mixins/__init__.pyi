# Written by scripts/typing_stubs.py --write.
from lightlib.core.values.hparams import HyperparametersMixin
from lightlib.pytorch.core.mixins import hparams_mixin
__all__ = ['HyperparametersMixin', 'hparams_mixin']
