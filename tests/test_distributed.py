"""lightlib.distributed: each call on two processes, and on one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightlib import distributed as verbs
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from tests.processes.ranks import ranks

PROCESSES = pytest.mark.processes


def refused(call: Any) -> str:
    with pytest.raises(MisconfigurationException) as caught:
        call()
    return str(caught.value).splitlines()[0]


def two(rank: int) -> dict[str, Any]:
    early = refused(verbs.barrier)
    torch.distributed.init_process_group("gloo")
    rows = torch.arange(2.0 + rank) + 10 * rank
    seen: list[str] = []
    with verbs.rank_zero_first():
        seen.append("in")
    mine = {"x": rows, "n": rank + 1}
    return {
        "where": (verbs.rank(), verbs.world_size(), verbs.local_rank(), verbs.is_rank_zero()),
        "broadcast": verbs.broadcast({"rank": rank, "rows": rows}, src=1),
        "objects": verbs.all_gather_object(f"rank {rank}"),
        "mean": verbs.all_reduce(mine["n"]),
        "sum": verbs.all_reduce({"n": rank + 1, "more": [torch.ones(2) * rank]}, "sum"),
        "max": verbs.all_reduce(torch.tensor(rank), "max"),
        "min": verbs.all_reduce((rank, 0.5), "min"),
        "gathered": verbs.all_gather(mine),
        "none here": verbs.all_gather(torch.ones(rank, 3)),
        "gather": verbs.gather(rows, dst=1),
        "results": verbs.collect_results([f"sample {rank + 2 * i}" for i in range(4)], 7),
        "too few": refused(lambda: verbs.collect_results([rank], 3)),
        "seed": verbs.shared_seed(),
        "other shapes": refused(lambda: verbs.all_reduce(torch.ones(1 + rank))),
        "other rows": refused(lambda: verbs.all_gather({"a": torch.ones(1, 1 + rank)})),
        "other parts": refused(lambda: verbs.all_gather([1.0] * (1 + rank))),
        "no such rank": refused(lambda: verbs.broadcast(1, src=2)),
        "first": seen,
        "early": early,
    }


@PROCESSES
def test_each_call_on_two_processes():
    outcomes = ranks(2, two)
    assert outcomes[0]["seed"] == outcomes[1]["seed"]
    for rank, found in enumerate(outcomes):
        assert found["where"] == (rank, 2, rank, rank == 0)
        assert found["broadcast"]["rank"] == 1
        assert found["broadcast"]["rows"].tolist() == [10.0, 11.0, 12.0]
        assert found["objects"] == ["rank 0", "rank 1"]
        assert found["mean"] == 1.5
        assert (found["sum"]["n"], found["sum"]["more"][0].tolist()) == (3, [1.0, 1.0])
        assert (found["max"], found["min"]) == (1, (0, 0.5))
        assert found["gathered"]["x"].tolist() == [0.0, 1.0, 10.0, 11.0, 12.0]
        assert found["gathered"]["n"].tolist() == [1, 2]
        assert found["none here"].shape == (1, 3)
        assert (found["gather"] is None) == (rank == 0)
        assert found["results"] == [f"sample {i}" for i in range(7)]
        assert found["too few"] == "collect_results got 2 results of 2 processes for 3 samples."
        assert "on rank 0 and" in found["other shapes"]
        assert "all_gather got" in found["other rows"]
        assert "all_gather got" in found["other parts"]
        assert found["no such rank"] == "src is 2, with 2 processes."
        assert found["early"].endswith("but there is no process group yet.")


def in_order(rank: int, folder: str) -> bool:
    from pathlib import Path

    torch.distributed.init_process_group("gloo")
    mark = Path(folder, "downloaded")
    with verbs.local_zero_first():
        first = not mark.exists()
        mark.touch()
    return first


@PROCESSES
def test_the_first_process_of_a_machine_runs_a_block_before_the_others(tmp_path):
    assert ranks(2, in_order, str(tmp_path)) == [True, False]


def failing(rank: int) -> str:
    torch.distributed.init_process_group("gloo")
    try:
        with verbs.rank_zero_first():
            return "ran" if int("x" * (rank == 0) or 1) else ""
    except ValueError:
        return "failed"


@PROCESSES
def test_a_failure_of_the_first_process_does_not_leave_the_others_waiting():
    assert ranks(2, failing) == ["failed", "ran"]


def test_each_call_on_one_process(monkeypatch):
    for name in ("LOCAL_RANK", "SLURM_LOCALID", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert (verbs.rank(), verbs.world_size(), verbs.local_rank(), verbs.is_rank_zero()) == (0, 1, 0, True)
    verbs.barrier()
    value = {"x": torch.ones(2)}
    assert verbs.broadcast(value) is value
    assert verbs.all_gather_object(value) == [value]
    assert verbs.all_reduce(2) == 2.0
    assert verbs.all_reduce(torch.tensor([1, 2]), "sum").tolist() == [1, 2]
    assert verbs.all_gather({"n": 1, "x": torch.ones(2, 1)})["n"].tolist() == [1]
    assert verbs.gather(torch.zeros(2)).tolist() == [0.0, 0.0]
    assert verbs.collect_results([1, 2, 3], 2) == [1, 2]
    with verbs.local_zero_first(), verbs.rank_zero_first():
        pass


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: verbs.all_reduce(1.0, "product"), "op='product'"),
        (lambda: verbs.broadcast(1, src=1), "src is 1, with 1 process."),
        (lambda: verbs.gather(1.0, dst=-1), "dst is -1"),
        (lambda: verbs.collect_results([], 1), "0 results of 1 processes for 1 samples"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(MisconfigurationException, match=message):
        call()


def test_other_objects_name_the_call_for_them():
    with pytest.raises(ArgumentTypeError, match=r"all_reduce got 'text'[\s\S]*all_gather_object"):
        verbs.all_reduce({"a": "text"})
    with pytest.raises(ArgumentTypeError, match="all_gather got None"):
        verbs.all_gather(None)


def test_several_processes_without_a_local_rank_are_refused(monkeypatch):
    for name in ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(verbs, "world_size", lambda: 2)
    with pytest.raises(MisconfigurationException, match="set LOCAL_RANK"):
        verbs.local_rank()
