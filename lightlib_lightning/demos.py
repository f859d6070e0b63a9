"""Lightning's small demonstration models and data sets of random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from lightlib.core.module.datamodule import DataModule
from lightlib.core.module.module import Module

__all__ = [
    "BoringDataModule",
    "BoringModel",
    "DemoModel",
    "ManualOptimBoringModel",
    "RandomDataset",
    "RandomDictDataset",
    "RandomIterableDataset",
    "RandomIterableDatasetWithLen",
]

FEATURES = 32
SAMPLES = 64


class RandomDataset(Dataset[Tensor]):
    """Samples of standard normal numbers, drawn when it is made.

    Args:
        size: The numbers of a sample.
        length: The samples.
    """

    def __init__(self, size: int, length: int) -> None:
        self.len = length
        self.data = torch.randn(length, size)

    def __getitem__(self, index: int) -> Tensor:
        """Return a sample of shape `(size,)`."""
        return self.data[index]

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.len


class RandomDictDataset(Dataset[dict[str, Tensor]]):
    """As :class:`RandomDataset`; a sample is a dict of the numbers ``a`` and ``b``, which is one more."""

    def __init__(self, size: int, length: int) -> None:
        self.len = length
        self.data = torch.randn(length, size)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return a sample of two tensors of shape `(size,)`."""
        return {"a": self.data[index], "b": self.data[index] + 1}

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.len


class RandomIterableDataset(IterableDataset[Tensor]):
    """Draws `count` samples of `size` standard normal numbers in each pass; it has no length."""

    def __init__(self, size: int, count: int) -> None:
        self.count = count
        self.size = size

    def __iter__(self) -> Iterator[Tensor]:
        """Draw the samples of a pass."""
        return (torch.randn(self.size) for _ in range(self.count))


class RandomIterableDatasetWithLen(RandomIterableDataset):
    """As :class:`RandomIterableDataset`, with a length."""

    def __len__(self) -> int:
        """Return the number of samples of a pass."""
        return self.count


class BoringModel(Module):
    """A linear layer trained towards ones on random data; its steps log nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(N, 32)` to `(N, 2)`."""
        return self.layer(x)  # type: ignore[no-any-return]

    def loss(self, preds: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the mean squared distance to `labels`, or to ones."""
        return nn.functional.mse_loss(preds, torch.ones_like(preds) if labels is None else labels)

    def step(self, batch: Any) -> Tensor:
        """Return the loss of a batch of shape `(N, 32)`."""
        return self.loss(self(batch))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss in a dict."""
        return {"loss": self.step(batch)}

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss as ``x``."""
        return {"x": self.step(batch)}

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss as ``y``."""
        return {"y": self.step(batch)}

    def configure_optimizers(self) -> Any:
        """Return SGD of learning rate 0.1 and a StepLR that divides it by ten after each epoch."""
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)]

    def train_dataloader(self) -> Any:
        """Return 64 batches of one sample."""
        return DataLoader(RandomDataset(FEATURES, SAMPLES))

    def val_dataloader(self) -> Any:
        """Return 64 batches of one sample."""
        return DataLoader(RandomDataset(FEATURES, SAMPLES))

    def test_dataloader(self) -> Any:
        """Return 64 batches of one sample."""
        return DataLoader(RandomDataset(FEATURES, SAMPLES))

    def predict_dataloader(self) -> Any:
        """Return 64 batches of one sample."""
        return DataLoader(RandomDataset(FEATURES, SAMPLES))


class ManualOptimBoringModel(BoringModel):
    """As :class:`BoringModel`, with manual optimization."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Step by hand and return the loss."""
        optimizer: Any = self.optimizers()
        loss = self.step(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss


class DemoModel(Module):
    """A linear classifier; its loss is the sum of its outputs.

    Args:
        out_dim: The outputs.
        learning_rate: Of Adam.
    """

    def __init__(self, out_dim: int = 10, learning_rate: float = 0.02) -> None:
        super().__init__()
        self.l1 = nn.Linear(FEATURES, out_dim)
        self.learning_rate = learning_rate

    def forward(self, x: Tensor) -> Tensor:
        """Map `(N, …)` of 32 numbers a sample to `(N, out_dim)`."""
        return torch.relu(self.l1(x.view(x.size(0), -1)))

    def training_step(self, batch: Any, batch_nb: int) -> Any:
        """Return the loss in a dict."""
        return {"loss": self(batch).sum()}

    def configure_optimizers(self) -> Any:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


class BoringDataModule(DataModule):
    """Four random sets of 64 samples: for training, validation, test and prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.random_full = RandomDataset(FEATURES, SAMPLES * 4)

    def _part(self, index: int) -> Subset[Tensor]:
        return Subset(self.random_full, range(SAMPLES * index, SAMPLES * (index + 1)))

    def setup(self, stage: str) -> None:
        """Take the parts of the data that a stage needs."""
        if stage == "fit":
            self.random_train = self._part(0)
        if stage in ("fit", "validate"):
            self.random_val = self._part(1)
        if stage == "test":
            self.random_test = self._part(2)
        if stage == "predict":
            self.random_predict = self._part(3)

    def train_dataloader(self) -> Any:
        """Return 64 batches of one sample."""
        return DataLoader(self.random_train)

    def val_dataloader(self) -> Any:
        """Return 64 batches of one sample."""
        return DataLoader(self.random_val)

    def test_dataloader(self) -> Any:
        """Return 64 batches of one sample."""
        return DataLoader(self.random_test)

    def predict_dataloader(self) -> Any:
        """Return 64 batches of one sample."""
        return DataLoader(self.random_predict)
