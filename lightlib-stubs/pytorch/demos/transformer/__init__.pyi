# Written by scripts/typing_stubs.py --write.
from lightlib import LightningModule
from lightlib_lightning.tools.text_demos import Dictionary, LightningTransformer, PositionalEncoding, Transformer, WikiText2, tokenize
from lightning_utilities.core.imports import RequirementCache
__all__ = ['Dictionary', 'LightningModule', 'LightningTransformer', 'PositionalEncoding', 'RequirementCache', 'Transformer', 'WikiText2', '_REQUESTS_AVAILABLE', 'tokenize']
_REQUESTS_AVAILABLE: bool
