"""Strategies of Fabric's kind on their own: files, states and contexts without a Fabric or a Trainer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightlib.errors import ArgumentTypeError, CheckpointError

NAMES = ("SingleDeviceStrategy", "DDPStrategy")


def trained(lr=0.25):
    """Return a module and an optimizer with a state."""
    module = nn.Linear(2, 1, bias=False)
    nn.init.constant_(module.weight, 2.0)
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, momentum=0.5)
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return module, optimizer


def strategy(name="SingleDeviceStrategy", **kwargs):
    from lightning.fabric import strategies

    return getattr(strategies, name)(**kwargs)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_has_the_states_of_torch(name, tmp_path):
    module, optimizer = trained()
    strategy(name).save_checkpoint(tmp_path / "a.ckpt", {"model": module, "optimizer": optimizer, "step": 3})
    found = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert sorted(found) == ["model", "optimizer", "step"]
    assert found["model"]["weight"].tolist() == [[1.75, 1.75]]
    assert found["optimizer"]["state"][0]["momentum_buffer"].tolist() == [[1.0, 1.0]]
    assert found["step"] == 3


@pytest.mark.parametrize("name", NAMES)
def test_objects_are_restored_and_the_rest_is_returned(name, tmp_path):
    module, optimizer = trained()
    content = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": 3, "note": "n"}
    torch.save(content, tmp_path / "a.ckpt")
    other, fresh = nn.Linear(2, 1, bias=False), None
    fresh = torch.optim.SGD(other.parameters(), lr=9.0)
    state = {"model": other, "optimizer": fresh, "step": 0}
    assert strategy(name).load_checkpoint(tmp_path / "a.ckpt", state=state) == {"note": "n"}
    assert (other.weight.tolist(), fresh.param_groups[0]["lr"], state["step"]) == ([[1.75, 1.75]], 0.25, 3)
    assert strategy(name).load_checkpoint(path=tmp_path / "a.ckpt")["step"] == 3


def test_a_file_of_one_module_or_optimizer(tmp_path):
    module, optimizer = trained()
    torch.save(module.state_dict(), tmp_path / "model.pt")
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    other = nn.Linear(2, 1, bias=False)
    assert strategy().load_checkpoint(tmp_path / "model.pt", other) == {}
    assert other.weight.tolist() == [[1.75, 1.75]]
    fresh = torch.optim.SGD(other.parameters(), lr=9.0)
    assert strategy().load_checkpoint(tmp_path / "optimizer.pt", state=fresh) == {}
    assert fresh.param_groups[0]["lr"] == 0.25


def test_a_file_of_a_fabric(tmp_path):
    from lightning.fabric import Fabric

    module, _ = trained()
    fabric = Fabric(accelerator="cpu", devices=1)
    wrapped = fabric.setup(module)
    fabric.save(tmp_path / "a.ckpt", {"model": wrapped, "step": 3})
    other, state = nn.Linear(2, 1, bias=False), {"step": 0}
    assert strategy().load_checkpoint(tmp_path / "a.ckpt", {**state, "model": other}) == {}
    assert other.weight.tolist() == [[1.75, 1.75]]


def test_filters_choose_entries(tmp_path):
    module, _ = trained()
    model = nn.Sequential(module, nn.Linear(1, 1))
    chosen = {"model": lambda name, value: name.startswith("0.")}
    strategy().save_checkpoint(tmp_path / "a.ckpt", {"model": model}, filter=chosen)
    assert list(torch.load(tmp_path / "a.ckpt", weights_only=True)["model"]) == ["0.weight"]


def test_mistakes_have_errors_with_a_fix(tmp_path):
    module, _ = trained()
    torch.save({"model": module.state_dict()}, tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match=r"has no entry 'modle'.*'model'"):
        strategy().load_checkpoint(tmp_path / "a.ckpt", {"modle": module})
    assert "model" in strategy().load_checkpoint(tmp_path / "a.ckpt", {"modle": module}, strict=False)
    with pytest.raises(ArgumentTypeError, match="got a Linear as the state"):
        strategy().save_checkpoint(tmp_path / "b.ckpt", module)
    with pytest.raises(RuntimeError, match="save_checkpoint was called outside of a Fabric"):
        strategy("FSDPStrategy").save_checkpoint(tmp_path / "b.ckpt", {"model": module})


def test_states_and_clipping_on_plain_modules():
    module, optimizer = trained()
    one = strategy("DDPStrategy")
    assert one.get_module_state_dict(module)["weight"].tolist() == [[1.75, 1.75]]
    assert one.get_optimizer_state(optimizer)["param_groups"][0]["lr"] == 0.25
    one.load_module_state_dict(module, {"weight": torch.zeros(1, 2)})
    assert module.weight.tolist() == [[0.0, 0.0]]
    module.weight.grad = torch.tensor([[3.0, 4.0]])
    assert one.clip_gradients_norm(module, optimizer, max_norm=1.0).item() == 5.0
    assert module.weight.grad[0].tolist() == pytest.approx([0.6, 0.8])
    one.clip_gradients_value(module, optimizer, clip_val=0.5)
    assert module.weight.grad[0].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("name", [*NAMES, "FSDPStrategy"])
def test_contexts_have_the_dtype_of_the_precision(name):
    from lightning.fabric.plugins import HalfPrecision

    half = strategy(name, precision=HalfPrecision("bf16-true"))
    for context in (half.module_init_context, half.tensor_init_context):
        with context():
            assert (nn.Linear(1, 1).weight.dtype, torch.zeros(1).dtype) == (torch.bfloat16, torch.bfloat16)
    with strategy(name).module_init_context():
        assert nn.Linear(1, 1).weight.dtype == torch.float32


def test_contexts_have_the_device_of_the_strategy():
    for one in (
        strategy("SingleDeviceStrategy", device=torch.device("meta")),
        strategy("DDPStrategy", parallel_devices=[torch.device("meta")]),
    ):
        assert one.root_device.type == "meta"
        with one.module_init_context(empty_init=True):
            assert nn.Linear(1, 1).weight.device.type == "meta"
        with one.tensor_init_context():
            assert torch.zeros(1).device.type == "meta"


def test_a_strategy_of_a_trainer_outside_of_one():
    """N16: the precision is the one of the argument, and the device that of the strategy."""
    from lightning.pytorch.plugins import DoublePrecision
    from lightning.pytorch.strategies import SingleDeviceStrategy

    single = SingleDeviceStrategy(device=torch.device("cpu"), precision_plugin=DoublePrecision())
    with single.tensor_init_context():
        assert torch.zeros(1).dtype == torch.float64
    assert torch.zeros(1).dtype == torch.float32
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    with single.tensor_init_context(empty_init=True):
        nn.Linear(2, 2)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_a_plain_loop(name):
    one = strategy(name)
    module = nn.Linear(2, 1, bias=False)
    nn.init.constant_(module.weight, 2.0)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    batch = one.batch_to_device(torch.ones(1, 2))
    one.module_to_device(module)
    assert one.backward(module(batch).sum(), module) is None
    one.optimizer_step(optimizer)
    assert module.weight.tolist() == [[1.5, 1.5]]

    def closure():
        optimizer.zero_grad()
        loss = module(batch).sum()
        loss.backward()
        return loss

    assert one.optimizer_step(optimizer, closure).item() == 3.0
    assert module.weight.tolist() == [[1.0, 1.0]]
    one.teardown()


def test_parts_that_a_trainer_would_connect():
    from lightning.pytorch.accelerators import CPUAccelerator
    from lightning.pytorch.plugins import DoublePrecision
    from lightning.pytorch.plugins.environments import LightningEnvironment
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

    given, environment, precision = CPUAccelerator(), LightningEnvironment(), DoublePrecision()
    cpu = torch.device("cpu")
    ddp = DDPStrategy(given, [cpu, cpu], environment, precision_plugin=precision)
    assert (ddp.accelerator, ddp.cluster_environment, ddp.precision_plugin) == (given, environment, precision)
    assert (ddp.parallel_devices, ddp.num_processes, ddp.num_nodes) == ([cpu, cpu], 2, 1)
    assert type(SingleDeviceStrategy("cpu").accelerator) is CPUAccelerator
    module = nn.Linear(1, 1)
    ddp.connect(module)
    assert ddp.model is module
    assert list(ddp.lightning_module_state_dict()) == ["weight", "bias"]
    with pytest.raises(AttributeError, match="'DDPStrategy' object has no attribute 'acelerator'"):
        _ = ddp.acelerator


def test_what_was_read_before_does_not_bind_a_trainer():
    import lightning.pytorch as pl
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.strategies import SingleDeviceStrategy

    single = SingleDeviceStrategy()
    assert single.precision_plugin.precision == "32-true"
    _ = single.accelerator, single.cluster_environment
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(strategy=single, accelerator="cpu", precision="64-true", fast_dev_run=2, **quiet)
    module = BoringModel().double()
    trainer.fit(module)
    assert (trainer.precision, trainer.strategy.precision_plugin.precision) == ("64-true", "64-true")
    assert trainer.global_step == 2
