"""Draws docs/images/tensorboard.png: a page of TensorBoard with images that a run has logged.

python scripts/picture_of_tensorboard.py     needs chromium, tensorboard and pillow; not run by the tests
"""

from __future__ import annotations

import io
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.loggers import TensorBoardLogger
from lightlib.loggers.media import Image, draw_bounding_boxes, draw_feature_map, draw_segmentation_masks, make_grid

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "tensorboard.png"
PIXELS, WIDTH, HEIGHT = 64, 1100, 460
MOST_BYTES = 150_000


class Finder(L.Module):
    """Finds where the ink of a digit is, and shows it after each epoch."""

    def __init__(self, shown: torch.Tensor) -> None:
        super().__init__()
        self.shown = shown
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 5, padding=2), nn.ReLU()
        )
        self.mask = nn.Conv2d(16, 1, 1)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Compare with the pixels that have ink."""
        images, targets = batch
        loss = nn.functional.binary_cross_entropy_with_logits(self.mask(self.features(images)), targets)
        self.log("loss", loss)
        return loss

    def on_train_epoch_end(self) -> None:
        """Log images, masks, boxes and features."""
        with torch.no_grad():
            features = self.features(self.shown)
            masks = self.mask(features).sigmoid() > 0.5
        plain = [image.expand(3, -1, -1) for image in self.shown]
        found = [
            draw_bounding_boxes(draw_segmentation_masks(image, mask[0], alpha=0.6), _box(mask[0]), width=2)
            for image, mask in zip(plain, masks, strict=True)
        ]
        heat = [draw_feature_map(one, image) for one, image in zip(features, plain, strict=True)]
        for name, images in (("examples/found", found), ("examples/features", heat)):
            self.trainer.log_media(name, Image(make_grid(torch.stack(images), columns=4)))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def _box(mask: torch.Tensor) -> torch.Tensor:
    rows, columns = mask.nonzero(as_tuple=True)
    if not len(rows):
        return torch.zeros(0, 4)
    return torch.tensor([[columns.min(), rows.min(), columns.max(), rows.max()]])


def train(folder: str) -> None:
    """Train on scikit-learn's digits, enlarged, and log images by lightlib."""
    from sklearn.datasets import load_digits  # optional: scikit-learn

    digits = torch.tensor(load_digits().images[:256], dtype=torch.float32)[:, None] / 16
    images = nn.functional.interpolate(digits, PIXELS, mode="bilinear")
    L.seed_everything(1)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=TensorBoardLogger(f"{folder}/logs", name="digits"),
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Finder(images[:8]), DataLoader(TensorDataset(images, (images > 0.4).float()), 32, shuffle=True))


def screenshot(folder: str) -> bytes:
    """Return a PNG of the page with images of TensorBoard, which serves the logs in `folder` on loopback meanwhile."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", "logs", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen([*command, "--load_fast=false"], cwd=folder)
    try:
        _wait_for(f"{address}/data/plugin/images/tags", "examples/found")
        picture = Path(folder) / "page.png"
        browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        size = [f"--window-size={WIDTH},{HEIGHT}", f"--user-data-dir={folder}/browser", "--virtual-time-budget=20000"]
        subprocess.run([*browser, *size, f"--screenshot={picture}", f"{address}/#images"], check=True)
        return picture.read_bytes()
    finally:
        server.terminate()
        server.wait()


def _wait_for(url: str, words: str) -> None:
    for _ in range(120):
        try:
            with urllib.request.urlopen(url) as answer:  # noqa: S310  of the server above
                if words in answer.read().decode():
                    return
        except OSError:
            pass
        time.sleep(1)
    raise SystemExit(f"{url} has not answered with {words!r} for two minutes.")


def main() -> int:
    """Train, take the picture, and put it in its place."""
    import PIL.Image  # optional: pillow

    with tempfile.TemporaryDirectory() as folder:
        train(folder)
        page = PIL.Image.open(io.BytesIO(screenshot(folder))).convert("RGB")
    page.quantize(128).save(PICTURE, optimize=True)
    size = PICTURE.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"{PICTURE} has {size:,} bytes, more than {MOST_BYTES:,}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
