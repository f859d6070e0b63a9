"""`lightlib fabric run` and its options."""

from __future__ import annotations

import pytest

from lightlib.command.main import main
from tests.processes import programs

SCRIPT = """
import sys
import lightlib as L
import torch

fabric = L.Fabric(accelerator="cpu")
total = fabric.all_reduce(torch.tensor(float(fabric.global_rank + 1)), reduce_op="sum")
fabric.print(fabric.world_size, float(total), fabric.strategy.precision.name, fabric.strategy.describe(), *sys.argv[1:])
"""


@pytest.mark.processes
def test_a_script_runs_with_the_options(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    options = ["--devices", "2", "--strategy=fsdp", "--precision", "bf16-mixed"]
    words = ["-m", "lightlib", "fabric", "run", *options, "script.py", "--lr", "0.1"]
    done = programs.interpreter(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 3.0 bf16-mixed fsdp (shard 2) --lr 0.1\n"


@pytest.mark.processes
def test_an_option_that_contradicts_the_script(tmp_path):
    (tmp_path / "script.py").write_text('import lightlib as L\nL.Fabric(accelerator="cpu", precision="16-mixed")\n')
    words = ["-m", "lightlib", "fabric", "run", "--precision", "bf16-mixed", "script.py"]
    done = programs.interpreter(*words, cwd=tmp_path)
    assert done.returncode == 1
    assert "Fabric(precision='16-mixed'), and `lightlib fabric run` got --precision=bf16-mixed" in done.stderr
    assert "Fix: leave precision out in the script" in done.stderr


def test_mistakes(capsys):
    assert main(["fabric", "run", "absent.py"]) == 2
    assert "there is no such file" in capsys.readouterr().err
    open("here.py", "w").close()
    assert main(["fabric", "run", "--node-rank", "2", "--num-nodes", "2", "here.py"]) == 2
    assert "--node-rank from 0 to 1" in capsys.readouterr().err
    assert main(["fabric", "run", "--devces", "2", "here.py"]) == 2
    assert "Did you mean '--devices'?" in capsys.readouterr().err
