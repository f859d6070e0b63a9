# Written by scripts/typing_stubs.py --write.
from lightlib.compat.tools.parsing import save_hyperparameters
from lightlib.core.values.hparams import AttributeDict, HyperparametersMixin
__all__ = ['AttributeDict', 'HyperparametersMixin', 'save_hyperparameters']
