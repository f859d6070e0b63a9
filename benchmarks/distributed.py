"""(g) Microseconds per step of DDP with two gloo processes, over a plain script under torchrun."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import FULL, QUICK, Result, Row, Size, Target
from benchmarks.peers import LIGHTLIB, LIGHTNING, NOT_INSTALLED, PLAIN, lightning_style
from benchmarks.task import BARE, Task, tiny

__all__ = ["run"]

PROCESSES = 2
_WHAT = f"µs per step over plain DDP, {PROCESSES} processes: everything off"


def run(size: Size) -> Iterator[Result]:
    """Yield the cost per step of lightlib and Lightning over DDP, measured in turns in one torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "times.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
        command += ["-m", "benchmarks.distributed", str(output), "quick" if size == QUICK else "full"]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
        times: dict[str, list[float]] = json.loads(output.read_text())
    plain = times.pop(PLAIN.name)
    yield Row(_WHAT.replace(" over plain", " of plain"), PLAIN.name, plain, "µs")
    medians = {}
    for peer in (LIGHTLIB, LIGHTNING):
        taken = times.get(peer.name, [])
        over = [time - (before + after) / 2 for time, before, after in zip(taken, plain, plain[1:], strict=False)]
        row = Row(_WHAT, peer.name, over, "µs", "" if over else NOT_INSTALLED)
        yield row
        if over:
            medians[peer.name] = row.median
    if LIGHTNING.name in medians:
        yield Target("DDP: share of Lightning's (1/5)", medians[LIGHTLIB.name] / medians[LIGHTNING.name], 1 / 5, "")


def _plain(task: Task) -> None:
    """Train as the scripts in torch's documentation do."""
    ddp = DistributedDataParallel(task.network(), gradient_as_bucket_view=True)  # as lightlib: a copy less
    optimizer = task.optimizer(ddp.parameters())
    for inputs, targets in task.loader():
        optimizer.zero_grad()
        task.loss(ddp(inputs), targets).backward()
        optimizer.step()


def _framework(framework: ModuleType) -> Callable[[Task], None]:
    def train(task: Task) -> None:
        framework.Trainer(
            accelerator="cpu",
            strategy="ddp",
            devices=PROCESSES,
            use_distributed_sampler=False,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
        ).fit(lightning_style.module(framework, task), task.loader())

    return train


def _measure(output: Path, size: Size) -> None:
    """Measure as one of the processes that torchrun started; the first one writes its times."""
    distributed.init_process_group("gloo")
    contestants: dict[str, Callable[[Task], None]] = {PLAIN.name: _plain}
    for peer, name in ((LIGHTLIB, "lightlib"), (LIGHTNING, "lightning.pytorch")):
        if peer.installed:
            contestants[peer.name] = _framework(import_module(name))
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(-1, size.rounds + 1):  # the first to warm up; one more plain loop at the end
        for name, train in contestants.items():
            if turn < size.rounds or name == PLAIN.name:
                taken = _microseconds(train, size)
                if turn >= 0:
                    times[name].append(taken)
    if distributed.get_rank() == 0:
        output.write_text(json.dumps(times))
    distributed.destroy_process_group()


def _microseconds(train: Callable[[Task], None], size: Size) -> float:
    with tempfile.TemporaryDirectory() as folder:
        task = tiny(size.steps // 2, size.warm_up, BARE, Path(folder))
        gc.collect()
        distributed.barrier()
        train(task)
    return 1e6 * task.clock.typical


if __name__ == "__main__":
    from benchmarks.__main__ import quiet

    quiet()
    torch.manual_seed(0)
    _measure(Path(sys.argv[1]), QUICK if sys.argv[2] == "quick" else FULL)
