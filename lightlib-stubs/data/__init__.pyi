# Written by scripts/typing_stubs.py --write.
from lightlib.data.datasets.mixture import MixtureDataset, MixtureStream
from lightlib.data.datasets.packing import pack
from lightlib.data.datasets.rows import document_mask, padding_free_collate
__all__ = ['MixtureDataset', 'MixtureStream', 'document_mask', 'pack', 'padding_free_collate']
