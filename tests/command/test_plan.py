"""`lightlib plan`: from a configuration to a table, without memory, processes and files."""

from __future__ import annotations

import json
import shlex
import socket
import sys

import pytest
import torch

from lightlib.command.main import main

MODULE = '''
import lightlib, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(lightlib.Module):
    def __init__(self, width: int = 8):
        super().__init__()
        self.net = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4)])
        devices.append(self.net[0][0].weight.device.type)

    def training_step(self, batch, batch_idx):
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Reads(Model):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss if loss > 0 else -loss


class Table(Model):
    """Cannot be built without memory."""

    def __init__(self):
        super().__init__()
        self.scale = torch.ones(3).sum().item()


class Data(lightlib.DataModule):
    def __init__(self, width: int = 8):
        super().__init__()
        self.width = width

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.ones(32, self.width)), 16)


devices = []
'''
CONFIG = "model: {class_path: planned.Model}\ndata: {class_path: planned.Data}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "planned.py").write_text(MODULE)
    (tmp_path / "run.yaml").write_text(CONFIG)
    yield tmp_path
    sys.modules.pop("planned", None)


def run(capsys, line):
    status = main(["plan", *shlex.split(line)])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_a_table_with_a_recommendation(capsys):
    status, out, _ = run(capsys, "--config run.yaml --devices 4 --memory 1GB")
    assert status == 0
    assert "4 devices with 1.00 GB, of which 10% stay free" in out
    assert "Use ddp" in out
    assert "trainer: {strategy: ddp}" in out


def test_the_module_has_no_memory_and_nothing_is_opened_or_written(capsys, folder, monkeypatch):
    before = sorted(folder.rglob("*"))
    monkeypatch.setattr(socket.socket, "bind", lambda *_: pytest.fail("a port was opened"))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection was opened"))
    run(capsys, "--config run.yaml --devices 2 --memory 1GB --model.width 64 --data.width 64")
    assert sys.modules["planned"].devices == ["meta"]
    assert [path for path in sorted(folder.rglob("*")) if path not in before and "__pycache__" not in path.parts] == []
    assert not torch.distributed.is_initialized()


def test_a_model_that_no_device_could_hold(capsys):
    line = "--config run.yaml --devices 8 --nodes 64 --memory 80GB --model.width 60000 --data.width 60000 --batch 1"
    status, out, _ = run(capsys, f"{line} --strategies fsdp --json")
    found = json.loads(out)
    assert status == 0
    assert found["rows"][0]["amounts"]["parameters"] >= 4 * 4 * 60000**2 // 512
    assert found["recommended"]["strategy"] == "fsdp"


def test_options_of_the_configuration_and_its_own_mix(capsys):
    _, out, _ = run(capsys, "--memory=1GB --config run.yaml --json --trainer.precision bf16-true --batch 2,4")
    found = json.loads(out)
    assert [row["samples"] for row in found["rows"][:2]] == [2, 4]
    assert found["rows"][0]["amounts"]["parameters"] == 2 * 4 * (64 + 8)


def test_a_step_that_cannot_be_simulated(capsys):
    _, out, _ = run(capsys, "--config run.yaml --model planned.Reads --memory 1GB")
    line = MODULE.splitlines().index("        return loss if loss > 0 else -loss") + 1
    assert f"planned.py:{line} needs a value" in out
    assert "--measure" in out
    assert "nothing is recommended" in out
    _, out, err = run(capsys, "--config run.yaml --model planned.Reads --memory 1GB --measure")
    assert "(measured)" in out, err


def test_a_module_that_cannot_be_built_without_memory(capsys):
    with pytest.warns(UserWarning, match="Table cannot be built without memory"):
        _, out, _ = run(capsys, "--config run.yaml --model planned.Table --memory 1GB")
    assert "Use single_device" in out


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("--memory lots", "--memory got 'lots'"),
        ("--memory 0GB", "--memory got '0GB'"),
        ("--memory 80GB --devices 0", "devices"),
        ("--batch none", "--batch got 'none'"),
        ("--devices 2 --strategies fsdpp", "fsdpp"),
        ("--headroom 2", "headroom"),
    ],
)
def test_a_wrong_argument(capsys, line, match):
    status, _, err = run(capsys, f"--config run.yaml {line}")
    assert status == 2
    assert match in err
    assert "Fix:" in err


def test_without_data(capsys, folder):
    (folder / "run.yaml").write_text("model: {class_path: planned.Model}\n")
    status, _, err = run(capsys, "--config run.yaml")
    assert (status, "has no `train_dataloader`" in err) == (2, True)
