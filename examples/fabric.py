"""A training loop by hand with Fabric: any device, strategy and precision, and exact resuming.

Run it:

    python examples/fabric.py
    python examples/fabric.py --devices 2 --strategy fsdp
    python examples/fabric.py --checkpoint digits.ckpt     # stop it with Ctrl-C, run it again: it continues
    lightlib fabric run --devices 2 examples/fabric.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split

import lightlib as L


def loaders(batch_size: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return 1500 digits to train on, and 297 to validate on."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    train, val = random_split(TensorDataset(images, torch.tensor(digits.target)), [1500, 297])
    return DataLoader(train, batch_size, shuffle=True), DataLoader(val, batch_size)


def validate(fabric: L.Fabric, model: nn.Module, loader: DataLoader[Any]) -> float:
    """Return the accuracy over all processes."""
    model.eval()
    right = count = 0
    with torch.no_grad():
        for x, y in loader:
            right += int((model(x).argmax(1) == y).sum())
            count += len(y)
    model.train()
    sums = fabric.all_reduce(torch.tensor([right, count]), reduce_op="sum")
    return float(sums[0] / sums[1])


def main() -> None:
    """Train, and print the accuracy after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--checkpoint", help="save here every 20 steps, and continue from it")
    for name in ("strategy", "precision", "devices"):
        parser.add_argument(f"--{name}")
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in ("strategy", "precision", "devices")}

    fabric = L.Fabric(accelerator="cpu", **{name: value for name, value in given.items() if value is not None})
    fabric.launch()
    fabric.seed_everything(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    train, val = fabric.setup_dataloaders(*loaders(32))
    state = {"model": model, "optimizer": optimizer, "train": train, "step": 0}
    if options.checkpoint and Path(options.checkpoint).exists():
        fabric.load(options.checkpoint, state)
        fabric.print(f"continues at step {state['step']}")
    while train.epoch < options.epochs:
        for x, y in train:
            optimizer.zero_grad()
            fabric.backward(cross_entropy(model(x), y))
            optimizer.step()
            state["step"] += 1
            if options.checkpoint and state["step"] % 20 == 0:
                fabric.save(options.checkpoint, state)
        fabric.print(f"epoch {train.epoch}: {validate(fabric, model, val):.1%} right")


if __name__ == "__main__":
    main()
