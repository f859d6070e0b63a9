"""(h) How long a run stands still for a checkpoint of 200 MB of weights with Adam's two averages."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import Result, Row, Size, Target
from benchmarks.peers import LIGHTLIB, LIGHTNING, NOT_INSTALLED, PLAIN
from lightlib.checkpoint.background import BackgroundWriter

__all__ = ["run"]

WIDTH, LAYERS = 1024, 50  # 200 MB
_WHAT = "s that a save of {size:.0f} MB takes: {how}"
_SYNC, _ASYNC, _TORCH = "in the loop", "in the background", "torch.save, which does not wait for the disk"


@dataclass
class _Contestant:
    """One way to save. `save` is timed; `finish` comes after it."""

    how: str
    who: str
    save: Callable[[Path], None]
    finish: Callable[[], None] = field(default=lambda: None)
    times: list[float] = field(default_factory=list)

    def measure(self, path: Path) -> None:
        """Save once to a new file, then wait for the disk before the next contestant is measured."""
        began = perf_counter()
        self.save(path)
        self.times.append(perf_counter() - began)
        self.finish()
        os.sync()
        path.unlink()
        os.sync()


def run(size: Size) -> Iterator[Result]:
    """Yield the seconds of torch.save, of lightlib's two ways and of Lightning's default, all in turns."""
    with tempfile.TemporaryDirectory() as folder:
        writer = BackgroundWriter()
        trainer = _trained(import_module("lightlib"), folder)
        module, optimizer = trainer.lightning_module, trainer.optimizers[0]
        content = {"state_dict": module.state_dict(), "optimizer_states": [optimizer.state_dict()]}
        contestants = [
            _Contestant(_TORCH, PLAIN.name, partial(torch.save, content)),
            _Contestant(_SYNC, LIGHTLIB.name, trainer.save_checkpoint),
            _Contestant(_ASYNC, LIGHTLIB.name, partial(trainer.save_checkpoint, writer=writer), writer.wait),
        ]
        if LIGHTNING.installed:
            other = _trained(import_module("lightning.pytorch"), folder)
            contestants.append(_Contestant(_SYNC, LIGHTNING.name, other.save_checkpoint))
        for turn in range(size.rounds + 1):
            for contestant in contestants:
                contestant.measure(Path(folder, "checkpoint.ckpt"))
                if turn == 0:  # to warm up: buffers are made, libraries are loaded
                    contestant.times.clear()
    yield from _results(contestants, sum(p.nbytes for p in module.parameters()) * 3 / 1e6)


def _results(contestants: list[_Contestant], megabytes: float) -> Iterator[Result]:
    times = {(one.how, one.who): one.times for one in contestants}
    for one in contestants:
        yield Row(_WHAT.format(size=megabytes, how=one.how), one.who, one.times, "s")
    plain, sync = times[_TORCH, PLAIN.name], times[_SYNC, LIGHTLIB.name]
    yield Target("checkpoint in the loop: times torch.save", _ratio(sync, plain), 1.1, "times")
    theirs = times.get((_SYNC, LIGHTNING.name))
    if theirs is None:
        yield Row(_WHAT.format(size=megabytes, how=_SYNC), LIGHTNING.name, [], "s", NOT_INSTALLED)
    else:
        blocked = _ratio(times[_ASYNC, LIGHTLIB.name], theirs)
        yield Target("checkpoint in the background: share of Lightning's (1/5)", blocked, 1 / 5, "")


def _ratio(times: list[float], others: list[float]) -> float:
    """Return the median of the ratios within a turn: a disturbance in a turn slows both."""
    return median(one / other for one, other in zip(times, others, strict=True))


def _trained(framework: ModuleType, folder: str) -> Any:
    """Return a Trainer after one step, so that the optimizer has a state."""

    class Layers(framework.LightningModule):
        """Weights, and next to no work."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))

        def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
            return self.layers(batch[0]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    trainer = framework.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=1,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(Layers(), DataLoader(TensorDataset(torch.randn(1, WIDTH))))
    return trainer
