"""The launch of the processes of a Fabric, and their collectives."""

from __future__ import annotations

import time

import pytest
import torch

import lightlib as L
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from tests.processes import programs
from tests.processes.ranks import ranks

SCRIPT = """
import sys
import torch
import lightlib as L

fabric = L.Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
if fabric.global_rank == 1 and "fail" in sys.argv:
    raise ValueError("of rank 1")
print("rank", fabric.global_rank, fabric.all_gather(fabric.global_rank).tolist(), flush=True)
fabric.launch()
"""
FUNCTION = """
import sys
import lightlib as L

class Program(L.Fabric):
    def run(self, start):
        return start + int(self.all_reduce(self.global_rank, reduce_op="sum"))

def train(fabric, start, step=1):
    fabric.print("once", flush=True)
    if "fail" in sys.argv and fabric.global_rank == 1:
        raise ValueError("of rank 1")
    return {"total": start + step * fabric.all_reduce(fabric.global_rank, reduce_op="sum")}

if __name__ == "__main__":
    fabric = L.Fabric(accelerator="cpu", devices=2, strategy=sys.argv[1])
    print(fabric.launch(train, 10, step=2), flush=True)
    print(Program(accelerator="cpu", devices=2, strategy=sys.argv[1]).run(5))
"""


@pytest.mark.processes
class TestPrograms:
    def run(self, tmp_path, text, *words, starts=0):
        (tmp_path / "script.py").write_text(text)
        return programs.run(tmp_path / "script.py", *words, cwd=tmp_path, starts=starts)  # spawn imports it

    def test_a_script_is_run_again_for_each_process(self, tmp_path):
        done = self.run(tmp_path, SCRIPT, starts=1)
        assert done.returncode == 0, done.stderr
        assert "rank 0 [0, 1]" in done.stdout
        assert "rank 1 [0, 1]" in done.stdout

    def test_the_failure_of_a_rank_ends_all(self, tmp_path):
        done = self.run(tmp_path, SCRIPT, "fail", starts=1)
        assert done.returncode == 1
        assert "ValueError: of rank 1" in done.stderr

    @pytest.mark.parametrize("strategy", ["ddp_fork", "ddp_spawn"])
    def test_a_function_runs_in_new_processes(self, tmp_path, strategy):
        done = self.run(tmp_path, FUNCTION, strategy)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "once\n{'total': tensor(12)}\n6\n"

    def test_a_function_that_fails_in_a_new_process(self, tmp_path):
        done = self.run(tmp_path, FUNCTION, "ddp_fork", "fail")
        assert done.returncode == 1
        assert "Rank 1 failed" in done.stderr
        assert "ValueError: of rank 1" in done.stderr

    def test_without_a_launch(self, tmp_path):
        text = SCRIPT.replace("fabric.launch()\n", "", 1).replace(
            'if fabric.global_rank == 1 and "fail"', "if False and ["
        )
        text = text.replace("in sys.argv:", "]:")
        done = self.run(tmp_path, text)
        assert "fabric.all_gather was called before fabric.launch(), with 2 processes." in done.stderr
        assert "Fix: write fabric.launch() directly after fabric = Fabric(…)." in done.stderr


def exchanged(rank, folder):
    fabric = L.Fabric(accelerator="cpu", devices=2)
    fabric.launch()
    found = {
        "ranks": (fabric.global_rank, fabric.local_rank, fabric.node_rank, fabric.world_size, fabric.is_global_zero),
        "gathered": fabric.all_gather({"a": torch.tensor([rank]), "b": [rank * 0.5]}),
        "mean": fabric.all_reduce(torch.tensor([1.0, 3.0]) * rank),
        "sum": fabric.all_reduce((rank, "text"), reduce_op="sum"),
        "sent": fabric.broadcast({"from": rank}, src=1),
    }
    with fabric.rank_zero_first():
        if rank == 0:
            time.sleep(0.2)
            open(f"{folder}/made", "w").close()
        found["seen"] = __import__("os").path.exists(f"{folder}/made")
    tensor = torch.ones(2, requires_grad=True)
    (fabric.all_gather(tensor * (rank + 1), sync_grads=True) ** 2).sum().backward()
    found["gradient"] = tensor.grad
    fabric.barrier()
    return found


@pytest.mark.processes
def test_exchanges(tmp_path):
    one, other = ranks(2, exchanged, str(tmp_path))
    assert one["ranks"] == (0, 0, 0, 2, True)
    assert other["ranks"] == (1, 1, 0, 2, False)
    for found in (one, other):
        assert found["gathered"]["a"].tolist() == [[0], [1]]
        assert found["gathered"]["b"][0].tolist() == [0.0, 0.5]
        assert found["mean"].tolist() == [0.5, 1.5]
        assert found["sum"][0].item() == 1
        assert found["sum"][1] == "text"
        assert found["sent"] == {"from": 1}
        assert found["seen"]
    assert other["gradient"].tolist() == [16.0, 16.0]  # 2 ranks, each with 2·(2·1)·2


class TestOneProcess:
    @pytest.fixture
    def fabric(self):
        return L.Fabric(accelerator="cpu", devices=1)

    def test_launch_may_be_left_out(self, fabric):
        fabric.barrier()
        assert fabric.broadcast("a") == "a"
        assert fabric.all_gather(torch.ones(2)).tolist() == [1.0, 1.0]

    def test_printing_is_on_the_first_process(self, fabric, capsys):
        fabric.print("a", "b", sep="-")
        assert capsys.readouterr().out == "a-b\n"

    @pytest.mark.parametrize("data", [None, "text", [], {"a": object()}])
    def test_nothing_to_exchange(self, fabric, data):
        for call in (fabric.all_gather, fabric.all_reduce):
            with pytest.raises(ArgumentTypeError, match=r"holds no tensor and no number.\n  Expected: .*\n  Fix: "):
                call(data)

    def test_a_function_that_takes_no_fabric(self, fabric):
        def train():
            pass

        with pytest.raises(ArgumentTypeError, match=r"takes no arguments.\n  Expected: .*\n  Fix: def train\(fabric\)"):
            fabric.launch(train)
        with pytest.raises(ArgumentTypeError, match="without calling it"):
            fabric.launch(3)

    def test_a_function_gets_the_fabric_and_the_arguments(self, fabric):
        assert fabric.launch(lambda given, a, b: (given is fabric, a, b), 1, b=2) == (True, 1, 2)

    def test_run_of_a_subclass(self):
        class Program(L.Fabric):
            def run(self, a, b=0):
                return a + b, self.device

        assert Program(accelerator="cpu", devices=1).run(1, b=2) == (3, torch.device("cpu"))

    def test_spawning_needs_a_function(self):
        with pytest.raises(
            MisconfigurationException, match="got no function, and the strategy starts its processes by"
        ):
            L.Fabric(accelerator="cpu", devices=2, strategy="ddp_spawn").launch()

    def test_seeds(self):
        assert L.Fabric.seed_everything(3, verbose=False) == 3
