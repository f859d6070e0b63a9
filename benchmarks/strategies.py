"""(h) A step of each strategy on two and four gloo processes, over one by hand with torch's functions."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

import lightlib as L
from benchmarks.gpt import (
    BATCH_SIZE,
    BY_HAND,
    MICROBATCHES,
    SPLIT,
    WIDE,
    WIDTH,
    WIDTHS,
    Step,
    gpt,
    loss,
    one_device,
    optimizer,
    text,
)
from benchmarks.measure import FULL, QUICK, Result, Row, Size, Target
from benchmarks.peers import LIGHTLIB, PLAIN
from benchmarks.task import CPU, Place
from lightlib.simulation.memory import MemoryCounter
from lightlib.torch_private import shapes_of_dtensors_unseen

__all__ = ["LIMIT", "GPTModule", "Turns", "run"]

LIMIT = 1.03
LIMITED = ("fsdp", "ddp", "tensor", WIDE)  # a narrow pipeline has a cost of its own: docs/decisions/0059
MEMORY_LIMIT = 1.02
PROCESSES = (2, 4)
WARM_UP = 10
_SETTLED = 3  # steps after which an optimizer has its state, and torch its buckets


def run(size: Size) -> Iterator[Result]:
    """Yield for each number of processes and each strategy the time and the memory of a step over one by hand."""
    for processes in PROCESSES:
        yield from _results(size, processes)


def _results(size: Size, processes: int) -> Iterator[Result]:
    """Measure all strategies in one torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "times.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command += ["-m", "benchmarks.strategies", str(output), "quick" if size == QUICK else "full"]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
        measured: dict[str, dict[str, Any]] = json.loads(output.read_text())
    for strategy, found in measured.items():
        what = f"GPT, {strategy}, {processes} processes"
        seconds, ratios = zip(*found["times"], strict=True)
        yield Row(f"ms of a step by hand: {what}", PLAIN.name, [1e3 * each for each in seconds], "ms")
        row = Row(f"a step over one by hand: {what}", LIGHTLIB.name, ratios, "times")
        yield row
        if strategy in LIMITED:
            yield Target(f"{strategy}, {processes} processes: times a step by hand", row.median, LIMIT, "times")
        most = max(own / by_hand for own, by_hand in found["memory"])
        yield Target(f"{strategy}, {processes} processes: times the memory by hand", most, MEMORY_LIMIT, "times")


class Turns:
    """A collate function that makes a step by hand before each step of lightlib's, and times both.

    A DataLoader calls it once per batch, so that between two calls lightlib makes a step, with all that belongs to it.
    Other programs slow down neighbours in time equally.
    """

    def __init__(self, strategy: str, place: Place = CPU) -> None:
        self._strategy, self._place = strategy, place
        self._step: Step | None = None
        self._left: float | None = None
        self._by_hand: list[float] = []
        self._lightlib: list[float] = []

    def __call__(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        self._place.wait()
        began = perf_counter()
        if self._left is not None:
            self._lightlib.append(began - self._left)
        if self._step is None:  # lightlib has started the process group
            made = BY_HAND.get(self._strategy, one_device)
            self._step, began = made(self._place.device), perf_counter()
        self._step(*batch)
        self._place.wait()
        self._left = perf_counter()
        self._by_hand.append(self._left - began)
        return batch

    def seconds_and_ratio(self) -> tuple[float, float]:
        """Return the median step by hand, and the median of lightlib's steps over those by hand around them."""
        around = zip(self._by_hand, self._by_hand[1:], self._lightlib, strict=False)
        ratios = [2 * own / (before + after) for before, after, own in [*around][WARM_UP:]]
        return median(self._by_hand[WARM_UP:]), median(ratios)


class GPTModule(L.Module):
    """The GPT as a user writes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.network = gpt(width)

    def parallel_plan(self) -> L.ParallelPlan:
        return L.ParallelPlan(tensor={f"network.*.{name}": kind for name, kind in SPLIT.items()})

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        return loss(self.network(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer(self)


def in_turns(strategy: str, steps: int, place: Place = CPU) -> tuple[float, float]:
    """Train in this process and its peers; return the times of `Turns`."""
    turns = Turns(strategy, place)
    _fit(strategy, DataLoader(text(WARM_UP + steps + 1), BATCH_SIZE, collate_fn=turns), place)
    return turns.seconds_and_ratio()


def memory(strategy: str, place: Place = CPU) -> tuple[int, int]:
    """Return the largest bytes of all tensors of this process within a step: of lightlib, and by hand."""

    def by_hand(loader: Any) -> None:
        step = BY_HAND.get(strategy, one_device)(place.device)
        for batch in loader:
            step(*batch)

    return _peak(partial(_fit, strategy, place=place)), _peak(by_hand)


def _peak(train: Callable[[Any], None]) -> int:
    counter, batches = MemoryCounter(), 0

    def begin(batch: Any) -> Any:
        nonlocal batches
        batches += 1
        if batches == _SETTLED:
            counter.restart(sys.maxsize, lambda: None)
        return batch

    loader = DataLoader(text(_SETTLED + 2), BATCH_SIZE, collate_fn=begin)
    gc.collect()
    with shapes_of_dtensors_unseen(), counter:
        train(loader)
    return counter.highest


def _fit(strategy: str, loader: Any, place: Place = CPU) -> None:
    made: Any = strategy
    if strategy.startswith("pipeline"):
        made = L.strategies.PipelineStrategy(schedule="1f1b", microbatches=MICROBATCHES)
    trainer = L.Trainer(
        accelerator=place.accelerator,
        strategy=made,
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        use_distributed_sampler=False,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(GPTModule(WIDTHS.get(strategy, WIDTH)), loader)


def _measure(output: Path, size: Size) -> None:
    """Measure as one of the processes that torchrun started; the first one writes its times, and the memory of all."""
    times: dict[str, list[tuple[float, float]]] = {strategy: [] for strategy in BY_HAND}
    for _ in range(size.fewer_rounds):
        for strategy, rounds in times.items():
            rounds.append(in_turns(strategy, size.large_steps))
    held = {strategy: memory(strategy) for strategy in BY_HAND}
    every: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, held)
    if torch.distributed.get_rank() == 0:
        measured = {
            strategy: {"times": rounds, "memory": [one[strategy] for one in every]}
            for strategy, rounds in times.items()
        }
        output.write_text(json.dumps(measured))


if __name__ == "__main__":
    from benchmarks.__main__ import quiet

    quiet()
    _measure(Path(sys.argv[1]), QUICK if sys.argv[2] == "quick" else FULL)
