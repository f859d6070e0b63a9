"""Lightning's MNIST demonstration: torchvision's data set, its data module, and a small network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, random_split

from lightlib.core.module.datamodule import DataModule
from lightlib.errors import MisconfigurationException

__all__ = ["MNIST", "MNISTDataModule", "Net"]


def MNIST(*args: Any, **kwargs: Any) -> Dataset[Any]:  # noqa: N802 (it stands for a class)
    """Return ``torchvision.datasets.MNIST(*args, **kwargs)``.

    Raises:
        ValueError: torchvision is not installed.
    """
    try:
        from torchvision import datasets  # optional: torchvision
    except ImportError as error:
        raise MisconfigurationException(
            "MNIST needs the package torchvision, which is not installed.",
            expected="torchvision, which downloads and reads the data set.",
            fix="pip install torchvision",
        ) from error
    dataset: Dataset[Any] = datasets.MNIST(*args, **kwargs)
    return dataset


class MNISTDataModule(DataModule):
    """MNIST, split for training, validation and test.

    Args:
        data_dir: The folder of the data set.
        val_split: The training images that are held out for validation.
        num_workers: Of each loader.
        normalize: Scale the pixels from -1 to 1, and not from 0 to 1.
        seed: Kept as an attribute; the split is always the same.
        batch_size: Images of a batch.
    """

    name = "mnist"

    def __init__(
        self,
        data_dir: str = "./data",
        val_split: int = 5000,
        num_workers: int = 16,
        normalize: bool = False,
        seed: int = 42,
        batch_size: int = 32,
    ) -> None:
        super().__init__()
        self.data_dir = data_dir
        self.val_split = val_split
        self.num_workers = num_workers
        self.normalize = normalize
        self.seed = seed
        self.batch_size = batch_size

    @property
    def num_classes(self) -> int:
        """The digits."""
        return 10

    @property
    def default_transforms(self) -> Any:
        """The transform of an image into a tensor."""
        from torchvision import transforms  # optional: torchvision

        if not self.normalize:
            return transforms.ToTensor()
        return transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean=(0.5,), std=(0.5,))])

    def _images(self, train: bool) -> Dataset[Any]:
        return MNIST(self.data_dir, train=train, download=False, transform=self.default_transforms)

    def prepare_data(self) -> None:
        """Download the data set."""
        MNIST(self.data_dir, train=True, download=True)
        MNIST(self.data_dir, train=False, download=True)

    def setup(self, stage: str) -> None:
        """Split the training images."""
        images: Any = self._images(train=True)
        sizes = [len(images) - self.val_split, self.val_split]
        generator = torch.Generator().manual_seed(42)
        self.dataset_train, self.dataset_val = random_split(images, sizes, generator=generator)

    def _loader(self, dataset: Dataset[Any], shuffle: bool = False) -> DataLoader[Any]:
        return DataLoader(
            dataset,
            batch_size=self.batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            drop_last=True,
            pin_memory=True,
        )

    def train_dataloader(self) -> Any:
        """Return the shuffled training images."""
        return self._loader(self.dataset_train, shuffle=True)

    def val_dataloader(self) -> Any:
        """Return the images that are held out."""
        return self._loader(self.dataset_val)

    def test_dataloader(self) -> Any:
        """Return the test images."""
        return self._loader(self._images(train=False))


class Net(nn.Module):
    """Two convolutions and two linear layers for images of 28 x 28 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(N, 1, 28, 28)` to the logarithms of the probabilities of ten digits."""
        x = nn.functional.relu(self.conv2(nn.functional.relu(self.conv1(x))))
        x = self.dropout1(nn.functional.max_pool2d(x, 2)).flatten(1)
        x = self.dropout2(nn.functional.relu(self.fc1(x)))
        return nn.functional.log_softmax(self.fc2(x), dim=1)
