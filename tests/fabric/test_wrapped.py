"""Setting up modules and optimizers, and the wrapped ones."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import lightlib as L
from lightlib.fabric import is_wrapped
from tests.processes.ranks import ranks
from tests.runs.plain import Net, network


@pytest.fixture
def fabric():
    return L.Fabric(accelerator="cpu", devices=1)


def sgd(module, **options):
    return torch.optim.SGD(module.parameters(), **{"lr": 0.1, **options})


class Odd(nn.Module):
    """Has an attribute, a buffer, keyword arguments and several outputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.factor = 3

    def forward(self, x, *, scale=1.0, parts=None):
        self.seen += 1
        return {"out": self.layer(x) * scale, "parts": parts, "n": 2}

    def loss(self, x):
        return self(x)["out"].sum()

    @property
    def doubled(self):
        return self.factor * 2


class TestModule:
    def test_it_has_the_modules_names_and_objects(self, fabric):
        net = Odd()
        model = fabric.setup(net)
        assert is_wrapped(model)
        assert not is_wrapped(net)
        assert model.module is net
        assert [name for name, _ in model.named_parameters()] == ["layer.weight", "layer.bias"]
        assert [name for name, _ in model.named_modules()] == ["", "layer"]
        assert model.layer is net.layer
        assert all(one is other for one, other in zip(model.parameters(), net.parameters(), strict=True))
        assert model.state_dict().keys() == net.state_dict().keys() == {"layer.weight", "layer.bias"}

    def test_attributes_are_read_from_and_written_to_the_module(self, fabric):
        net = Odd()
        model = fabric.setup(net)
        assert (model.factor, model.doubled) == (3, 6)
        model.factor, model.new = 4, nn.Linear(1, 1)
        assert (net.factor, model.doubled) == (4, 8)
        assert model.new is net.new
        del model.factor
        assert not hasattr(net, "factor")
        with pytest.raises(AttributeError, match="'Odd' object has no attribute 'absent'"):
            model.absent  # noqa: B018

    def test_a_module_keeps_its_mode(self, fabric):
        model = fabric.setup(Odd().eval())
        assert not model.training
        model.training = True
        assert [part.training for part in (model.module, model.layer)] == [True, False]

    def test_modes(self, fabric):
        net = Odd()
        model = fabric.setup(net)
        assert model.eval() is model
        assert [part.training for part in (net, net.layer, model)] == [False] * 3
        model.train()
        assert net.training
        model.requires_grad_(False)
        assert not net.layer.weight.requires_grad
        assert model.double().layer.weight.dtype is torch.float64

    def test_keywords_and_nested_outputs(self, fabric):
        net = Odd()
        output = fabric.setup(net)(torch.ones(1, 2), scale=2.0, parts=["a"])
        assert output["out"].equal(net.layer(torch.ones(1, 2)) * 2)
        assert (output["parts"], output["n"], float(net.seen)) == (["a"], 2, 1.0)

    def test_hooks_are_called_once(self, fabric):
        net, calls = Odd(), []
        net.register_forward_hook(lambda *_: calls.append("module"))
        model = fabric.setup(net)
        model.register_forward_hook(lambda *_: calls.append("wrapper"))
        model(torch.ones(1, 2))
        assert calls == ["module", "wrapper"]

    def test_states_are_loaded(self, fabric):
        model, other = fabric.setup(Odd()), Odd()
        model.load_state_dict(other.state_dict())
        assert model.layer.weight.equal(other.layer.weight)
        with pytest.raises(RuntimeError, match="Missing key"):
            model.load_state_dict({})
        assert model.load_state_dict({}, strict=False).missing_keys == ["layer.weight", "layer.bias"]

    def test_steps_of_a_module_run_in_the_precision(self):
        fabric = L.Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
        model = fabric.setup(Net())
        kinds = []
        model.net[0].register_forward_hook(lambda *args: kinds.append(args[-1].dtype))
        loss = model.training_step((torch.ones(2, 6), torch.zeros(2, dtype=torch.int64)), 0)
        assert kinds == [torch.bfloat16]
        assert loss.dtype is torch.float32

    def test_marked_methods_run_in_the_precision(self):
        fabric = L.Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
        model = fabric.setup(Odd())
        assert model.layer(torch.ones(1, 2)).dtype is torch.float32
        model.mark_forward_method(model.module.loss)
        seen = []
        model.layer.register_forward_hook(lambda *args: seen.append(args[-1].dtype))
        model.loss(torch.ones(1, 2))
        assert seen == [torch.bfloat16]

    @pytest.mark.parametrize(("precision", "inside"), [("bf16-true", torch.bfloat16), ("64-true", torch.float64)])
    def test_true_precisions_convert_inputs_and_outputs(self, precision, inside):
        model = L.Fabric(accelerator="cpu", devices=1, precision=precision).setup(nn.Linear(2, 1))
        seen = []
        model.module.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
        assert model(torch.ones(1, 2)).dtype is torch.float32
        assert seen == [inside]
        assert model.weight.dtype is inside

    def test_a_compiled_module_is_compiled_again(self, fabric):
        compiled = []

        def backend(graph, inputs):
            compiled.append(graph)
            return graph

        net = nn.Linear(2, 1)
        model = fabric.setup(torch.compile(net, backend=backend))
        assert model.module is net
        assert model(torch.ones(1, 2)).equal(net(torch.ones(1, 2)))
        assert len(compiled) == 1
        plain = fabric.setup(torch.compile(nn.Linear(2, 1), backend=backend), _reapply_compile=False)
        plain(torch.ones(1, 2))
        assert len(compiled) == 1


class TestOptimizer:
    def test_it_is_the_users(self, fabric):
        net = network()
        given = sgd(net, momentum=0.9)
        _, optimizer = fabric.setup(net, given)
        assert optimizer.optimizer is given
        assert isinstance(optimizer, torch.optim.SGD)
        assert optimizer.param_groups is given.param_groups
        optimizer.param_groups[0]["lr"] = 0.5
        assert given.state_dict() == optimizer.state_dict()

    def test_schedules_take_either(self, fabric):
        net = network()
        given = sgd(net)
        schedule = torch.optim.lr_scheduler.StepLR(given, 1, 0.5)
        model, optimizer, returned = fabric.setup(net, given, scheduler=schedule)
        other = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        assert returned is schedule
        fabric.backward(model(torch.ones(1, 6)).sum())
        optimizer.step()
        schedule.step()
        other.step()
        assert given.param_groups[0]["lr"] == pytest.approx(0.025)

    def test_closures(self, fabric):
        net = network()
        plain = copy.deepcopy(net)
        reference = torch.optim.LBFGS(plain.parameters(), lr=0.1)
        model, optimizer = fabric.setup(net, torch.optim.LBFGS(net.parameters(), lr=0.1))

        def closure(model, optimizer, backward):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 6)).square().sum()
            backward(loss)
            return loss

        ours = optimizer.step(lambda: closure(model, optimizer, fabric.backward))
        theirs = reference.step(lambda: closure(plain, reference, torch.Tensor.backward))
        assert ours.equal(theirs)
        assert all(a.equal(b) for a, b in zip(net.parameters(), plain.parameters(), strict=True))

    def test_gradients_set_to_zero(self, fabric):
        net = network()
        model, optimizer = fabric.setup(net, sgd(net))
        fabric.backward(model(torch.ones(1, 6)).sum())
        optimizer.zero_grad(set_to_none=False)
        assert not net[0].weight.grad.any()
        optimizer.zero_grad()
        assert net[0].weight.grad is None

    def test_several_optimizers_and_modules_of_one(self, fabric):
        one, other = nn.Linear(2, 2), nn.Linear(2, 1)
        first, *both = fabric.setup(one, torch.optim.SGD([one.weight], 0.1), torch.optim.Adam([one.bias]))
        second = fabric.setup_module(other)
        joint = fabric.setup_optimizers(torch.optim.SGD([*one.parameters(), *other.parameters()], 0.1))
        fabric.backward(second(first(torch.ones(1, 2))).sum())
        before = one.weight.clone(), other.weight.clone()
        for optimizer in (*both, joint):
            optimizer.step()
        assert not one.weight.equal(before[0])
        assert not other.weight.equal(before[1])

    def test_after_each_step_callbacks_are_called(self):
        class Counts:
            steps = 0

            def on_after_optimizer_step(self, optimizer):
                self.steps += 1

            def on_after_setup(self, module):
                self.module = module

        counts = Counts()
        fabric = L.Fabric(accelerator="cpu", devices=1, callbacks=counts)
        net = network()
        model, optimizer = fabric.setup(net, sgd(net))
        fabric.backward(model(torch.ones(1, 6)).sum())
        optimizer.step()
        assert counts.steps == 1
        assert counts.module is model


def test_an_empty_start(fabric):
    with fabric.init_module(empty_init=True):
        torch.manual_seed(1)
        nn.Linear(3, 3)
        after = torch.rand(1)
    torch.manual_seed(1)
    assert after.equal(torch.rand(1))  # nothing was drawn for the weights
    with fabric.init_tensor():
        assert torch.ones(1).dtype is torch.float32
    with fabric.sharded_model():
        assert nn.Linear(1, 1).weight.device.type == "cpu"


def two_modules(rank, strategy):
    """A maker and a judge, each with an optimizer, and accumulation for one of them."""
    fabric = L.Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    torch.manual_seed(0)
    maker, judge = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    maker, of_maker = fabric.setup(maker, sgd(maker, momentum=0.9))
    judge, of_judge = fabric.setup(judge, sgd(judge))
    for step in range(4):
        x = torch.full((2, 2), 0.1 * (rank + 1) + step)
        fabric.backward(judge(maker(x).detach()).square().mean())
        of_judge.step()
        of_judge.zero_grad()
        with fabric.no_backward_sync(maker, enabled=step % 2 == 0):
            fabric.backward(judge(maker(x)).mean() / 2)
        of_judge.zero_grad()
        if step % 2:
            of_maker.step()
            of_maker.zero_grad()
    fabric.save("both.ckpt", {"maker": maker, "judge": judge, "of_maker": of_maker})
    return torch.load("both.ckpt") if rank == 0 else None


@pytest.mark.processes
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero1"])
def test_two_modules_train_as_on_one_device(strategy):
    torch.manual_seed(0)
    maker, judge = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    of_maker, of_judge = sgd(maker, momentum=0.9), sgd(judge)
    for step in range(4):
        x = torch.cat([torch.full((2, 2), 0.1 * (rank + 1) + step) for rank in range(2)])
        judge(maker(x).detach()).square().mean().backward()
        of_judge.step()
        of_judge.zero_grad()
        (judge(maker(x)).mean() / 2).backward()
        of_judge.zero_grad()
        if step % 2:
            of_maker.step()
            of_maker.zero_grad()
    found = ranks(2, two_modules, strategy)[0]
    for name, net in (("maker", maker), ("judge", judge)):
        for key, value in net.state_dict().items():
            torch.testing.assert_close(found[name][key], value, rtol=1e-5, atol=1e-6)
    momentum = found["of_maker"]["state"][0]["momentum_buffer"]
    torch.testing.assert_close(momentum, of_maker.state[maker.weight]["momentum_buffer"], rtol=1e-5, atol=1e-6)


def joint(rank, strategy):
    """One optimizer of two modules; return its state after a step, and after it was saved and loaded."""
    fabric = L.Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    torch.manual_seed(0)
    encoder, decoder = fabric.setup_module(nn.Linear(2, 3)), fabric.setup_module(nn.Linear(3, 1))
    both = [*encoder.parameters(), *decoder.parameters()]
    try:
        optimizer = fabric.setup_optimizers(torch.optim.SGD(both, 0.1, momentum=0.9))
    except L.errors.MisconfigurationException as error:
        return str(error)
    fabric.backward(decoder(encoder(torch.full((2, 2), rank + 1.0))).mean())
    optimizer.step()
    path = f"joint{rank}.ckpt"
    fabric.save(path, {"optimizer": optimizer})
    state = optimizer.state_dict()
    return [entry["momentum_buffer"] for entry in state["state"].values()] if state else None


@pytest.mark.processes
def test_one_optimizer_of_two_modules():
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(2, 3), nn.Linear(3, 1)
    x = torch.cat([torch.full((2, 2), rank + 1.0) for rank in range(2)])
    decoder(encoder(x)).mean().backward()
    wanted = [parameter.grad for parameter in (*encoder.parameters(), *decoder.parameters())]
    for found in (*ranks(2, joint, "ddp"), ranks(2, joint, "zero1")[0]):
        torch.testing.assert_close(found, wanted)
    for refused in ranks(2, joint, "fsdp"):
        assert (
            "SGD has the parameters of several modules, which the strategy fsdp (shard 2) shards one by one" in refused
        )


def test_a_module_that_is_set_up_has_a_device_and_a_dtype():
    fabric = L.Fabric(accelerator="cpu", precision="bf16-true")
    model = fabric.setup(nn.Linear(2, 2))
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.bfloat16)
    empty = L.Fabric(accelerator="cpu").setup(nn.Identity())
    assert (empty.device, empty.dtype) == (torch.device("cpu"), torch.float32)
    assert model.to(torch.float64).dtype is torch.float64

    class Own(nn.Linear):
        device = "the user's"

    assert L.Fabric(accelerator="cpu").setup(Own(1, 1)).device == "the user's"
