"""Monitors under strategies: norms of the full tensors, and operations of each process in closed form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import lightlib as L
from lightlib.callbacks import NormMonitor, ThroughputMonitor
from tests.distributed.test_param_groups import grouped
from tests.distributed.user import BATCH, CLASSES, WIDTH, Net, built, data
from tests.processes.ranks import ranks
from tests.runs import quiet
from tests.runs.plain import Rows, with_methods

pytestmark = pytest.mark.processes

SIZES = {"ddp": 2, "fsdp": 2, "tensor": 1, "pipeline": 1, "zero1": 2}  # processes that read different data
ENDS, BLOCKS = 4 * WIDTH + WIDTH * CLASSES, 4 * 2 * WIDTH * 2 * WIDTH  # multiplications of a sample, forward
UNUSED = 4 * WIDTH  # the first layer's input needs no gradient


def fitted(rank: int, strategy: str) -> Any:
    module = with_methods(Net, configure_optimizers=grouped)
    module.load_state_dict(built().state_dict())
    throughput = ThroughputMonitor(lambda batch: len(batch[0]), window_size=2, count_flops=True)
    rows = Rows()
    trainer = L.Trainer(
        **quiet.QUIET | {"limit_val_batches": 0, "logger": rows}, strategy=strategy, max_epochs=1, log_every_n_steps=1,
        gradient_clip_val=0.1, callbacks=[NormMonitor(), throughput],
    )  # fmt: skip
    trainer.fit(module, DataLoader(data(), BATCH // SIZES[strategy], shuffle=False))
    norms = [{name: value for name, value in row.items() if "norm" in name} for _, row in rows.rows]
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items() if "norm" in name}
    rates = [row for _, row in rows.rows if "train/samples_per_sec" in row][-1] if rank == 0 else {}
    return [row for row in norms if row], metrics, throughput.state_dict()["counted"], rates


def plain() -> list[dict[str, float]]:
    module, found = built(), []
    optimizer = grouped(module)
    for x, y in DataLoader(data(), BATCH):
        optimizer.zero_grad()
        F.cross_entropy(module.model(x), y).backward()
        row = {}
        for name, pick in (("grad_norm", lambda p: p.grad), ("param_norm", lambda p: p.detach())):
            groups = [[pick(p) for p in group["params"]] for group in optimizer.param_groups]
            names = [str(group.get("name", f"pg{n}")) for n, group in enumerate(optimizer.param_groups, 1)]
            row[name] = torch.nn.utils.get_total_norm([t for group in groups for t in group]).item()
            pairs = zip(names, groups, strict=True)
            row |= {f"{name}/{key}": torch.nn.utils.get_total_norm(group).item() for key, group in pairs}
        found.append(row)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        optimizer.step()
    return found


@pytest.mark.parametrize("strategy", SIZES)
def test_norms_are_those_of_one_device_and_operations_those_of_a_process(strategy: str):
    expected = plain()
    (norms, metrics, counted, rates), (_, others, *_) = ranks(2, fitted, strategy)
    assert len(norms) == len(expected)
    for found, row in zip(norms, expected, strict=True):
        assert found == pytest.approx(row, rel=1e-4)
    assert metrics == others == pytest.approx(expected[-1], rel=1e-4)
    samples = BATCH // SIZES[strategy]
    if strategy != "pipeline":  # where each process has its own layers
        blocks = BLOCKS // 2 if strategy == "tensor" else BLOCKS
        assert counted == {"train": [2 * samples * (3 * (ENDS + blocks) - UNUSED), samples]}
    assert counted["train"][0] > 0
    ratio = rates["train/samples_per_sec"] / rates["train/device/samples_per_sec"]
    assert ratio == pytest.approx(SIZES[strategy])
