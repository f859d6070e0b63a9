# Written by scripts/typing_stubs.py --write.
from lightlib import LightningModule
from lightlib_lightning.tools.text_demos import LightningLSTM, SequenceSampler, SimpleLSTM, WikiText2
__all__ = ['LightningLSTM', 'LightningModule', 'SequenceSampler', 'SimpleLSTM', 'WikiText2']
