"""The tensor axis in several processes: one device's numbers, whatever is split, with and without data processes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lightlib as L
from lightlib.errors import MisconfigurationException
from lightlib.strategies.mesh import MeshStrategy
from lightlib.strategies.tensor import Tensor, transformer_plan
from tests.distributed.processes import processes
from tests.distributed.runs import Decoder, assert_same, seeded, trained

FULL = {
    "words": "vocab", "head": "vocab", "blocks.*.attention.[qkv]": "colwise", "blocks.*.attention.o": "rowwise",
    "blocks.*.network.gate": "colwise", "blocks.*.network.up": "colwise", "blocks.*.network.down": "rowwise",
}  # fmt: skip
CASES = {
    "found by itself": ({}, {}),
    "all layers": ({"tensor": FULL}, {}),
    "sequence": ({"tensor": FULL}, {"sequence_parallel": True}),
    "loss": ({"tensor": FULL, "loss_parallel": True}, {}),
    "sequence and loss": ({"tensor": FULL}, {"sequence_parallel": True, "loss_parallel": True}),
}


def run(rank, plan, axis, sizes, options, tied=False):
    strategy = MeshStrategy(tensor=Tensor(sizes.pop("tensor"), **axis), **sizes)
    devices = 2 * max(1, *sizes.values()) if sizes else 2
    module = seeded(Decoder, plan, tied=tied)
    result = trained(module, strategy, devices, **options)
    result["heads"] = module.blocks[0].attention.num_heads
    return result


@pytest.mark.parametrize("case", CASES)
def test_two_processes_compute_what_one_does(case):
    plan, axis = CASES[case]
    options = {"gradient_clip_val": 0.5, "accumulate_grad_batches": 2}
    alone = trained(seeded(Decoder), **options)
    both = processes(2, run, plan, axis, {"tensor": 2}, options)
    assert_same(alone, both[0])
    for mine, theirs in zip(both[0]["losses"], both[1]["losses"], strict=True):
        assert mine == theirs
    torch.testing.assert_close(torch.tensor(both[0]["losses"]), torch.tensor(alone["losses"]), rtol=1e-5, atol=1e-6)
    assert both[0]["kinds"] == {"DTensor"}
    assert both[0]["heads"] == (4 if case == "found by itself" else 2)
