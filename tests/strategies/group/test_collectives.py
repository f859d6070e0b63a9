"""Exchange of objects and tensors between processes, in two gloo processes and in one."""

from __future__ import annotations

import pytest
import torch

from lightlib.errors import MisconfigurationException
from lightlib.strategies.group.collectives import ProcessGroup, SingleProcess
from tests.processes.ranks import ranks

CPU = torch.device("cpu")


def joined(rank):
    torch.distributed.init_process_group("gloo")
    return ProcessGroup(CPU)


def exchanges(rank):
    both = joined(rank)
    value = torch.tensor([1.0, 4.0]) * (rank + 1)
    whole = torch.tensor(3 + rank)
    operations = ("mean", "avg", "sum", "min", "max", torch.distributed.ReduceOp.SUM)
    reduced = [both.reduce(value, reduce_op=how).tolist() for how in operations]
    kept = value.tolist()
    weight = torch.tensor([2.0], requires_grad=True)
    gathered = both.all_gather(weight * (rank + 1), sync_grads=True)
    (gathered.squeeze() * torch.tensor([1.0, 10.0])).sum().backward()
    with pytest.raises(MisconfigurationException, match=r"reduce_op='median'.*\n.*'mean', 'sum', 'min' or 'max'"):
        both.reduce(value, reduce_op="median")
    both.barrier("end")
    return {
        "reduced": reduced,
        "kept": kept,
        "whole": [both.reduce(whole, reduce_op=how) for how in ("mean", "sum", "max")],
        "number": both.reduce(rank + 0.5),
        "gathered": both.all_gather(value).tolist(),
        "plain": both.all_gather(value * weight).requires_grad,
        "gradient": weight.grad.item(),
        "objects": both.all_gather_object({"rank": rank}),
        "broadcast": [both.broadcast(rank), both.broadcast(rank, 1)],
        "decisions": [both.reduce_boolean_decision(rank == 0, all=every) for every in (True, False)],
        "certain": both.reduce_boolean_decision(True),
        "size": both.size,
    }


@pytest.mark.processes
def test_two_processes():
    for rank, found in enumerate(ranks(2, exchanges)):
        assert found["reduced"] == [[1.5, 6.0], [1.5, 6.0], [3.0, 12.0], [1.0, 4.0], [2.0, 8.0], [3.0, 12.0]]
        assert found["kept"] == [1.0 + rank, 4.0 + 4 * rank]  # the input is not changed
        assert [float(one) for one in found["whole"]] == [3.5, 7.0, 4.0]
        assert [one.dtype for one in found["whole"]] == [torch.float32, torch.int64, torch.int64]
        assert found["number"] == 1.0
        assert found["gathered"] == [[1.0, 4.0], [2.0, 8.0]]
        assert found["plain"] is False
        assert found["gradient"] == 2 * (1.0, 10.0)[rank] * (rank + 1)  # both processes have the same loss
        assert found["objects"] == [{"rank": 0}, {"rank": 1}]
        assert found["broadcast"] == [0, 1]
        assert found["decisions"] == [False, True]
        assert found["certain"] is True
        assert found["size"] == 2


def test_one_process_has_nobody_to_ask():
    alone, value = SingleProcess(), torch.ones(1)
    assert alone.all_gather_object(3) == [3]
    assert (alone.broadcast("x"), alone.reduce(value), alone.all_gather(value)) == ("x", value, value)
    assert (alone.reduce_boolean_decision(False), alone.barrier(), alone.size) == (False, None, 1)
