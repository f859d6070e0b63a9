"""Lightning's commands as functions."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lightlib.errors import MisconfigurationException
from lightlib_lightning.tools import commands


@pytest.mark.processes
def test_fabrics_main_runs_a_script_with_the_options(capfd):
    Path("train.py").write_text(
        "import sys\nimport lightlib\n"
        "fabric = lightlib.Fabric()\nprint(fabric.strategy.precision.name, fabric.device, sys.argv[1:])\n"
    )
    args = argparse.Namespace(script="train.py", accelerator="cpu", devices="1", precision="64-true", strategy=None)
    commands.run_fabric(args, ["--lr", "0.1"])
    assert "64-true cpu ['--lr', '0.1']" in capfd.readouterr().out
    args.script = "none.py"
    with pytest.raises(subprocess.CalledProcessError):
        commands.run_fabric(args)


class TestUpgrade:
    def run(self, monkeypatch, *arguments):
        monkeypatch.setattr(sys, "argv", ["upgrade", *arguments])
        commands.upgrade_checkpoints()

    def test_files_get_the_layout_of_2_6_and_a_copy(self, monkeypatch):
        version = "pytorch-lightning_version"
        old = {"epoch": 1, "global_step": 4, version: "1.5.0", "state_dict": {"w": torch.ones(1)}}
        Path("runs/a").mkdir(parents=True)
        for path in ("runs/a/x.ckpt", "runs/y.ckpt", "runs/z.other"):
            torch.save(old, path)
        self.run(monkeypatch, "runs")
        for path in ("runs/a/x", "runs/y"):
            new = torch.load(f"{path}.ckpt", weights_only=False)
            assert "loops" in new
            assert torch.equal(new["state_dict"]["w"], torch.ones(1))
            assert torch.load(f"{path}.bak", weights_only=False).keys() == old.keys()
        assert torch.load("runs/z.other", weights_only=False).keys() == old.keys()
        self.run(monkeypatch, "runs/y.ckpt")
        assert torch.load("runs/y.bak", weights_only=False).keys() == old.keys()  # the first copy stays

    def test_a_wrong_path(self, monkeypatch):
        with pytest.raises(MisconfigurationException, match=r"There is no checkpoint 'no'.*'\.pt'"):
            self.run(monkeypatch, "no", "-e", "pt")
