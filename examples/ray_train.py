"""A run in Ray Train that loses a worker and is started again ends with the same weights.

Needs Ray (`pip install 'ray[train]'`). Run it; it trains twice, and prints two equal digests:

    python examples/ray_train.py
    python examples/ray_train.py --workers 1 2     # between one and two, as many as the cluster has room for
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import tempfile
from typing import Any

import torch
from ray.train import CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import Callback, ModelCheckpoint, RayTrainReport


class Classifier(L.Module):
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


class Kill(Callback):
    """Kills the last worker, as an out-of-memory killer would, after `step` optimizer steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        if trainer.global_step == self.step and trainer.global_rank == trainer.world_size - 1:
            os.kill(os.getpid(), signal.SIGKILL)


def train(options: dict[str, Any]) -> None:
    """Train in one worker, from the newest checkpoint of Ray Train if there is one."""
    report = RayTrainReport()
    checkpoint = report.latest()
    L.seed_everything(0)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    trainer = L.Trainer(  # the number of devices and the rank are Ray's
        max_epochs=3,
        accelerator="cpu",
        global_batch_size=64,  # with any number of workers
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            ModelCheckpoint(every_n_train_steps=20, save_last=True),
            report,
            Kill(options["kill_at"] if checkpoint is None else -1),
        ],
    )
    trainer.fit(Classifier(), DataLoader(data, 64, shuffle=True), ckpt_path=checkpoint)


def run(name: str, workers: int | tuple[int, int], folder: str, kill_at: int = -1) -> Result:
    """Train with workers of Ray Train, which may fail once."""
    trainer = TorchTrainer(
        train,
        train_loop_config={"kill_at": kill_at},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            name=name,
            storage_path=folder,
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )
    return trainer.fit()


def digest(result: Result) -> str:
    """Return a digest of the weights in the last checkpoint of a run."""
    with result.checkpoint.as_directory() as folder:
        module = Classifier.load_from_checkpoint(os.path.join(folder, RayTrainReport.CHECKPOINT_NAME))
    return hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in module.parameters())).hexdigest()[:16]


def main() -> None:
    """Train twice, and compare the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2], help="a number, or the least and the most")
    parser.add_argument("--kill_at", type=int, default=50, help="kill a worker after this many optimizer steps")
    args = parser.parse_args()
    workers = args.workers[0] if len(args.workers) == 1 else tuple(args.workers)
    with tempfile.TemporaryDirectory() as folder:
        for name, kill_at in (("uninterrupted", -1), ("killed", args.kill_at)):
            result = run(name, workers, folder, kill_at)
            print(f"{name}: weights after {result.metrics['step']} steps: {digest(result)}")


if __name__ == "__main__":
    main()
