# Written by scripts/typing_stubs.py --write.
from lightlib.callbacks.finetuning.backbone import BackboneFinetuning, multiplicative
from lightlib.callbacks.finetuning.base import BaseFinetuning
__all__ = ['BackboneFinetuning', 'BaseFinetuning', 'multiplicative']
