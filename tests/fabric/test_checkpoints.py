"""Saving and loading: modules, optimizers, schedules, plain values; by any strategy, and by torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lightlib as L
from lightlib.callbacks import ModelCheckpoint
from lightlib.errors import ArgumentTypeError, CheckpointError, CheckpointWriteError, MisconfigurationException
from lightlib.strategies import FSDPStrategy, ModelParallelStrategy
from tests.processes.ranks import ranks
from tests.runs import plain
from tests.runs.plain import batches, network, same_weights


@pytest.fixture
def fabric():
    return L.Fabric(accelerator="cpu", devices=1)


def trained(fabric, steps=3, net=None):
    """Return a module, its optimizer and schedule after some steps on all of `batches`."""
    torch.manual_seed(0)
    net = network() if net is None else net
    model, optimizer = fabric.setup(net, torch.optim.Adam(net.parameters(), lr=0.05))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 2, 0.5)
    for x, y in batches(steps):
        optimizer.zero_grad()
        fabric.backward(cross_entropy(model(x), y))
        optimizer.step()
        schedule.step()
    return {"model": model, "optimizer": optimizer, "schedule": schedule}


def plain_state(optimizer):
    return {name: entry["exp_avg"] for name, entry in optimizer.state_dict()["state"].items()}


class TestOneDevice:
    def test_everything_is_restored_in_place(self, fabric):
        state = {**trained(fabric), "step": 3, "names": ["a"]}
        fabric.save("run.ckpt", state)
        others = {**trained(fabric, 1), "step": 0}
        assert fabric.load("run.ckpt", others) == {"names": ["a"]}
        assert others["step"] == 3
        assert same_weights(others["model"], state["model"])
        assert others["schedule"].state_dict() == state["schedule"].state_dict()
        ours, saved = (plain_state(one["optimizer"]) for one in (others, state))
        assert all(ours[name].equal(saved[name]) for name in saved)

    def test_torch_reads_it_and_writes_it(self, fabric):
        state = trained(fabric)
        fabric.save("run.ckpt", {**state, "step": 3})
        content = torch.load("run.ckpt")
        assert list(content) == ["model", "optimizer", "schedule", "step", "lightlib"]
        net = network()
        net.load_state_dict(content["model"])
        torch.optim.Adam(net.parameters()).load_state_dict(content["optimizer"])
        torch.save({"model": net.state_dict(), "step": 4}, "plain.pt")
        other = {"model": trained(fabric, 1)["model"], "step": 0}
        assert fabric.load("plain.pt", other) == {}
        assert other["step"] == 4
        assert same_weights(other["model"], state["model"])

    def test_without_a_state_all_is_returned(self, fabric):
        fabric.save("run.ckpt", {"step": 3, "inner": {"a": torch.ones(1)}})
        assert fabric.load("run.ckpt") == {"step": 3, "inner": {"a": torch.ones(1)}}

    def test_plain_modules_and_optimizers(self, fabric):
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        fabric.save("run.ckpt", {"net": net, "optimizer": optimizer})
        other = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(), nn.Linear(8, 3))
        fabric.load("run.ckpt", {"net": other, "optimizer": torch.optim.SGD(other.parameters(), 0.2)})
        assert same_weights(net, other)

    def test_filters(self, fabric):
        model = trained(fabric)["model"]
        fabric.save("run.ckpt", {"model": model, "step": 1}, filter={"model": lambda key, value: key.startswith("0.")})
        assert sorted(torch.load("run.ckpt")["model"]) == ["0.bias", "0.weight"]
        before = model.state_dict()["3.bias"].clone()
        with pytest.raises(CheckpointError, match=r"(?s)entry 'model' of 'run.ckpt' does not fit: .*Missing key"):
            fabric.load("run.ckpt", {"model": model})
        fabric.load("run.ckpt", {"model": model}, strict=False)
        assert model.state_dict()["3.bias"].equal(before)

    def test_raw_files(self, fabric):
        net = network()
        torch.save(net.state_dict(), "net.pt")
        torch.save(torch.optim.SGD(net.parameters(), 0.7).state_dict(), "sgd.pt")
        other = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(), nn.Linear(8, 3))
        model, optimizer = fabric.setup(other, torch.optim.SGD(other.parameters(), 0.1))
        fabric.load_raw("net.pt", model)
        fabric.load_raw("sgd.pt", optimizer)
        assert same_weights(net, other)
        assert optimizer.param_groups[0]["lr"] == 0.7
        with pytest.raises(ArgumentTypeError, match=r"load_raw\(obj=\{\} \(dict\)\)"):
            fabric.load_raw("net.pt", {})

    @pytest.mark.filterwarnings("ignore:precision='16-mixed' computes in float16 on the CPU")
    def test_the_loss_scaler_is_saved(self):
        settings = {"init_scale": 8.0, "growth_interval": 2}
        precision = L.precision.Precision("16-mixed", torch.float32, torch.float16, torch.float32, True, settings)
        fabric = L.Fabric(accelerator="cpu", devices=1, precision=precision)
        state = trained(fabric)
        fabric.save("run.ckpt", state)
        other = L.Fabric(accelerator="cpu", devices=1, precision=precision)
        again = trained(other, 1)
        other.load("run.ckpt", again)
        assert other._placed.scaler.state_dict() == fabric._placed.scaler.state_dict()
        assert other._placed.scaler.state_dict()["scale"] == 16.0

    @pytest.mark.parametrize(
        ("call", "words"),
        [
            (lambda f: f.save(3, {}), r"save\(path=3 \(int\)\)"),
            (lambda f: f.save("a.ckpt", [1]), "save got a list as the state"),
            (lambda f: f.save("a.ckpt", {1: 2}), r"a state with the name 1 \(int\)"),
            (lambda f: f.save("a.ckpt", {"lightlib": 2}), "a state with the name 'lightlib'"),
            (lambda f: f.save("a.ckpt", {"a": {}}, filter=[1]), r"save\(filter=\[1\] \(list\)\)"),
            (lambda f: f.save("a.ckpt", {"model": {}}, filter={"modl": len}), "Did you mean 'model'"),
            (lambda f: f.save("a.ckpt", {"a": {}}, filter={"a": 1}), r"filter\['a'\]=1"),
            (lambda f: f.load("absent.ckpt"), "There is no checkpoint 'absent.ckpt'"),
            (lambda f: f.load("one.ckpt", {"stp": 0}), "has no entry 'stp'. Did you mean 'step'?"),
            (lambda f: f.load("one.ckpt", {"step": nn.Linear(1, 1)}), "under 'step'"),
        ],
    )
    def test_mistakes(self, fabric, call, words):
        fabric.save("one.ckpt", {"step": 1})
        with pytest.raises(MisconfigurationException, match=words) as raised:
            call(fabric)
        assert all(part in str(raised.value) for part in ("\n  Expected: ", "\n  Fix: "))

    def test_nothing_is_changed_by_a_state_that_does_not_fit(self, fabric):
        fabric.save("one.ckpt", {"step": 1})
        state = {"step": 0, "absent": 2}
        with pytest.raises(CheckpointError):
            fabric.load("one.ckpt", state)
        assert state == {"step": 0, "absent": 2}
        fabric.load("one.ckpt", state, strict=False)
        assert state == {"step": 1, "absent": 2}

    def test_what_cannot_be_written(self, fabric):
        with pytest.raises(CheckpointWriteError):
            fabric.save("run.ckpt", {"function": lambda: None})


STRATEGIES = {
    "ddp": lambda: "ddp",
    "fsdp": lambda: "fsdp",
    "sharded": lambda: FSDPStrategy(state_dict_type="sharded"),
    "zero1": lambda: "zero1",
    "tensor": lambda: "tensor",
    "model_parallel": lambda: ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
}


def saved_by(rank, strategy, path, wanted):
    fabric = L.Fabric(accelerator="cpu", devices=2, strategy=STRATEGIES[strategy]())
    fabric.launch()
    state = {**trained(fabric, net=Parallel()), "step": 3}
    fabric.save(path, state)
    others = {**trained(fabric, 1, net=Parallel()), "step": 0}
    rest = fabric.load(path, {**others})
    content = fabric.load(path)
    loaded = {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in others["model"].state_dict().items()}
    fabric.load(wanted, {"model": others["model"], "optimizer": others["optimizer"]})
    fabric.save(f"{path}.again", {"optimizer": others["optimizer"]})
    return rest, content["model"], loaded, content["optimizer"], fabric.load(f"{path}.again")["optimizer"]


class Parallel(nn.Module):
    """A module that tensor parallelism can split, built the same each time."""

    def __init__(self):
        super().__init__()
        net = network()
        self.up, self.down = net[0], net[3]

    def parallel_plan(self):
        return L.ParallelPlan(tensor={"up": "colwise", "down": "rowwise"})

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


@pytest.mark.processes
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_saves_what_one_device_saves_and_loads_it(strategy, tmp_path, fabric):
    one = {**trained(fabric, net=Parallel()), "step": 3}
    wanted = str(tmp_path / "one.ckpt")
    fabric.save(wanted, one)
    path = str(tmp_path / "run.ckpt")
    for rest, model, loaded, optimizer, again in ranks(2, saved_by, strategy, path, wanted):
        assert rest == {}
        assert list(model) == list(one["model"].state_dict())
        for name, value in one["model"].state_dict().items():
            torch.testing.assert_close(model[name], value, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(loaded[name], value, rtol=1e-4, atol=1e-5)
        for number, entry in one["optimizer"].state_dict()["state"].items():
            torch.testing.assert_close(optimizer["state"][number]["exp_avg"], entry["exp_avg"], rtol=1e-3, atol=1e-5)
            assert again["state"][number]["exp_avg"].equal(entry["exp_avg"])
    other = {**trained(fabric, 1, net=Parallel()), "step": 0}
    assert fabric.load(path, other) == {}
    assert other["step"] == 3


def half_frozen():
    torch.manual_seed(0)
    net = plain.Net(plain.momentum)
    net.net[0].requires_grad_(False)
    return net


def without_frozen(path, strategy="auto", devices=1):
    """Return the weights that a Fabric loads from a file without frozen ones; other frozen weights are refused."""
    fabric = L.Fabric(accelerator="cpu", devices=devices, strategy=strategy)
    fabric.launch()
    model, other = half_frozen(), half_frozen()
    with torch.no_grad():
        model.net[3].weight.zero_()
        other.net[0].weight.add_(1)
    model, other = fabric.setup(model), fabric.setup(other)
    fabric.load(path, {"state_dict": model})
    with pytest.raises(CheckpointError, match=r"builds other values of 'net\.0\.weight'"):
        fabric.load(path, {"state_dict": other})
    return {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in model.state_dict().items()}


def loads_without_frozen(rank, path, strategy):
    return without_frozen(path, strategy, 2)


@pytest.mark.processes
def test_frozen_weights_that_a_file_of_the_trainer_leaves_out(tmp_path):
    module, saver = half_frozen(), ModelCheckpoint(tmp_path, save="trainable")
    plain.quiet_trainer(callbacks=saver, enable_checkpointing=True).fit(module, plain.loader(24))
    path = saver.best_model_path
    found = [without_frozen(path), *ranks(2, loads_without_frozen, path, "ddp")]
    found += ranks(2, loads_without_frozen, path, "fsdp")
    assert all(state[name].equal(value) for state in found for name, value in module.state_dict().items())


@pytest.mark.processes
def test_a_state_from_before_the_setup_is_sharded(tmp_path):
    for buffers in ranks(2, with_earlier_state):
        assert buffers


def with_earlier_state(rank):
    """An optimizer that has stepped before: its state follows its parameters into their shards."""
    fabric = L.Fabric(accelerator="cpu", devices=2, strategy="fsdp")
    fabric.launch()
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    net(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    wanted = {n: optimizer.state[p]["momentum_buffer"].clone() for n, p in net.named_parameters()}
    model, optimizer = fabric.setup(net, optimizer)
    found = {n: optimizer.state[p]["momentum_buffer"].full_tensor() for n, p in model.named_parameters()}
    return all(found[name].equal(value) for name, value in wanted.items())
