"""Handwritten digits of 8x8 pixels, that come with scikit-learn: there is nothing to download."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split

import lightlib as L


class Digits(L.DataModule):
    """1797 grey images and which digit each of them is.

    Args:
        classes: How many digits, from 0 on. With fewer, the task is easier and the data smaller.
        batch_size: Images in a batch.
        num_workers: Processes that prepare batches. Worth it where that takes long, for instance reading files.
    """

    def __init__(self, classes: int = 10, batch_size: int = 64, num_workers: int = 0) -> None:
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage: str) -> None:
        digits = load_digits(n_class=self.hparams.classes)
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        data = TensorDataset(images, torch.tensor(digits.target))
        parts = random_split(data, [0.7, 0.1, 0.2], torch.Generator().manual_seed(0))
        self.train_data, self.val_data, self.test_data = parts

    def train_dataloader(self) -> DataLoader:
        return self.loader(self.train_data, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return self.loader(self.val_data)

    def test_dataloader(self) -> DataLoader:
        return self.loader(self.test_data)

    def predict_dataloader(self) -> DataLoader:
        return self.loader(self.test_data)

    def loader(self, data: torch.utils.data.Dataset, shuffle: bool = False) -> DataLoader:
        return DataLoader(data, self.hparams.batch_size, shuffle=shuffle, num_workers=self.hparams.num_workers)
