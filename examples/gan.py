"""Two networks play against each other: manual optimization, and a callback that paints.

Run it:

    python examples/gan.py
    python examples/gan.py --max_epochs 5 --picture few_epochs.png

The generator paints handwritten digits of 8x8 pixels; the discriminator learns to distinguish them from real ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader

import lightlib as L


class Digits(L.DataModule):
    """1797 real digits, without labels."""

    def __init__(self, batch_size: int = 64) -> None:
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader:
        digits = torch.tensor(load_digits().images, dtype=torch.float32) / 16
        return DataLoader(digits, self.batch_size, shuffle=True, drop_last=True)


class GAN(L.Module):
    """A generator and a discriminator, each with an optimizer of its own."""

    def __init__(self, noise: int = 32, width: int = 256, lr: float = 1e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = nn.Sequential(
            nn.Linear(noise, width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Linear(width, 64), nn.Sigmoid(), nn.Unflatten(1, (8, 8)),
        )  # fmt: skip
        self.discriminator = nn.Sequential(
            nn.Flatten(), nn.Linear(64, width), nn.LeakyReLU(0.2), nn.Dropout(0.3),
            nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(width, 1),
        )  # fmt: skip

    def forward(self, count: int) -> torch.Tensor:
        return self.generator(torch.randn(count, self.hparams.noise, device=self.device))

    def training_step(self, real: torch.Tensor) -> None:
        generator, discriminator = self.optimizers()

        with self.toggled_optimizer(generator):  # no gradients for the discriminator
            loss = self.loss(self(len(real)), taken_for=1.0)
            self.log("generator_loss", loss, prog_bar=True)
            generator.zero_grad()
            self.manual_backward(loss)
            generator.step()

        with self.toggled_optimizer(discriminator):
            loss = (self.loss(real, taken_for=0.9) + self.loss(self(len(real)).detach(), taken_for=0.0)) / 2
            self.log("discriminator_loss", loss, prog_bar=True)
            discriminator.zero_grad()
            self.manual_backward(loss)
            discriminator.step()

    def loss(self, images: torch.Tensor, taken_for: float) -> torch.Tensor:
        scores = self.discriminator(images)
        return binary_cross_entropy_with_logits(scores, torch.full_like(scores, taken_for))

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        parts = (self.generator, self.discriminator)
        return [torch.optim.Adam(part.parameters(), self.hparams.lr, betas=(0.5, 0.999)) for part in parts]


class PaintedDigits(L.Callback):
    """Writes a grid of generated images when training ends."""

    def __init__(self, path: str, rows: int = 8) -> None:
        self.path, self.rows = Path(path), rows

    @torch.no_grad()
    def on_train_end(self, trainer: L.Trainer, pl_module: L.Module) -> None:
        pl_module.eval()
        images = pl_module(self.rows**2).cpu()
        pl_module.train()
        framed = nn.functional.pad(images, (1, 1, 1, 1)).view(self.rows, self.rows, 10, 10)
        picture = framed.transpose(1, 2).flatten(2).flatten(0, 1).repeat_interleave(4, 0).repeat_interleave(4, 1)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        plt.imsave(self.path, picture.numpy(), cmap="gray", vmin=0, vmax=1)
        pl_module.print(f"{self.rows**2} generated digits: {self.path.resolve()}")


def main() -> None:
    """Play, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max_epochs", type=int, default=60)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--picture", default="digits.png", help="where the grid of generated digits is written")
    args = parser.parse_args()

    L.seed_everything(0)
    trainer = L.Trainer(
        accelerator=args.accelerator,
        precision=args.precision,
        max_epochs=args.max_epochs,
        log_every_n_steps=20,
        callbacks=PaintedDigits(args.picture),
    )
    trainer.fit(GAN(), Digits())


if __name__ == "__main__":
    main()
