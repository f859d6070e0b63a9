"""An elastic run in Ray Train: 2 workers, 1 after a node is lost, 2 with a new node."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import ray
import torch
from ray.cluster_utils import Cluster
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import Callback, ModelCheckpoint, RayTrainReport

EPOCHS, SAMPLES, BATCH = 3, 48, 4
HELD_AT = {2: 7, 1: 19}  # steps at which the run waits for the change, by number of workers
QUIET: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class Net(L.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def training_step(self, batch):
        _, x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Held(Callback):
    """Writes the samples of each step to a file, and waits at a step until Ray ends this worker."""

    def __init__(self, folder: str) -> None:
        self.folder, self.started = folder, time.time()

    def on_train_batch_start(self, trainer, module, batch, _):
        with Path(self.folder, f"seen-{self.started}-{trainer.world_size}-{trainer.global_rank}").open("a") as file:
            file.write(json.dumps([trainer.global_step, batch[0].tolist()]) + "\n")

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == HELD_AT.get(trainer.world_size) and not Path(self.folder, "grown").exists():
            Path(self.folder, f"held{trainer.world_size}").touch()
            while True:
                time.sleep(0.05)


def fit(*callbacks: Callback, ckpt_path: str | None = None) -> Net:
    L.seed_everything(0)
    module, x = Net(), torch.randn(SAMPLES, 4)
    loader = DataLoader(TensorDataset(torch.arange(SAMPLES), x, x.sum(1, keepdim=True)), BATCH, shuffle=True)
    trainer = L.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", global_batch_size=BATCH, callbacks=list(callbacks), **QUIET
    )
    trainer.fit(module, loader, ckpt_path=ckpt_path)
    return module


def work(options: dict[str, str]) -> None:
    report = RayTrainReport()
    saver = ModelCheckpoint(every_n_train_steps=5, save_last=True)
    fit(saver, report, Held(options["folder"]), ckpt_path=report.latest())


def attempts(folder: Path) -> list[tuple[int, int, dict[int, list[int]]]]:
    """Return the first step, the number of workers and the samples of each step, for each start of the workers."""
    starts: dict[int, list[Path]] = defaultdict(list)
    found, change = [], 0
    files = sorted(folder.glob("seen-*"), key=lambda file: float(file.name.split("-")[1]))
    before = ""
    for file in files:
        size = file.name.split("-")[2]
        change += size != before
        before = size
        starts[change].append(file)
    for group in starts.values():
        steps: dict[int, list[int]] = defaultdict(list)
        for file in group:
            for step, samples in map(json.loads, file.read_text().splitlines()):
                steps[step] += samples
        found.append((min(steps), int(group[0].name.split("-")[2]), dict(steps)))
    return found


def wait_for(path: Path, thread: threading.Thread) -> None:
    while not path.exists():
        if not thread.is_alive():
            sys.exit("the run has ended too early")
        time.sleep(0.05)


def main(folder: Path) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 10**8})
    second = cluster.add_node(num_cpus=1, object_store_memory=10**8)
    ray.init(address=cluster.address, log_to_driver=False)
    trainer = TorchTrainer(
        work,
        train_loop_config={"folder": str(folder)},
        scaling_config=ScalingConfig(num_workers=(1, 2), elastic_resize_monitor_interval_s=1),
        run_config=RunConfig(
            name="elastic", storage_path=str(folder / "store"), failure_config=FailureConfig(max_failures=3)
        ),
    )
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(trainer.fit()))
    thread.start()
    wait_for(folder / "held2", thread)
    cluster.remove_node(second, allow_graceful=False)
    wait_for(folder / "held1", thread)
    (folder / "grown").touch()
    cluster.add_node(num_cpus=1, object_store_memory=10**8)
    thread.join()
    with results[0].checkpoint.as_directory() as path:
        found = Net.load_from_checkpoint(os.path.join(path, RayTrainReport.CHECKPOINT_NAME))
    alone = fit(ModelCheckpoint(folder / "alone"))
    difference = max((a - b).abs().max().item() for a, b in zip(found.parameters(), alone.parameters(), strict=True))
    ray.shutdown()
    cluster.shutdown()
    end = {"difference": difference, "step": results[0].metrics["step"], "attempts": attempts(folder)}
    print(json.dumps(end))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
