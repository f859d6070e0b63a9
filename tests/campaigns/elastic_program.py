"""The program of the elastic campaign: it notes the samples of each step, and resumes itself."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torchmetrics.classification import MulticlassAccuracy

import lightlib as L
from lightlib.callbacks import ModelCheckpoint
from lightlib.launch import SLURMEnvironment
from lightlib.strategies import MeshStrategy
from tests.campaigns.program import OUTCOME, TellsPhase

BATCHES = {  # samples per step, of the loader's batch, of the data; per process the last step of "weighted" has a rest
    "accumulated": (24, 2, 96), "shrunk": (12, 12, 96), "dropping": (12, 12, 100), "weighted": (24, 2, 108),
}  # fmt: skip
EPOCHS, VALIDATED = 2, 42
NOTES, REQUEUED = "notes.jsonl", "requeued"
HOLD = "hold"  # the sizes, and the step at which the smaller number waits until torchrun stops it; fewer always wait
LASTS = 4.0  # seconds of a run under torchrun, so that something can be killed within it


@dataclass(frozen=True)
class Elastic:
    """One way to train while the number of processes changes.

    Attributes:
        strategy: "ddp", "fsdp", or "hsdp" with shards of two.
        sizes: The two numbers of processes that take turns.
        batches: One of `BATCHES`.
        data: "map", "stream", or "combined": two loaders, of which the shorter one starts again within an epoch.
        workers: Of the loaders.
        launcher: "variables" of the user's, "slurm" or "torchrun".
        resume: The `ckpt_path`.
        format: Of the checkpoints.
        drawn: Whether the order is drawn by the global generator instead of one that the loader has.
        double: Whether numbers have 64 bits.
    """

    strategy: str
    sizes: tuple[int, int]
    batches: str = "accumulated"
    data: str = "map"
    workers: int = 0
    launcher: str = "variables"
    resume: str = "auto"
    format: str = "file"
    drawn: bool = False
    double: bool = False

    @property
    def name(self) -> str:
        """Name of this configuration; `named` parses it."""
        parts = [self.strategy, f"{self.sizes[0]}to{self.sizes[1]}", self.batches, self.data, f"workers{self.workers}"]
        parts += [self.launcher, self.resume, self.format]
        return "-".join([*parts, *(name for name in ("drawn", "double") if getattr(self, name))])

    @classmethod
    def named(cls, name: str) -> Elastic:
        """Return the configuration of this name."""
        strategy, sizes, batches, data, workers, launcher, resume, kind, *switches = name.split("-")
        before, after = map(int, sizes.split("to"))
        count = int(workers.removeprefix("workers"))
        named = dict.fromkeys(switches, True)
        return cls(strategy, (before, after), batches, data, count, launcher, resume, kind, **named)

    @property
    def samples(self) -> int:
        """Samples per optimizer step."""
        return BATCHES[self.batches][0]

    @property
    def steps(self) -> int:
        """Optimizer steps of the run."""
        samples, _, length = BATCHES[self.batches]
        return EPOCHS * (length // samples if self.batches == "dropping" else -(-length // samples))


class Samples(Dataset):
    """Points in two classes, each with its number."""

    def __init__(self, count: int, dtype: torch.dtype) -> None:
        self.x = torch.randn(count, 6, generator=torch.Generator().manual_seed(count)).to(dtype)
        self.y = (self.x.float() @ torch.randn(6, 3, generator=torch.Generator().manual_seed(0))).argmax(1)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.x[index], self.y[index], index


class Stream(IterableDataset):
    """The same samples, in an order that only the epoch decides, shared out among the workers."""

    def __init__(self, samples: Samples) -> None:
        self.samples, self.epoch = samples, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(len(self.samples), generator=torch.Generator().manual_seed(self.epoch)).tolist()
        worker = get_worker_info()
        for index in order if worker is None else order[worker.id :: worker.num_workers]:
            yield self.samples[index]


def dtype_of(how: Elastic) -> torch.dtype:
    return torch.float64 if how.double else torch.float32


def loaders(how: Elastic, batch_size: int) -> tuple[Any, DataLoader]:
    """Return the training data and the validation loader, with this batch size."""
    length, dtype = BATCHES[how.batches][2], dtype_of(how)
    size: dict[str, Any] = {"batch_size": batch_size, "num_workers": how.workers}
    size |= {"drop_last": how.batches == "dropping"}
    seeded = lambda seed: None if how.drawn else torch.Generator().manual_seed(seed)  # noqa: E731
    validation = DataLoader(Samples(VALIDATED, dtype), 4, num_workers=how.workers)
    if how.data == "stream":
        return DataLoader(Stream(Samples(length, dtype)), **size), validation
    data = DataLoader(Samples(length, dtype), **size, shuffle=True, generator=seeded(1))
    if how.data == "combined":
        other = DataLoader(Samples(length // 2, dtype), **size, shuffle=True, generator=seeded(2))
        return {"one": data, "other": other}, validation
    return data, validation


def model(how: Elastic) -> nn.Module:
    """Return the model with its first weights: there is no dropout in it."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 3)).to(dtype_of(how))


def optimizer_of(how: Elastic, parameters: Any) -> tuple[Any, Any]:
    """Return the optimizer, and its schedule for each step."""
    optimizer = torch.optim.AdamW(parameters, 0.01, eps=1e-3)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, how.steps)


def losses_of(forward: Any, batch: Any) -> tuple[torch.Tensor, list[int]]:
    """Return the loss of each sample, and the numbers of the samples; those of two loaders are in pairs."""
    if isinstance(batch, dict):
        (one, ids), (other, more) = losses_of(forward, batch["one"]), losses_of(forward, batch["other"])
        return one + other, [1000 * first + second for first, second in zip(ids, more, strict=True)]
    x, y, ids = batch
    return cross_entropy(forward(x), y, reduction="none"), ids.tolist()


class Noting(L.Module):
    """Notes the samples of each batch in a file that all attempts write."""

    def __init__(self, how: Elastic, where: Path) -> None:
        super().__init__()
        self.how, self.where, self.attempt = how, where, 0
        self.model, self.accuracy = model(how), MulticlassAccuracy(3)

    def note(self, **values: Any) -> None:
        line = json.dumps({"attempt": self.attempt, "step": self.global_step, "epoch": self.current_epoch, **values})
        file = os.open(self.where / NOTES, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, f"{line}\n".encode())
        os.close(file)

    def on_fit_start(self) -> None:
        self.attempt = self.trainer.strategy.broadcast(time.time_ns())  # the same number on all ranks

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        losses, ids = losses_of(self.model, batch)
        rate = self.optimizers().param_groups[0]["lr"]
        total = losses.detach().double().sum().item()
        self.note(ids=ids, loss=total, rate=rate, world=self.trainer.world_size)
        if self.how.launcher == "torchrun":
            self.wait()
        if self.how.batches == "weighted":
            return {"loss": losses.sum(), "weight": len(ids)}
        return losses.mean()

    def wait(self) -> None:
        """Take some time; with too few processes wait until torchrun stops them for the missing ones."""
        time.sleep(LASTS / self.how.steps / self.trainer.accumulate_grad_batches)
        most, least, step = map(int, (self.where / HOLD).read_text().split())
        world = self.trainer.world_size
        early = world != most and (world != least or self.global_step >= step)
        while early and not self.trainer.received_sigterm:
            time.sleep(0.01)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y, _ = batch
        logits = self.model(x)
        self.accuracy(logits, y)
        self.log("val_loss", cross_entropy(logits, y), batch_size=len(y))
        self.log("val_accuracy", self.accuracy)

    def on_validation_end(self) -> None:
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            self.note(validation={name: float(value) for name, value in self.trainer.callback_metrics.items()})

    def configure_optimizers(self) -> Any:
        optimizer, schedule = optimizer_of(self.how, self.parameters())
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def interval(how: Elastic) -> int:
    """Return the optimizer steps between two validations: half an epoch, or one."""
    per_epoch = how.steps // EPOCHS
    return per_epoch // 2 if per_epoch % 2 == 0 and how.data != "stream" else per_epoch


def become_task_of_slurm(where: Path) -> None:
    """Replace the variables of this process by those that srun sets in a job that can be requeued."""
    rank, size = os.environ.pop("RANK", "0"), os.environ.pop("WORLD_SIZE", "1")
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    os.environ |= {
        "SLURM_PROCID": rank, "SLURM_NTASKS": size, "SLURM_LOCALID": rank, "SLURM_NODEID": "0", "SLURM_NNODES": "1",
        "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "train", "SLURM_NODELIST": "localhost",
        "PATH": f"{where.parent}/{where.name}.bin:{os.environ['PATH']}",
    }  # fmt: skip


def main(how: Elastic, where: Path) -> None:
    """Train, or resume training, and save the outcome."""
    if how.launcher == "slurm":
        become_task_of_slurm(where)
    where.mkdir(parents=True, exist_ok=True)
    module = Noting(how, where)
    strategies: dict[str, Any] = {"hsdp": MeshStrategy(replicate=-1, shard=2) if how.strategy == "hsdp" else None}
    trainer = L.Trainer(
        accelerator="cpu",
        strategy=strategies.get(how.strategy, how.strategy),
        precision="64-true" if how.double else "32-true",
        max_epochs=EPOCHS,
        global_batch_size=how.samples,
        gradient_clip_val=1.0,
        val_check_interval=interval(how) * EPOCHS / how.steps,
        logger=False,
        callbacks=[
            TellsPhase(),
            ModelCheckpoint(where / "checkpoints", every_n_train_steps=2, save_last=True, format=how.format),
        ],
        plugins=SLURMEnvironment() if how.launcher == "slurm" else None,
        default_root_dir=where,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    L.seed_everything(5, verbose=False)
    train, validation = loaders(how, BATCHES[how.batches][1])
    trainer.fit(module, train, validation, ckpt_path=how.resume)
    weights = trainer.strategy.module_state()
    if trainer.is_global_zero:
        torch.save({name: torch.as_tensor(value) for name, value in weights.items()}, where / OUTCOME)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("where", type=Path)
    parser.add_argument("name", help="of the configuration")
    given = parser.parse_args()
    torch.set_num_threads(1)
    main(Elastic.named(given.name), given.where)
