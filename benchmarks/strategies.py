"""(h) A step of each strategy with two gloo processes, over one by hand with torch's functions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

import lightlib as L
from benchmarks.gpt import BATCH_SIZE, BY_HAND, MICROBATCHES, SPLIT, Step, gpt, loss, optimizer, text
from benchmarks.measure import FULL, QUICK, Result, Row, Size, Target
from benchmarks.peers import LIGHTLIB, PLAIN

__all__ = ["LIMIT", "Turns", "run"]

LIMIT = 1.03
LIMITED = ("fsdp", "ddp")  # in tensor and pipeline, lightlib does more than the step by hand: docs/decisions/0059
PROCESSES = 2
WARM_UP = 10


def run(size: Size) -> Iterator[Result]:
    """Yield for each strategy the step by hand, and how many times as long lightlib's takes, in one torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "times.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
        command += ["-m", "benchmarks.strategies", str(output), "quick" if size == QUICK else "full"]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
        measured: dict[str, list[tuple[float, float]]] = json.loads(output.read_text())
    for strategy, rounds in measured.items():
        seconds, ratios = zip(*rounds, strict=True)
        yield Row(f"ms of a step by hand: GPT, {strategy}", PLAIN.name, [1e3 * each for each in seconds], "ms")
        row = Row(f"a step over one by hand: GPT, {strategy}", LIGHTLIB.name, ratios, "times")
        yield row
        if strategy in LIMITED:
            yield Target(f"{strategy}: times a step by hand", row.median, LIMIT, "times")


class Turns:
    """A collate function that makes a step by hand before each step of lightlib's, and times both.

    A DataLoader calls it once per batch, so that between two calls lightlib makes a step, with all that belongs to it.
    Other programs slow down neighbours in time equally.
    """

    def __init__(self, strategy: str) -> None:
        self._strategy = strategy
        self._step: Step | None = None
        self._left: float | None = None
        self._by_hand: list[float] = []
        self._lightlib: list[float] = []

    def __call__(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        began = perf_counter()
        if self._left is not None:
            self._lightlib.append(began - self._left)
        if self._step is None:  # lightlib has started the process group
            self._step, began = BY_HAND[self._strategy](), perf_counter()
        self._step(*batch)
        self._left = perf_counter()
        self._by_hand.append(self._left - began)
        return batch

    def seconds_and_ratio(self) -> tuple[float, float]:
        """Return the median step by hand, and the median of lightlib's steps over those by hand around them."""
        around = zip(self._by_hand, self._by_hand[1:], self._lightlib, strict=False)
        ratios = [2 * own / (before + after) for before, after, own in [*around][WARM_UP:]]
        return median(self._by_hand[WARM_UP:]), median(ratios)


class _Module(L.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = gpt()

    def parallel_plan(self) -> L.ParallelPlan:
        return L.ParallelPlan(tensor={f"network.*.{name}": kind for name, kind in SPLIT.items()})

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        return loss(self.network(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer(self)


def in_turns(strategy: str, steps: int) -> tuple[float, float]:
    """Train in this process and its peer; return the times of `Turns`."""
    made: Any = strategy
    if strategy == "pipeline":
        made = L.strategies.PipelineStrategy(schedule="1f1b", microbatches=MICROBATCHES)
    turns = Turns(strategy)
    loader = DataLoader(text(WARM_UP + steps + 1), BATCH_SIZE, collate_fn=turns)
    trainer = L.Trainer(
        accelerator="cpu",
        strategy=made,
        devices=PROCESSES,
        use_distributed_sampler=False,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(_Module(), loader)
    return turns.seconds_and_ratio()


def _measure(output: Path, size: Size) -> None:
    """Measure as one of the processes that torchrun started; the first one writes its times."""
    measured: dict[str, list[tuple[float, float]]] = {strategy: [] for strategy in BY_HAND}
    for _ in range(size.fewer_rounds):
        for strategy, rounds in measured.items():
            rounds.append(in_turns(strategy, size.large_steps))
    if torch.distributed.get_rank() == 0:
        output.write_text(json.dumps(measured))


if __name__ == "__main__":
    from benchmarks.__main__ import quiet

    quiet()
    _measure(Path(sys.argv[1]), QUICK if sys.argv[2] == "quick" else FULL)
