"""Fine-tune a pretrained network: first its head, then all of it, with an average of the weights.

Run it; the second command validates the trained weights in place of their average:

    python examples/fine_tuning.py
    python examples/fine_tuning.py --decay 0

A network learns the digits 0 to 4; 100 images of the digits 5 to 9 are then enough to learn those.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import Accuracy

import lightlib as L
from lightlib.callbacks import BackboneFinetuning, EMAWeightAveraging, ModelCheckpoint


class FiveDigits(L.DataModule):
    """The digits `first` to `first` + 4: some images to train on, and 400 to validate on."""

    def __init__(self, first: int, images: int, batch_size: int) -> None:
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage: str) -> None:
        digits = load_digits()
        images, labels = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
        chosen = (labels // 5 == self.hparams.first // 5).nonzero().flatten()
        chosen = chosen[torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0))]
        data = TensorDataset(images[chosen], labels[chosen] - self.hparams.first)
        self.train_data = torch.utils.data.Subset(data, range(400, 400 + self.hparams.images))
        self.val_data = torch.utils.data.Subset(data, range(400))

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_data, self.hparams.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val_data, batch_size=400)


class Classifier(L.Module):
    """A backbone that can be pretrained, and a head for five classes."""

    def __init__(self, width: int = 32, lr: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(2 * width * 16, 5)
        self.accuracy = Accuracy(task="multiclass", num_classes=5)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        loss = F.cross_entropy(self.head(self.backbone(images)), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        images, labels = batch
        self.accuracy(self.head(self.backbone(images)), labels)
        self.log("val_accuracy", self.accuracy, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(trained, self.hparams.lr)


def main() -> None:
    """Pretrain, then fine-tune from the checkpoint with a new head."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max_epochs", type=int, default=15, help="of fine-tuning")
    parser.add_argument("--decay", type=float, default=0.95, help="of the average; 0 is no average")
    parser.add_argument("--accelerator", default="auto")
    args = parser.parse_args()

    L.seed_everything(0)
    saved = ModelCheckpoint("pretrained")
    trainer = L.Trainer(accelerator=args.accelerator, max_epochs=3, logger=False, callbacks=saved)
    trainer.fit(Classifier(), FiveDigits(first=0, images=500, batch_size=64))

    model = Classifier.load_from_checkpoint(saved.best_model_path, lr=0.01)
    model.head.reset_parameters()
    trainer = L.Trainer(
        accelerator=args.accelerator,
        max_epochs=args.max_epochs,
        log_every_n_steps=5,
        callbacks=[
            BackboneFinetuning(unfreeze_backbone_at_epoch=args.max_epochs // 3, verbose=True),
            EMAWeightAveraging(decay=args.decay),
        ],
    )
    trainer.fit(model, FiveDigits(first=5, images=100, batch_size=10))
    print(f"accuracy on the digits 5 to 9: {trainer.callback_metrics['val_accuracy']:.4f}")


if __name__ == "__main__":
    main()
