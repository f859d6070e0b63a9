"""Strategies of Fabric's kind: refusals before training, sharded modules, several modules."""

from __future__ import annotations

import pytest
import torch

from lightlib.errors import MisconfigurationException
from tests.processes.ranks import ranks

ONE = {"accelerator": "cpu", "devices": 1}


class TestRefused:
    @pytest.mark.parametrize(
        "name",
        ["training_step", "on_train_start", "pre_backward", "setup", "model_to_device", "module_sharded_context"],
    )
    def test_a_method_that_a_fabric_does_not_call_is_an_error_when_it_is_made(self, name):
        from lightning.fabric import Fabric
        from lightning.fabric.strategies import SingleDeviceStrategy

        kind = type("Mine", (SingleDeviceStrategy,), {name: lambda self, *args: None})
        with pytest.raises(MisconfigurationException, match=f"Mine overrides `{name}`"):
            Fabric(strategy=kind(), **ONE)

    def test_a_precision_for_trainers(self):
        from lightning.fabric import Fabric
        from lightning.fabric.plugins import Precision

        class Scaled(Precision):
            def backward(self, tensor, model, optimizer, *args, **kwargs):
                super().backward(tensor * 2, model, optimizer)

        with pytest.raises(MisconfigurationException, match="Scaled overrides `backward`"):
            Fabric(plugins=[Scaled()], **ONE)

    def test_a_control_of_gradients_for_shards(self):
        from lightning.fabric import Fabric
        from lightning.fabric.strategies import FSDPStrategy

        class Controlled(FSDPStrategy):
            def __init__(self):
                super().__init__()
                self._backward_sync_control = object()

        with pytest.raises(MisconfigurationException, match="Controlled overrides `_backward_sync_control`"):
            Fabric(strategy=Controlled(), **ONE)

    def test_methods_of_a_sharding_strategy_outside_of_a_fabric(self):
        from lightning.fabric.strategies import DDPStrategy, FSDPStrategy

        module = torch.nn.Linear(1, 1)
        with pytest.raises(RuntimeError, match="get_module_state_dict was called outside of a Fabric"):
            FSDPStrategy().get_module_state_dict(module)
        assert DDPStrategy().setup_module(module) is module


def test_the_precision_of_a_strategy_is_that_of_the_fabric():
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import DoublePrecision
    from lightning.fabric.strategies import SingleDeviceStrategy

    fabric = Fabric(strategy=SingleDeviceStrategy(precision=DoublePrecision()), **ONE)
    assert fabric.setup(torch.nn.Linear(1, 1)).weight.dtype == torch.float64


def test_each_of_several_modules_is_set_up_by_the_users_strategy():
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import SingleDeviceStrategy

    class Counting(SingleDeviceStrategy):
        def __init__(self):
            super().__init__()
            self.calls = []

        def setup_module(self, module):
            self.calls.append(type(module).__name__)
            return super().setup_module(module)

        def get_module_state_dict(self, module):
            self.calls.append(f"state of {type(module).__name__}")
            return super().get_module_state_dict(module)

        def setup_environment(self):
            self.calls.append("environment")
            super().setup_environment()

    strategy = Counting()
    fabric = Fabric(strategy=strategy, **ONE)
    first, second = fabric.setup(torch.nn.Linear(1, 1)), fabric.setup(torch.nn.PReLU())
    fabric.save("both.ckpt", {"first": first, "second": second})
    assert strategy.calls == ["environment", "Linear", "PReLU", "state of Linear", "state of PReLU"]
    assert sorted(torch.load("both.ckpt")["first"]) == ["bias", "weight"]


def test_a_strategy_without_a_control_warns_that_it_reduces_gradients():
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import Strategy

    class Scratch(Strategy):
        def module_to_device(self, module):
            module.to("cpu")

    fabric = Fabric(strategy=Scratch(), **ONE)
    model = fabric.setup(torch.nn.Linear(1, 1))
    with pytest.warns(UserWarning, match="Scratch reduces gradients"), fabric.no_backward_sync(model):
        pass


@pytest.mark.filterwarnings("ignore:.*computes in float16 on the CPU")
def test_a_loss_scaler_unscales_before_the_users_clipping():
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import SingleDeviceStrategy

    seen = []

    class Clipping(SingleDeviceStrategy):
        def clip_gradients_value(self, module, optimizer, clip_val):
            seen.append(module.weight.grad.item())
            super().clip_gradients_value(module, optimizer, clip_val)

    fabric = Fabric(strategy=Clipping(), precision="16-mixed", **ONE)
    module = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(module.weight)
    model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.5))
    fabric.backward(model(torch.ones(1, 1)).sum() / 4)  # float16 holds a quarter of the scale
    fabric.clip_gradients(model, optimizer, clip_val=0.125)
    optimizer.step()
    assert (seen, module.weight.item()) == ([0.25], 1 - 0.5 * 0.125)


def _sharded(rank):
    from lightlib import compat

    compat.install()
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import FSDPStrategy

    class Halved(FSDPStrategy):
        def __init__(self):
            super().__init__()
            self.calls = []

        def setup_module(self, module):
            self.calls.append("setup_module")
            with torch.no_grad():
                module.weight.fill_(2.0)
            return super().setup_module(module)

        def backward(self, tensor, module, *args, **kwargs):
            self.calls.append("backward")
            super().backward(tensor / 2, module, *args, **kwargs)

        def get_module_state_dict(self, module):
            self.calls.append("state")
            return super().get_module_state_dict(module)

    class Without(FSDPStrategy):
        def setup_module(self, module):
            return module

    strategy, module = Halved(), torch.nn.Linear(4, 4, bias=False)
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    model = fabric.setup_module(module)
    optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.5))
    for i in range(3):
        optimizer.zero_grad()
        fabric.backward(model(torch.full((1, 4), float(rank + 1 + i))).mean())
        fabric.clip_gradients(model, optimizer, max_norm=0.25)
        optimizer.step()
    fabric.save("../sharded.ckpt" if rank else "sharded.ckpt", {"model": model})
    written = torch.load("sharded.ckpt")["model"]["weight"].tolist() if rank == 0 else None
    refused = Fabric(accelerator="cpu", devices=2, strategy=Without())
    refused.launch()
    try:
        refused.setup(torch.nn.Linear(4, 4))
    except MisconfigurationException as error:
        return strategy.calls, written, str(error)
    return None


@pytest.mark.processes
def test_a_sharded_module_is_placed_by_super_and_computes_as_a_plain_loop():
    weight = torch.full((4, 4), 2.0)
    for i in range(3):
        gradient = sum(torch.full((4, 4), (rank + 1 + i) / 4 / 2) for rank in range(2)) / 2
        weight -= 0.5 * gradient * min(1.0, 0.25 / (gradient.norm().item() + 1e-6))
    found = ranks(2, _sharded)
    for calls, _, error in found:
        assert calls == ["setup_module", *["backward"] * 3, "state"]
        assert "Without has set up a Linear without lightlib" in error
    assert torch.allclose(torch.tensor(found[0][1]), weight, atol=1e-6)
