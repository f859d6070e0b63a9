"""Which pixel belongs to which digit: masks, intersection over union, pictures.

Run it:

    python examples/segmentation.py

Handwritten digits lie on noisy canvases; a mask labels each pixel 0, the background, or 1 to 5, the digits 0 to 4.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader
from torchmetrics import JaccardIndex

import lightlib as L
from lightlib.callbacks import ModelCheckpoint

DIGITS, CLASSES = 5, 6


def canvas(digits: torch.Tensor, labels: torch.Tensor, index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return 32x32 pixels with four to eight digits, and their mask: the same ones for the same index."""
    random = torch.Generator().manual_seed(index)
    image, mask = 0.2 * torch.rand(1, 32, 32, generator=random), torch.zeros(32, 32, dtype=torch.long)
    places = torch.randperm(9, generator=random)[: 4 + index % 5]
    for place, which in zip(places, torch.randint(len(digits), (len(places),), generator=random), strict=True):
        top, left = (10 * torch.stack([place // 3, place % 3]) + torch.randint(3, (2,), generator=random)).tolist()
        image[0, top : top + 8, left : left + 8] += digits[which]
        mask[top : top + 8, left : left + 8][digits[which] > 0.2] = labels[which] + 1
    return image, mask


class Canvases(L.DataModule):
    """Images and their masks, with other digits to validate with than to learn from."""

    def __init__(self, images: int = 800, batch_size: int = 32) -> None:
        super().__init__()
        self.images, self.batch_size = images, batch_size

    def setup(self, stage: str) -> None:
        data = load_digits(n_class=DIGITS)
        digits, labels = torch.tensor(data.images, dtype=torch.float32) / 16, torch.tensor(data.target)
        self.train_data = [canvas(digits[:700], labels[:700], index) for index in range(self.images)]
        self.val_data = [canvas(digits[700:], labels[700:], index) for index in range(200)]

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_data, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val_data, batch_size=50)


def convolutions(inputs: int, outputs: int) -> nn.Sequential:
    """Return two of them."""
    layers = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(L.Module):
    """Down, down, up, up, with shortcuts between equal sizes."""

    def __init__(self, width: int = 12, lr: float = 0.01) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.fine, self.middle = convolutions(1, width), convolutions(width, 2 * width)
        self.coarse = convolutions(2 * width, 4 * width)
        self.up_middle, self.up_fine = convolutions(6 * width, 2 * width), convolutions(3 * width, width)
        self.head = nn.Conv2d(width, CLASSES, 1)
        self.iou = JaccardIndex(task="multiclass", num_classes=CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        fine = self.fine(images)
        middle = self.middle(F.max_pool2d(fine, 2))
        coarse = self.coarse(F.max_pool2d(middle, 2))
        middle = self.up_middle(torch.cat([F.interpolate(coarse, scale_factor=2), middle], dim=1))
        return self.head(self.up_fine(torch.cat([F.interpolate(middle, scale_factor=2), fine], dim=1)))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        images, masks = batch
        loss = F.cross_entropy(self(images), masks)
        self.log("train_loss", loss, prog_bar=True, on_epoch=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        images, masks = batch
        predicted = self(images).argmax(1)
        self.iou(predicted, masks)
        self.log("val_iou", self.iou, prog_bar=True)
        return predicted

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), self.hparams.lr)
        schedule = partial(OneCycleLR, max_lr=self.hparams.lr)  # the Trainer passes total_steps
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class MaskPictures(L.Callback):
    """Writes a picture of the first images of every validation: image, mask, prediction."""

    def __init__(self, folder: str, count: int = 4) -> None:
        self.folder, self.count = Path(folder), count

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.Module, outputs: torch.Tensor, batch: list, batch_idx: int, *_: int
    ) -> None:
        if batch_idx > 0 or trainer.sanity_checking:
            return
        figure, axes = plt.subplots(3, self.count, figsize=(2 * self.count, 6), squeeze=False, layout="tight")
        rows = {"image": batch[0][:, 0], "mask": batch[1], "prediction": outputs}
        for line, (name, row) in zip(axes, rows.items(), strict=True):
            line[0].set_ylabel(name)
            for axis, picture in zip(line, row.cpu().numpy(), strict=False):
                colours = {"cmap": "gray"} if name == "image" else {"cmap": "tab10", "vmin": 0, "vmax": 9}
                axis.imshow(picture, **colours)
                axis.set(xticks=[], yticks=[])
        self.folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(self.folder / f"epoch_{trainer.current_epoch:02d}.png", dpi=80)
        plt.close(figure)


def main() -> None:
    """Train and paint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max_epochs", type=int, default=8)
    parser.add_argument("--images", type=int, default=800, help="canvases per epoch")
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--pictures", default="masks", help="the folder of the pictures")
    args = parser.parse_args()
    L.seed_everything(0)
    callbacks = [ModelCheckpoint(monitor="val_iou", mode="max"), MaskPictures(args.pictures)]
    trainer = L.Trainer(accelerator=args.accelerator, max_epochs=args.max_epochs, callbacks=callbacks)
    trainer.fit(UNet(), Canvases(args.images))
    score = trainer.checkpoint_callback.best_model_score
    print(f"best intersection over union {score:.3f}, pictures in {Path(args.pictures).resolve()}")


if __name__ == "__main__":
    main()
