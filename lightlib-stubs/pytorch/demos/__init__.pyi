# Written by scripts/typing_stubs.py --write.
from lightlib.pytorch.demos import boring_classes, lstm, mnist_datamodule, transformer
from lightlib_lightning.demos import BoringDataModule, BoringModel, DemoModel
from lightlib_lightning.tools.text_demos import LightningLSTM, LightningTransformer, SequenceSampler, SimpleLSTM, Transformer, WikiText2
__all__ = ['BoringDataModule', 'BoringModel', 'DemoModel', 'LightningLSTM', 'LightningTransformer', 'SequenceSampler', 'SimpleLSTM', 'Transformer', 'WikiText2', 'boring_classes', 'lstm', 'mnist_datamodule', 'transformer']
