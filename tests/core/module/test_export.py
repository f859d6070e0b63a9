"""Exports in a program of several processes: one of them writes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import tqdm

import lightlib as L
from lightlib import report
from lightlib.errors import MisconfigurationException
from tests.processes import programs
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
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # a bar of torch 2.6 would leave a thread
    program = Net().to_torch_export(tmp_path / "net.pt2")
    assert program.module()(torch.ones(4, 3)).shape == (4, 2)
    assert (tmp_path / "net.pt2").exists() == (rank == 0)
    if rank:
        assert Net().to_onnx(tmp_path / "net.onnx") is None
        assert not (tmp_path / "net.onnx").exists()


@pytest.mark.parametrize("name", ["to_onnx", "to_torch_export", "to_torchscript"])
def test_a_sharded_module_is_refused(tmp_path: Path, name: str) -> None:
    net = Net()
    net._trainer = SimpleNamespace(strategy=SimpleNamespace(runs_alone=False))
    with pytest.raises(
        MisconfigurationException,
        match=rf"Net\.{name} was called while the module is sharded over processes(.|\n)*Fix: trainer\.save_checkpoint",
    ):
        getattr(net, name)(tmp_path / "net")


@pytest.mark.processes
def test_a_missing_package_of_onnx_is_named_with_what_to_install() -> None:
    lines = [
        "import sys",
        "from tests.core.module.test_export import Net",
        "sys.modules['onnxscript'] = None",  # in a process in which torch has not imported it yet
        "sys.modules['onnx'] = None",  # torch 2.6 asks for this one
        "Net().to_onnx('net.onnx')",
    ]
    error = programs.run("-c", "\n".join(lines)).stderr
    assert re.search(r"ModuleNotFoundError: import of onnx(script)?\b", error)
    assert re.search(r"Net\.to_onnx needs the package onnx(script)?, which is not installed\.", error)
    assert re.search(r"Fix: pip install 'onnx(script)?>=", error)


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


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("method", ["script", "trace"])
def test_torchscript_computes_what_forward_does(tmp_path: Path, method: str) -> None:
    net = Net()
    script = net.to_torchscript(tmp_path / "net.pt", method=method)
    assert net.training
    x = torch.randn(5, 3)
    assert torch.equal(script(x), net(x))
    assert torch.equal(torch.jit.load(str(tmp_path / "net.pt"))(x), net(x))


def test_wrong_arguments_of_torchscript() -> None:
    with pytest.raises(MisconfigurationException, match=r"method='compile'(.|\n)*Expected: 'script'"):
        Net().to_torchscript(method="compile")
    net = Net()
    net.example_input_array = None
    with pytest.raises(MisconfigurationException, match=r"no input to trace with(.|\n)*`example_inputs`"):
        net.to_torchscript(method="trace")


class Compiler:
    """Stands for torch_tensorrt, which needs a GPU."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def compile(self, module: torch.nn.Module, ir: str, inputs: list[torch.Tensor], **options: object) -> object:
        self.calls.append((module.training, ir, [one.shape for one in inputs], options))
        return module

    def save(self, compiled: object, path: object, **options: object) -> None:
        self.calls.append((path, sorted(options)))


def test_tensorrt_gets_the_module_its_inputs_and_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler()
    monkeypatch.setitem(sys.modules, "torch_tensorrt", compiler)
    net = Net()
    moves: list[str] = []
    monkeypatch.setattr(net, "to", lambda device: moves.append(str(device)), raising=False)
    assert net.to_tensorrt("net.ep", enabled_precisions={torch.half}) is net
    assert compiler.calls[0] == (False, "default", [(4, 3)], {"enabled_precisions": {torch.half}})
    assert compiler.calls[1] == ("net.ep", ["inputs", "output_format", "retrace"])
    assert moves == ["cuda", "cpu"]
    assert net.training


def test_what_tensorrt_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_tensorrt", None)
    with pytest.raises(MisconfigurationException, match="pip install torch-tensorrt"):
        Net().to_tensorrt()
    monkeypatch.setitem(sys.modules, "torch_tensorrt", Compiler())
    with pytest.raises(MisconfigurationException, match="output_format='torchscript' with ir='ts'"):
        Net().to_tensorrt(ir="ts")
    with pytest.raises(MisconfigurationException, match="TensorRT compiles on it"):
        Net().to_tensorrt(default_device="cpu")


class Late(L.Module):
    """Builds its layer in the hook's former name."""

    def configure_sharded_model(self) -> None:
        if not hasattr(self, "layer"):
            self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.layer(batch).sum()

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.validates = self.trainer.enable_validation

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_the_former_name_of_configure_model_is_called() -> None:
    net, trainer = Late(), L.Trainer(**QUIET, max_epochs=1)
    trainer.fit(net, [torch.ones(1, 1)], [torch.ones(1, 1)])
    assert net.layer.weight.shape == (1, 1)
    assert net.validates


def test_enable_validation_is_whether_a_fit_validates() -> None:
    trainer = L.Trainer(**QUIET, max_epochs=1, limit_val_batches=0)
    trainer.fit(Late(), [torch.ones(1, 1)], [torch.ones(1, 1)])
    assert not trainer.enable_validation
    net = Late()
    net.validation_step = None
    trainer = L.Trainer(**QUIET, max_epochs=1)
    trainer.fit(net, [torch.ones(1, 1)])
    assert not trainer.enable_validation
