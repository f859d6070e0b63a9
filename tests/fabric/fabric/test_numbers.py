"""The numbers of a loop with a Fabric: those of plain PyTorch and of the Trainer, bit for bit."""

from __future__ import annotations

import pytest
import torch

from tests.fabric.loops import by_fabric, by_torch, by_trainer
from tests.processes.ranks import ranks

PRECISIONS = ["32-true", "bf16-mixed", "16-mixed"]


def assert_same_bits(one, other, *, norms=True):
    assert one["losses"] == other["losses"]
    if norms:
        assert one["norms"] == other["norms"]
    assert list(one["weights"]) == list(other["weights"])
    for name, value in one["weights"].items():
        assert value.equal(other["weights"][name]), name


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.filterwarnings("ignore:precision='16-mixed' computes in float16 on the CPU")
class TestOneDevice:
    def test_as_plain_torch(self, precision):
        assert_same_bits(by_fabric(precision=precision), by_torch(precision))

    def test_as_the_trainer(self, precision):
        assert_same_bits(by_fabric(precision=precision), by_trainer(precision=precision), norms=False)


def all_three(rank, strategy, precision):
    ours = by_fabric(strategy, 2, precision, size=3, dropout=0.0)
    trainers = by_trainer(strategy, 2, precision, size=3, dropout=0.0)
    return ours, trainers, by_torch(precision, 0.0, strategy, size=3)


@pytest.mark.processes
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes(strategy, precision):
    for rank, (ours, trainers, plain) in enumerate(ranks(2, all_three, strategy, precision)):
        assert len(ours["losses"]) == 8
        assert_same_bits(ours, trainers, norms=False)
        assert ours["losses"] == pytest.approx(plain["losses"], rel=1e-5 if precision == "32-true" else 2e-3)
        assert ours["norms"] == pytest.approx(plain["norms"], rel=1e-5 if precision == "32-true" else 2e-2)
        if strategy == "ddp":
            assert_same_bits(ours, plain, norms=False)
        elif rank == 0:
            for name, value in plain["weights"].items():
                torch.testing.assert_close(ours["weights"][name], value, rtol=1e-3, atol=1e-3)
