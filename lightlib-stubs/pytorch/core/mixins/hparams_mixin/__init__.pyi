# Written by scripts/typing_stubs.py --write.
from lightlib.core.values.hparams import AttributeDict, HyperparametersMixin
from lightlib_lightning.tools.parsing import save_hyperparameters
__all__ = ['AttributeDict', 'HyperparametersMixin', 'save_hyperparameters']
