"""Backward and clipping with a Fabric, and the errors that come before training."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from tests.processes.ranks import ranks
from tests.runs.plain import Net, network


@pytest.fixture
def fabric():
    return L.Fabric(accelerator="cpu", devices=1)


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.1)


def set_up(fabric, net=None):
    net = network() if net is None else net
    return fabric.setup(net, sgd(net))


def parts_of(error):
    return all(part in str(error.value) for part in ("\n  Expected: ", "\n  Fix: ")) and "Trainer" not in str(
        error.value
    )


class TestClipping:
    def differentiated(self, fabric):
        model, optimizer = set_up(fabric)
        fabric.backward(model(torch.ones(2, 6)).square().sum() * 10)
        return model, optimizer, [parameter.grad.clone() for parameter in model.parameters()]

    @pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
    def test_by_norm(self, fabric, norm_type):
        model, optimizer, before = self.differentiated(fabric)
        norm = fabric.clip_gradients(model, optimizer, max_norm=0.5, norm_type=norm_type)
        net = network()
        for parameter, gradient in zip(net.parameters(), before, strict=True):
            parameter.grad = gradient.clone()
        assert norm.equal(nn.utils.clip_grad_norm_(net.parameters(), 0.5, norm_type))
        assert all(a.grad.equal(b.grad) for a, b in zip(model.parameters(), net.parameters(), strict=True))

    def test_by_value(self, fabric):
        model, optimizer, before = self.differentiated(fabric)
        assert fabric.clip_gradients(model, optimizer, clip_val=0.01) is None
        assert all(p.grad.equal(g.clamp(-0.01, 0.01)) for p, g in zip(model.parameters(), before, strict=True))

    def test_an_infinite_norm(self, fabric):
        model, optimizer = set_up(fabric)
        fabric.backward(model(torch.full((1, 6), float("inf"))).sum())
        with pytest.raises(RuntimeError, match="The gradients have the norm nan"):
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
        assert fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False).isnan()

    @pytest.mark.parametrize("limits", [{}, {"clip_val": 1, "max_norm": 1}, {"max_norm": "1"}, {"clip_val": True}])
    def test_mistakes(self, fabric, limits):
        model, optimizer = set_up(fabric)
        with pytest.raises(MisconfigurationException, match=r"fabric.clip_gradients( got|\()") as raised:
            fabric.clip_gradients(model, optimizer, **limits)
        assert parts_of(raised)

    def test_what_is_not_set_up(self, fabric):
        model, optimizer = set_up(fabric)
        with pytest.raises(ArgumentTypeError, match="clip_gradients got Sequential") as raised:
            fabric.clip_gradients(model.module, optimizer, max_norm=1)
        assert parts_of(raised)
        with pytest.raises(ArgumentTypeError, match=r"clip_gradients\(optimizer=SGD"):
            fabric.clip_gradients(model, optimizer.optimizer, max_norm=1)


@pytest.mark.filterwarnings("ignore:precision='16-mixed' computes in float16 on the CPU")
class TestScaler:
    def make(self):
        settings = {"init_scale": 2.0**20}
        precision = L.precision.Precision("16-mixed", torch.float32, torch.float16, torch.float32, True, settings)
        return L.Fabric(accelerator="cpu", devices=1, precision=precision)

    def test_a_step_that_overflows_is_skipped(self):
        fabric = self.make()
        model, optimizer = set_up(fabric)
        before = model.state_dict()["0.weight"].clone()
        fabric.backward(model(torch.ones(2, 6)).sum() * 1e5)
        assert not fabric.clip_gradients(model, optimizer, max_norm=1.0).isfinite()
        optimizer.step()
        assert model.state_dict()["0.weight"].equal(before)

    def test_a_step_without_a_backward_pass(self):
        fabric = self.make()
        model, optimizer = set_up(fabric)
        model(torch.ones(2, 6)).sum().backward()
        with pytest.raises(MisconfigurationException, match="the loss was never scaled") as raised:
            optimizer.step()
        assert "fabric.backward(loss)" in str(raised.value)
        assert parts_of(raised)

    def test_an_optimizer_that_cannot_be_scaled(self):
        fabric, net = self.make(), network()
        with pytest.raises(MisconfigurationException, match="LBFGS cannot be used with precision '16-mixed'"):
            fabric.setup(net, torch.optim.LBFGS(net.parameters()))


class TestMistakes:
    """Each has three parts, and names Fabric."""

    @pytest.mark.parametrize(
        ("tensor", "words"),
        [
            (torch.ones(()), "a loss without a gradient"),
            (torch.ones(2, requires_grad=True) * 2, r"a loss of shape \(2,\)"),
            (0.5, r"fabric.backward got 0.5 \(float\)"),
        ],
    )
    def test_backward_of_what_has_no_graph(self, fabric, tensor, words):
        set_up(fabric)
        with pytest.raises(MisconfigurationException, match=words) as raised:
            fabric.backward(tensor)
        assert parts_of(raised)

    def test_backward_with_a_gradient(self, fabric):
        model, _ = set_up(fabric)
        fabric.backward(model(torch.ones(1, 6)), gradient=torch.ones(1, 3))
        assert model.module[0].weight.grad is not None

    def test_setting_up_twice(self, fabric):
        net = network()
        optimizer = sgd(net)
        model, stepped = fabric.setup(net, optimizer)
        loader = fabric.setup_dataloaders([1])
        for call in (
            lambda: fabric.setup(net),
            lambda: fabric.setup_module(model),
            lambda: fabric.setup_optimizers(stepped),
            lambda: fabric.setup_optimizers(optimizer),
            lambda: fabric.setup_dataloaders(loader),
        ):
            with pytest.raises(MisconfigurationException, match="that is set up already") as raised:
                call()
            assert parts_of(raised)

    def test_an_optimizer_of_another_module(self, fabric):
        one, other = network(), network()
        with pytest.raises(MisconfigurationException, match="an SGD, 4 of whose 4 parameters belong to no") as raised:
            fabric.setup(one, sgd(other))
        assert parts_of(raised)
        fabric.setup_module(one)
        with pytest.raises(MisconfigurationException, match="belong to no module that is set up"):
            fabric.setup_optimizers(sgd(other))

    @pytest.mark.parametrize(
        ("call", "words"),
        [
            (lambda f: f.setup(nn.Linear), "got the class Linear"),
            (lambda f: f.setup(3), r"fabric.setup got 3 \(int\)"),
            (lambda f: f.setup(nn.Linear(1, 1), 3), r"fabric.setup got 3 \(int\)"),
            (lambda f: f.setup_optimizers(), "got no optimizer"),
            (lambda f: f.setup_dataloaders(), "got no loader"),
            (lambda f: f.setup_dataloaders(TensorDataset(torch.ones(1))), "setup_dataloaders got an object of type"),
            (lambda f: f.setup_dataloaders(DataLoader([])), "data are empty"),
            (lambda f: f.no_backward_sync(nn.Linear(1, 1)).__enter__(), "no_backward_sync got Linear"),
            (lambda f: f.call(3), r"fabric.call\(hook_name=3 \(int\)\)"),
            (lambda f: f.log_dict([1]), r"fabric.log_dict\(metrics=\[1\] \(list\)\)"),
            (lambda f: f.log("a", torch.ones(2)), r"fabric.log got 'a', a tensor of shape \(2,\)"),
            (lambda f: f.logger, "this Fabric has no logger"),
            (lambda f: f.setup(nn.Linear(1, 1)).mark_forward_method("absent"), "is no method of Linear"),
            (lambda f: f.setup(nn.Linear(1, 1)).mark_forward_method("forward"), "runs on the strategy anyway"),
            (lambda f: f.setup(nn.Linear(1, 1)).mark_forward_method(3), r"mark_forward_method\(method=3 \(int\)\)"),
        ],
    )
    def test_wrong_types(self, fabric, call, words):
        with pytest.raises(MisconfigurationException, match=words) as raised:
            call(fabric)
        assert parts_of(raised)

    def test_a_schedule_among_the_optimizers(self, fabric):
        net = network()
        optimizer = sgd(net)
        with pytest.raises(ArgumentTypeError, match="StepLR, a learning-rate schedule, among the optimizers"):
            fabric.setup(net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1))

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"strategy": "pipeline", "devices": 2}, "the schedule of a pipeline calls forward and backward itself"),
            ({"strategy": "dpp"}, r"Unknown strategy 'dpp'. Did you mean 'ddp'"),
            ({"strategy": 3}, r"strategy is 3 \(int\)"),
            ({"precision": "fp16"}, "precision"),
            ({"devices": "two"}, "two"),
            ({"num_nodes": 0}, "num_nodes"),
            ({"plugins": 3}, "plugins holds 3"),
            ({"callbacks": [Net]}, "callbacks holds the class Net"),
            ({"loggers": 3}, r"loggers is 3 \(int\)(.|\n)*Fix: Fabric\(loggers="),
            ({"max_epochs": 3}, "Fabric got an unknown argument `max_epochs=3`"),
        ],
    )
    def test_wrong_arguments(self, arguments, words):
        with pytest.raises(MisconfigurationException, match=words) as raised:
            L.Fabric(**{"accelerator": "cpu", **arguments})
        assert parts_of(raised)

    def test_set_up_before_launch(self):
        fabric = L.Fabric(accelerator="cpu", devices=2, strategy="ddp")
        for call in (
            lambda: fabric.setup(network()),
            lambda: fabric.setup_dataloaders([1]),
            lambda: fabric.save("a", {}),
        ):
            with pytest.raises(
                MisconfigurationException, match=r"was called before fabric.launch\(\), with 2"
            ) as raised:
                call()
            assert parts_of(raised)

    def test_positional_arguments(self):
        with pytest.raises(ArgumentTypeError, match="Fabric got 1 positional argument"):
            L.Fabric("cpu")


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x)

    def loss(self, x):
        return self(x).square().mean()

    def size(self):
        return sum(parameter.numel() for parameter in self.parameters())


def bypassing(rank, strategy):
    fabric = L.Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    model = fabric.setup(Loss())
    assert model.size() > 0
    try:
        model.loss(torch.ones(2, 6))
        raised = ""
    except MisconfigurationException as error:
        raised = str(error)
    model.mark_forward_method("loss")
    torch.manual_seed(rank)
    fabric.backward(model.loss(torch.randn(2, 6)))
    gradient = model.layer.weight.grad
    gradient = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    several = fabric.setup(Loss())
    evaluated = several.eval()(torch.ones(1, 6)) if strategy == "ddp" else None
    with torch.no_grad():
        model.eval()(torch.ones(1, 6))
    return raised, gradient, evaluated is not None


@pytest.mark.processes
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_method_that_bypasses_the_strategy_is_refused_until_it_is_marked(strategy):
    one, other = ranks(2, bypassing, strategy)
    assert "Loss.loss was called on the wrapped module and calls its layers" in one[0]
    assert "Fix: model.mark_forward_method('loss')" in one[0]
    assert one[1].equal(other[1])


def sharded_norms(rank):
    fabric = L.Fabric(accelerator="cpu", devices=2, strategy="fsdp")
    fabric.launch()
    torch.manual_seed(0)
    model, optimizer = set_up(fabric)
    fabric.backward(model(torch.ones(2, 6) * (rank + 1)).sum())
    try:
        fabric.clip_gradients(model, optimizer, max_norm=1.0, norm_type=1.0)
        raised = ""
    except MisconfigurationException as error:
        raised = str(error)
    return raised, fabric.clip_gradients(model, optimizer, max_norm=1.0)


@pytest.mark.processes
def test_norms_over_shards():
    net = network()
    for scale in (1, 2):
        (net(torch.ones(2, 6) * scale).sum() / 2).backward()
    wanted = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    for raised, norm in ranks(2, sharded_norms):
        assert "got norm_type=1.0, and the parameters are sharded" in raised
        torch.testing.assert_close(norm, wanted)
