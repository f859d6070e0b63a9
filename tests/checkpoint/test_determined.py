"""Determined's checkpoints: read as ours, resumed, written, and never unpickled without trust."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lightlib as L
from lightlib.checkpoint import convert, export, inspect, load, verify
from lightlib.checkpoint.tools.command import main
from lightlib.errors import CheckpointError, CheckpointWriteError, MisconfigurationException, UnknownNameError
from lightlib.report import LightlibWarning
from tests.runs.plain import QUIET, Net, batches, loader, momentum, network

FOUR = ["models_state_dict", "optimizers_state_dict", "lr_schedulers_state_dict", "callbacks"]


def trained(net, optimizer, schedule, steps):
    """Train plainly, with one step of the schedule per epoch of three batches."""
    for step in range(steps):
        x, y = batches(3)[step % 3]
        optimizer.zero_grad()
        cross_entropy(net(x), y).backward()
        optimizer.step()
        if step % 3 == 2:
            schedule.step()


def plain():
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def written(path, models=None, **more):
    """Write the entries that PyTorchTrial writes after one epoch of a plain loop; return the objects of the loop."""
    net, optimizer, schedule = plain()
    trained(net, optimizer, schedule, 3)
    content = {
        "models_state_dict": [net.state_dict()] if models is None else models,
        "optimizers_state_dict": [optimizer.state_dict()],
        "lr_schedulers_state_dict": [schedule.state_dict()],
        "callbacks": {"early": {"patience": 3}},
        **more,
    }
    torch.save(content, path)
    return net, optimizer, schedule


def halved(parameters):
    optimizer = momentum(parameters)
    return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def test_the_weights(tmp_path):
    net, *_ = written(tmp_path / "state_dict.pth")
    content = load(tmp_path / "state_dict.pth")
    model = network()
    model.load_state_dict(content["state_dict"], strict=True)
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in model.state_dict().items())
    assert content["callbacks"] == {"early": {"patience": 3}}
    found = inspect(tmp_path / "state_dict.pth")
    assert found.resumable
    assert (found.epoch, found.step) == (0, 0)
    assert verify(tmp_path / "state_dict.pth").checksums > 0


def test_a_run_resumes_from_it_with_the_bits_of_the_plain_loop(tmp_path):
    net, optimizer, schedule = written(tmp_path / "state_dict.pth", callbacks={})
    convert(tmp_path / "state_dict.pth", tmp_path / "ours.ckpt", "file", prefix="net.")
    module = Net(halved)
    trainer = L.Trainer(**QUIET, max_epochs=2)
    trainer.fit(module, loader(12), ckpt_path=tmp_path / "ours.ckpt")
    trained(net, optimizer, schedule, 6)
    assert trainer.global_step == 6
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in module.net.state_dict().items())
    assert trainer.optimizers[0].param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.1 / 8
    loaded = Net.load_from_checkpoint(tmp_path / "ours.ckpt")
    assert loaded.net[0].weight.shape == (8, 6)


def test_several_models_and_the_names_of_ddp(tmp_path):
    one, two = nn.Linear(2, 2), nn.Linear(3, 1)
    wrapped = {f"module.{name}": value for name, value in two.state_dict().items()}
    written(tmp_path / "a.pth", models=[one.state_dict(), wrapped])
    both = nn.Module()
    both.models = nn.ModuleList([nn.Linear(2, 2), nn.Linear(3, 1)])
    both.load_state_dict(load(tmp_path / "a.pth")["state_dict"], strict=True)
    assert torch.equal(both.models[0].weight, one.weight)
    assert torch.equal(both.models[1].weight, two.weight)


def test_the_scaler(tmp_path):
    written(tmp_path / "a.pth", scaler_state_dict={"scale": 8.0})
    assert load(tmp_path / "a.pth")["MixedPrecision"] == {"scale": 8.0}
    with pytest.warns(LightlibWarning, match="loss scaler"):
        export(tmp_path / "a.pth", tmp_path / "b.pth", layout="determined")
    assert list(torch.load(tmp_path / "b.pth")) == FOUR


class TestWrite:
    def test_exactly_four_entries_which_plain_torch_loads(self, tmp_path):
        trainer = L.Trainer(**QUIET, max_epochs=1)
        module = Net(halved)
        trainer.fit(module, loader(12))
        trainer.save_checkpoint(tmp_path / "ours.ckpt")
        export(tmp_path / "ours.ckpt", tmp_path / "state_dict.pth", layout="determined", strip="net.")
        content = torch.load(tmp_path / "state_dict.pth", weights_only=True)
        assert list(content) == FOUR
        net, optimizer, schedule = plain()
        net.load_state_dict(content["models_state_dict"][0], strict=True)
        optimizer.load_state_dict(content["optimizers_state_dict"][0])
        schedule.load_state_dict(content["lr_schedulers_state_dict"][0])
        expected, by, steps = plain()
        trained(expected, by, steps, 3)
        trained(expected, by, steps, 3)
        trained(net, optimizer, schedule, 3)
        assert all(torch.equal(value, net.state_dict()[name]) for name, value in expected.state_dict().items())

    @pytest.mark.parametrize("count", [1, 2])
    def test_there_and_back(self, tmp_path, count):
        models = [nn.Linear(2, number + 1).state_dict() for number in range(count)]
        written(tmp_path / "a.pth", models=models)
        convert(tmp_path / "a.pth", tmp_path / "directory", "directory")
        export(tmp_path / "directory", tmp_path / "b.pth", layout="determined")
        before, after = torch.load(tmp_path / "a.pth"), torch.load(tmp_path / "b.pth")
        assert len(after["models_state_dict"]) == count
        for one, other in zip(before["models_state_dict"], after["models_state_dict"], strict=True):
            assert list(one) == list(other)
            assert all(torch.equal(value, other[name]) for name, value in one.items())
        torch.testing.assert_close(after["optimizers_state_dict"], before["optimizers_state_dict"], rtol=0, atol=0)
        assert after["callbacks"] == before["callbacks"]

    def test_the_command(self, tmp_path, capsys):
        written(tmp_path / "a.pth")
        assert (
            main(["convert", str(tmp_path / "a.pth"), str(tmp_path / "b.ckpt"), "--to", "file", "--prefix", "m."]) == 0
        )
        assert main(["export", str(tmp_path / "b.ckpt"), str(tmp_path / "c.pth"), "--layout", "determined"]) == 0
        assert next(iter(torch.load(tmp_path / "c.pth")["models_state_dict"][0])) == "m.0.weight"
        assert "written" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("options", "kind", "what"),
        [
            ({"layout": "mmengine"}, UnknownNameError, "Unknown layout 'mmengine'"),
            ({"layout": "determined", "dtype": "float16"}, MisconfigurationException, "layout='determined' and dtype="),
        ],
    )
    def test_refused(self, tmp_path, options, kind, what):
        written(tmp_path / "a.pth")
        with pytest.raises(kind, match=what):
            export(tmp_path / "a.pth", tmp_path / "b.pth", **options)
        assert not (tmp_path / "b.pth").exists()

    def test_wrong_targets(self, tmp_path):
        written(tmp_path / "a.pth")
        with pytest.raises(MisconfigurationException, match=r"layout='determined' and the target .*\.safetensors'"):
            export(tmp_path / "a.pth", tmp_path / "b.safetensors", layout="determined")
        with pytest.raises(MisconfigurationException, match="prefix='m"):
            convert(tmp_path / "a.pth", tmp_path / "b.safetensors", prefix="m.")
        (tmp_path / "b.pth").write_text("precious")
        with pytest.raises(CheckpointWriteError, match="already exists"):
            export(tmp_path / "a.pth", tmp_path / "b.pth", layout="determined")
        assert (tmp_path / "b.pth").read_text() == "precious"


class TestUnsafe:
    def test_random_states_of_numpy_need_trust(self, tmp_path):
        rng = {"np_rng_state": np.random.get_state(), "random_rng_state": random.getstate()}
        net, *_ = written(tmp_path / "a.pth", rng_state=rng)
        with pytest.raises(CheckpointError, match=r"np_rng_state.*trust=True|(?s:np_rng_state.*trust=True)"):
            load(tmp_path / "a.pth")
        content = load(tmp_path / "a.pth", trust=True)
        assert torch.equal(content["state_dict"]["0.weight"], net[0].weight)
        assert "rng_state" not in content

    def test_code_is_not_run(self, tmp_path):
        class Forged:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "made"),)

        torch.save({"models_state_dict": [{}], "callbacks": {"a": Forged()}}, tmp_path / "a.pth")
        for call in (load, inspect, lambda path: convert(path, tmp_path / "b.ckpt", "file")):
            with pytest.raises(CheckpointError, match="only be loaded by running code"):
                call(tmp_path / "a.pth")
        assert not (tmp_path / "made").exists()

    @pytest.mark.parametrize(
        ("entry", "value"),
        [
            ("models_state_dict", [3]),
            ("optimizers_state_dict", {}),
            ("lr_schedulers_state_dict", [1]),
            ("callbacks", []),
        ],
    )
    def test_damaged(self, tmp_path, entry, value):
        written(tmp_path / "a.pth", **{entry: value})
        with pytest.raises(CheckpointError, match=f"its '{entry}' is a"):
            load(tmp_path / "a.pth")
