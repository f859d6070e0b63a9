"""A run that is killed, and started again by the same command, ends with the same weights.

Run it, from anywhere; the second command kills itself, the third resumes, and the digests are equal:

    python examples/killed.py
    python examples/killed.py --folder killed --kill_at 50
    python examples/killed.py --folder killed
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import Callback, ModelCheckpoint


class Classifier(L.Module):
    """A small network with dropout: a resume needs the random numbers as well."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


class Kill(Callback):
    """Kills this process, as an out-of-memory killer would, after `step` optimizer steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Train, from the newest checkpoint in the folder if there is one, and print a digest of the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="uninterrupted")
    parser.add_argument("--kill_at", type=int, default=-1, help="kill the run after this many optimizer steps")
    args = parser.parse_args()

    L.seed_everything(0)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    module = Classifier()
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        default_root_dir=args.folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(every_n_train_steps=20), Kill(args.kill_at)],
    )
    trainer.fit(module, DataLoader(data, 64, shuffle=True), ckpt_path="auto")

    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in module.parameters())
    print(f"weights after {trainer.global_step} steps: {hashlib.sha256(weights).hexdigest()[:16]}")


if __name__ == "__main__":
    main()
