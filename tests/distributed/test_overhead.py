"""The cost of a batch beyond a loop around DistributedDataParallel: calls and frames."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import lightlib as L
from tests.core.run.loop.test_overhead import per_batch
from tests.processes.ranks import ranks
from tests.runs.modules import LogsLoss
from tests.runs.plain import Net, batches, calling, quiet_trainer

pytestmark = pytest.mark.processes

FRAMES_OF_TORCH = ("torch/nn/",)


def fit(module: L.Module, **arguments: Any) -> float:
    data = batches(1, size=16) * 2

    def run(n: int) -> None:
        trainer = quiet_trainer(limit_val_batches=0, strategy="ddp", devices="auto", **arguments)
        trainer.fit(module, data * n)  # every second batch is the other process's

    return per_batch(run)


def plain(**options: Any) -> float:
    data = batches(1, size=16)
    net = Net()
    ddp = DistributedDataParallel(net.net, **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def run(n: int) -> None:
        for x, y in data * n:
            optimizer.zero_grad()
            cross_entropy(ddp(x), y).backward()
            optimizer.step()

    return per_batch(run)


def counted(rank: int) -> dict[str, Any]:
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Keeps the files and functions of the stack at its training step."""
        frame, self.stack = sys._getframe(), []
        while frame is not None:
            self.stack.append((frame.f_code.co_filename, frame.f_code.co_name))
            frame = frame.f_back

    net = calling(Net, training_step)
    quiet_trainer(limit_val_batches=0, strategy="ddp", devices="auto").fit(net, batches(2, size=16))
    return {
        "plain": plain(gradient_as_bucket_view=True),
        "bare": fit(Net()),
        "with a log": fit(LogsLoss()),
        "accumulating and clipping": fit(Net(), accumulate_grad_batches=4, gradient_clip_val=1.0),
        "stack": net.stack,
    }


def test_calls_and_frames_under_ddp():
    for found in ranks(2, counted):
        assert found["bare"] - found["plain"] <= 60, found
        assert found["with a log"] - found["plain"] <= 60, found
        assert found["accumulating and clipping"] - found["plain"] <= 60, found
        names = [name for _, name in found["stack"]]
        between = found["stack"][1 : names.index("train_epoch")]
        ours = [entry for entry in between if "/torch/" not in entry[0]]
        assert len(ours) <= 8, ours
