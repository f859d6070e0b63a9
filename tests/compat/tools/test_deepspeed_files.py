"""DeepSpeed's checkpoints and summaries, with a stand-in for the package; the module in float64."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import lightlib
from lightlib.errors import CheckpointError, MisconfigurationException
from lightlib_lightning.plugins.double import LightningDoublePrecisionModule
from lightlib_lightning.tools import deepspeed_files


class Net(lightlib.Module):
    def __init__(self, width=3):
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Linear(width, 2)

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, batch_idx, scale=1.0):
        return self(batch["x"]).sum() * scale


def write(folder, module, prefix=""):
    """Write a module as DeepSpeed does in ZeRO 2: weights in 16 bits, and a shard of those in 32 for each rank."""
    step = Path(folder) / "global_step2"
    step.mkdir(parents=True)
    flat = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    for rank, shard in enumerate(flat.chunk(2)):
        content = {"optimizer_state_dict": {"zero_stage": 2, "shard": shard.clone()}}
        torch.save(content, step / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    shapes = {prefix + name: parameter.shape for name, parameter in module.named_parameters()}
    rest = {"epoch": 1, "hyper_parameters": dict(module.hparams), "pytorch-lightning_version": "2.6.6"}
    of_deepspeed = {"module": {}, "optimizer": None, "global_steps": 2, "dp_world_size": 2, "skipped_steps": 0}
    torch.save({**rest, **of_deepspeed, "param_shapes": shapes}, step / "mp_rank_00_model_states.pt")
    (Path(folder) / "latest").write_text("global_step2")


@pytest.fixture
def package(monkeypatch):
    """A stand-in for deepspeed.utils.zero_to_fp32 that reads the files of `write`."""
    script = ModuleType("deepspeed.utils.zero_to_fp32")

    def optim_files(folder):
        return sorted(str(path) for path in Path(folder).glob("*_optim_states.pt"))

    def model_file(folder, stage):
        assert stage == 2
        return str(Path(folder) / "mp_rank_00_model_states.pt")

    def weights(checkpoint_dir, tag=None):
        folder = Path(checkpoint_dir) / (tag or (Path(checkpoint_dir) / "latest").read_text())
        shards = [torch.load(path, weights_only=False)["optimizer_state_dict"]["shard"] for path in optim_files(folder)]
        shapes = torch.load(model_file(folder, 2), weights_only=False)["param_shapes"]
        pieces = torch.cat(shards).split([shape.numel() for shape in shapes.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}

    script.get_optim_files, script.get_model_state_file = optim_files, model_file
    script.get_fp32_state_dict_from_zero_checkpoint = weights
    root, utils = ModuleType("deepspeed"), ModuleType("deepspeed.utils")
    root.utils, utils.zero_to_fp32 = utils, script
    for module in (root, utils, script):
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize("prefix", ["", "_forward_module."])
@pytest.mark.parametrize("tag", [None, "global_step2"])
def test_a_converted_checkpoint_has_the_weights_and_loads(tmp_path, package, prefix, tag):
    module = Net(width=5)
    write(tmp_path / "run.ckpt", module, prefix)
    if tag:
        (tmp_path / "run.ckpt" / "latest").unlink()
    content = deepspeed_files.convert_zero_checkpoint_to_fp32_state_dict(
        tmp_path / "run.ckpt", tmp_path / "one.pt", tag
    )
    expected = {"epoch", "hyper_parameters", "pytorch-lightning_version", "state_dict", "param_shapes"}
    assert set(content) == set(torch.load(tmp_path / "one.pt", weights_only=False)) == expected
    loaded = Net.load_from_checkpoint(tmp_path / "one.pt", weights_only=False)
    assert loaded.hparams.width == 5
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), module.parameters(), strict=True))


def test_folders_that_are_not_there(tmp_path):
    with pytest.raises(CheckpointError, match=r"no file 'latest'(.|\n)*Fix: correct the path, or pass tag="):
        deepspeed_files.ds_checkpoint_dir(tmp_path)
    with pytest.raises(ValueError, match="latest"):  # Lightning's class
        deepspeed_files.ds_checkpoint_dir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"global_step9'.* does not exist"):
        deepspeed_files.ds_checkpoint_dir(tmp_path, "global_step9")
    write(tmp_path, Net())
    assert deepspeed_files.ds_checkpoint_dir(tmp_path) == str(tmp_path / "global_step2")


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "deepspeed", raising=False)
    monkeypatch.setattr(deepspeed_files, "find_spec", lambda name: None)
    with pytest.raises(MisconfigurationException, match=r"not installed(.|\n)*pip install deepspeed"):
        deepspeed_files.convert_zero_checkpoint_to_fp32_state_dict(tmp_path, tmp_path / "one.pt")


class TestSummary:
    @pytest.fixture
    def module(self):
        """A module of which a process holds a quarter, as in stage 3: parameters are empty and know their size."""
        module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1, bias=False))
        module.scale = nn.Parameter(torch.zeros(4))
        for parameter in module.parameters():
            parameter.ds_numel = parameter.numel()
            parameter.partition_numel = partial(int, parameter.numel() // 4)
            parameter.data = torch.empty(0)
        module[2].weight.requires_grad = False
        return module

    def test_counts_are_those_of_the_full_module_and_of_a_shard(self, module):
        summary = deepspeed_files.DeepSpeedSummary(module)
        assert (summary.total_parameters, summary.trainable_parameters) == (52, 44)
        assert summary.param_nums == [40, 0, 8]
        assert summary.parameters_per_layer == [10, 0, 2]
        layers = summary.summarize()
        assert [(name, layer.num_parameters) for name, layer in layers.items()] == [("0", 40), ("1", 0), ("2", 8)]
        columns = summary.columns()
        assert list(columns)[2:4] == ["Params", "Params per Device"]
        assert columns["Params per Device"] == ["10", "0", "2", "n/a"]
        assert "Params per Device" in str(summary)

    def test_the_size_of_a_parameter(self, module):
        assert deepspeed_files.deepspeed_param_size(module[0].weight) == 32


class TestDouble:
    def test_steps_and_forward_receive_float64(self):
        with pytest.warns(DeprecationWarning, match="64-true"):
            wrapped = LightningDoublePrecisionModule(Net().double())
        batch = {"x": torch.ones(4, 3), "number": torch.ones(4, dtype=torch.int64)}
        plain = wrapped.module.layer
        expected = (batch["x"].double() @ plain.weight.T + plain.bias).sum() * 2
        torch.testing.assert_close(wrapped.training_step(batch, 0, scale=2), expected)
        assert wrapped.training_step(batch, 0).dtype is torch.float64
        assert wrapped(batch["x"]).dtype is torch.float64
        assert list(wrapped.state_dict()) == ["module.layer.weight", "module.layer.bias"]

    def test_every_step_casts(self):
        class Steps(nn.Module):
            def validation_step(self, batch):
                return batch.dtype

            test_step = predict_step = validation_step

        with pytest.warns(DeprecationWarning, match="not needed"):
            wrapped = LightningDoublePrecisionModule(Steps())
        for step in (wrapped.validation_step, wrapped.test_step, wrapped.predict_step):
            assert step(torch.ones(1)) is torch.float64
            assert step(torch.ones(1, dtype=torch.int32)) is torch.int32
