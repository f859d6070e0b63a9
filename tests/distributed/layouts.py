"""One training that changes its strategy in the middle: saved under each, continued under each."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.strategies.mesh import MeshStrategy
from tests.distributed.test_state import EPOCHS, QUIET, Saved
from tests.distributed.user import BATCH, data
from tests.processes.ranks import ranks

FORMATS = ("file", "directory")
SAVED, CONTINUED = 10, 5  # steps; an epoch has 7, so the save is within one and the end within the next


@dataclass(frozen=True)
class Layout:
    """A strategy, its processes, and the number of processes over which the data are sharded."""

    size: int
    data_size: int
    strategy: str = "auto"
    sizes: dict[str, int] = field(default_factory=dict, hash=False)

    def made(self) -> Any:
        """Return the `strategy` argument of the Trainer."""
        return MeshStrategy(**self.sizes) if self.sizes else self.strategy


LAYOUTS = {
    "single": Layout(1, 1),
    "ddp 2": Layout(2, 2, "ddp"),
    "fsdp 2": Layout(2, 2, "fsdp"),
    "hsdp 4": Layout(4, 4, "hsdp"),
    "tensor 2": Layout(2, 1, "tensor"),
    "pipeline 2": Layout(2, 1, "pipeline"),
    "pipeline x shard 4": Layout(4, 2, sizes={"pipeline": 2, "shard": 2}),
}
# Read back in one test each, and no part of the campaign.
OTHERS = {"fsdp 4": Layout(4, 4, "fsdp"), "fsdp offload 2": Layout(2, 2, "fsdp_cpu_offload")}


class Watches(L.Callback):
    """Records the samples of each step; after some steps, writes checkpoints of both formats."""

    not_in_checkpoint = ("seen",)

    def __init__(self, paths: dict[str, str]) -> None:
        self.paths = paths
        self.seen: list[list[int]] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append(batch[2].tolist())

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if self.paths and trainer.global_step == SAVED:
            for kind, path in self.paths.items():
                trainer.save_checkpoint(path, format=kind)


class Numbered(Saved):
    """The module of the tests of state; the third part of its batches are the numbers of the samples."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch[:2], batch_idx)


@dataclass
class Leg:
    """The result of a leg of training: weights, the samples of each step, and the number of steps."""

    weights: dict[str, torch.Tensor]
    seen: list[list[int]]
    steps: int


def trained(layout: Layout, steps: int, before: str | None, paths: dict[str, str]) -> Leg:
    """Train up to `steps` in this process and its peers, from a checkpoint or from nothing."""
    torch.manual_seed(3)
    watch = Watches(paths)
    alone = {"devices": 1} if layout.size == 1 else {}
    trainer = L.Trainer(
        **QUIET,
        strategy=layout.made(),
        max_epochs=EPOCHS,
        max_steps=steps,
        callbacks=watch,
        gradient_clip_val=0.5,
        **alone,
    )
    samples = data()
    numbered = TensorDataset(*samples.tensors, torch.arange(len(samples)))
    loader = DataLoader(numbered, BATCH // layout.data_size, shuffle=True)
    trainer.fit(Numbered(), loader, ckpt_path=before)
    strategy = trainer.strategy
    parts = dict(strategy.collectives.all_gather_object((strategy.data_rank, watch.seen)))
    seen = [sorted(itertools.chain(*step)) for step in zip(*parts.values(), strict=True)]
    weights = {name: value.detach().clone() for name, value in strategy.module_state().items()}
    return Leg(weights, seen, trainer.global_step)


def source(rank: int, name: str, folder: str) -> None:
    """Train the first part under a layout, and save it in both formats."""
    trained({**LAYOUTS, **OTHERS}[name], SAVED, None, {kind: f"{folder}/{name}.{kind}" for kind in FORMATS})


def target(rank: int, name: str, paths: list[str]) -> list[Leg]:
    """Train the second part under a layout, from each checkpoint in turn."""
    return [trained({**LAYOUTS, **OTHERS}[name], SAVED + CONTINUED, path, {}) for path in paths]


@dataclass
class Case:
    """One pair of layouts: the error of the weights against an uninterrupted run, and matching samples."""

    saved: str
    loaded: str
    kind: str
    error: float
    samples: bool
    steps: int

    @property
    def right(self) -> bool:
        """Whether it ended as if the strategy had never changed."""
        return self.error <= 1e-6 and self.samples and self.steps == SAVED + CONTINUED


def cases(folder: Path, saved: list[str], loaded: list[str], kinds: tuple[str, ...] = FORMATS) -> list[Case]:
    """Save under each layout of `saved`, resume under each of `loaded`, and compare."""
    layouts = {**LAYOUTS, **OTHERS}
    whole = ranks(1, target, "single", [None])[0][0]
    for name in saved:
        ranks(layouts[name].size, source, name, str(folder))
    pairs = [(name, kind) for name in saved for kind in kinds]
    found = []
    for name in loaded:
        paths = [f"{folder}/{one}.{kind}" for one, kind in pairs]
        legs = ranks(layouts[name].size, target, name, paths)[0]
        for (one, kind), leg in zip(pairs, legs, strict=True):
            samples = leg.seen == whole.seen[SAVED:]
            found.append(Case(one, name, kind, _error(leg.weights, whole.weights), samples, leg.steps))
    return found


def _error(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    """Return the relative error of all weights together; infinite where they are not the same ones."""
    if list(found) != list(wanted):
        return float("inf")
    one, other = (torch.cat([value.flatten().double() for value in weights.values()]) for weights in (found, wanted))
    return ((one - other).norm() / other.norm()).item()
