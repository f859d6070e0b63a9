"""Exports in a program of several processes: one of them writes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import lightlib as L
from lightlib import report
from lightlib.errors import MisconfigurationException
from tests.runs.plain import QUIET


class Net(L.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.example_input_array = torch.ones(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_zero_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    monkeypatch.setattr(report.rank_zero_only, "rank", rank)
    program = Net().to_torch_export(tmp_path / "net.pt2")
    assert program.module()(torch.ones(4, 3)).shape == (4, 2)
    assert (tmp_path / "net.pt2").exists() == (rank == 0)
    if rank:
        assert Net().to_onnx(tmp_path / "net.onnx") is None
        assert not (tmp_path / "net.onnx").exists()


@pytest.mark.parametrize("name", ["to_onnx", "to_torch_export"])
def test_a_sharded_module_is_refused(tmp_path: Path, name: str) -> None:
    net = Net()
    net._trainer = SimpleNamespace(strategy=SimpleNamespace(runs_alone=False))  # type: ignore[assignment]
    with pytest.raises(
        MisconfigurationException,
        match=rf"Net\.{name} was called while the module is sharded over processes(.|\n)*Fix: trainer\.save_checkpoint",
    ):
        getattr(net, name)(tmp_path / "net")


def test_a_missing_package_of_onnx_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(
        MisconfigurationException, match=r"Net\.to_onnx needs the package onnxscript(.|\n)*Fix: pip install onnx onnx"
    ) as caught:
        Net().to_onnx(tmp_path / "net.onnx")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_module_that_the_users_own_code_misses_is_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(*args: object, **options: object) -> None:
        raise ModuleNotFoundError("No module named 'mine'", name="mine")

    monkeypatch.setattr(torch.onnx, "export", export)
    with pytest.raises(ModuleNotFoundError, match="mine"):
        Net().to_onnx(tmp_path / "net.onnx")


class Nested(Net):
    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.inside = torch.nn.Sequential(Net(), torch.nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inside(x) * 2

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self(batch).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("attached", ["never", "before a run", "after a run"])
def test_a_module_can_be_scripted(attached: str) -> None:
    net = Nested()
    trainer = L.Trainer(**QUIET, max_epochs=1)
    if attached == "before a run":
        net.trainer = trainer
    if attached == "after a run":
        trainer.fit(net, [torch.ones(4, 3)])
    parts, had = dict(net.named_modules()), net._trainer
    scripted = torch.jit.script(net)
    assert scripted(torch.ones(4, 3)).equal(net(torch.ones(4, 3)))
    assert scripted.layer.weight.data_ptr() == net.layer.weight.data_ptr()
    assert all(part is parts[name] for name, part in net.named_modules())
    assert net._trainer is had
    assert net.inside[0]._trainer is None
