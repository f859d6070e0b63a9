# Written by scripts/typing_stubs.py --write.
from lightlib.core.mixins import hparams_mixin
from lightlib.core.values.hparams import HyperparametersMixin
__all__ = ['HyperparametersMixin', 'hparams_mixin']
