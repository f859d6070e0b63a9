# Written by scripts/typing_stubs.py --write.
from lightlib.compat.demos import BoringDataModule, BoringModel, DemoModel
from lightlib.compat.tools.text_demos import LightningLSTM, LightningTransformer, SequenceSampler, SimpleLSTM, Transformer, WikiText2
from lightlib.pytorch.demos import boring_classes, lstm, mnist_datamodule, transformer
__all__ = ['BoringDataModule', 'BoringModel', 'DemoModel', 'LightningLSTM', 'LightningTransformer', 'SequenceSampler', 'SimpleLSTM', 'Transformer', 'WikiText2', 'boring_classes', 'lstm', 'mnist_datamodule', 'transformer']
