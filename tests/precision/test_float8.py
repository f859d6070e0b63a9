"""Float8Precision with a stand-in for torchao, and with torchao's own emulation where it is installed."""

from __future__ import annotations

import copy
import dataclasses
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

import lightlib
from lightlib.callbacks import LambdaCallback
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.precision import Float8Precision, float8, named
from lightlib.report import LightlibWarning
from tests.runs.modules import Regression
from tests.runs.quiet import QUIET

QUIET = {**QUIET, "accelerator": "cpu", "max_epochs": 1}
DATA = [torch.randn(8, 32, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))


class Net(Regression):
    def __init__(self, net=None):
        super().__init__(net or network())

    def loss(self, batch):
        return self.net(batch).float().square().mean()


@dataclasses.dataclass(frozen=True)
class Config:
    recipe: str = "tensorwise"
    emulate: bool = False

    @classmethod
    def from_recipe_name(cls, name):
        return cls(name)


class Linear(nn.Linear):
    """Rounds its input and weight to 8 bits."""

    __module__ = "torchao.float8.float8_linear"

    def forward(self, x):
        weight = self.weight + (self.weight.to(torch.float8_e4m3fn).to(self.weight.dtype) - self.weight).detach()
        return nn.functional.linear(x.to(torch.float8_e4m3fn).to(x.dtype), weight, self.bias)


def convert_to_float8_training(module, *, module_filter_fn=None, config=None):
    for name, part in list(module.named_modules()):
        if isinstance(part, nn.Linear) and module_filter_fn(part, name):
            made = Linear(part.in_features, part.out_features, bias=False, device="meta")
            made.weight, made.bias, made.config = part.weight, part.bias, config
            module.get_submodule(name.rpartition(".")[0]).add_module(name.rpartition(".")[2], made)
    return module


@pytest.fixture
def stand_in(monkeypatch):
    root, package = ModuleType("torchao"), ModuleType("torchao.float8")
    package.Float8LinearConfig, package.convert_to_float8_training = Config, convert_to_float8_training
    root.float8 = package
    monkeypatch.setitem(sys.modules, "torchao", root)
    monkeypatch.setitem(sys.modules, "torchao.float8", package)


@pytest.fixture
def torchao():
    """Torchao's part for 8-bit floats; the test is skipped without it."""
    return pytest.importorskip("torchao.float8", reason="torchao is not installed")


def test_without_the_package(monkeypatch):
    for name in ("torchao", "torchao.float8"):
        monkeypatch.setitem(sys.modules, name, None)
    for make in (Float8Precision, lambda: lightlib.Trainer(**QUIET, precision="fp8-mixed")):
        with pytest.raises(
            MisconfigurationException, match=r"torchao, which is not installed(.|\n)*pip install 'torchao>="
        ):
            make()


@pytest.mark.usefixtures("stand_in")
class TestInterface:
    def test_names(self):
        mixed, true = named("fp8-mixed"), named("fp8-true")
        assert (mixed.param_dtype, mixed.compute_dtype, mixed.autocasts) == (torch.float32, torch.bfloat16, True)
        assert (true.param_dtype, true.compute_dtype, true.converts_input) == (torch.bfloat16, torch.bfloat16, True)

    @pytest.mark.parametrize("recipe", float8.RECIPES)
    def test_layers_are_replaced_and_keep_their_parameters(self, recipe):
        module = Net()
        before, state = list(module.parameters()), list(module.state_dict())
        precision = Float8Precision(recipe=recipe, emulate=True)
        assert precision.convert(module) is module
        assert [type(part) for part in module.net] == [Linear, nn.ReLU, Linear]
        assert module.net[0].config == Config(recipe, emulate=True)
        assert all(one is two for one, two in zip(before, module.parameters(), strict=True))
        assert list(module.state_dict()) == state
        first = module.net[0]
        assert precision.convert(module).net[0] is first  # a second fit

    def test_a_config_of_torchao_is_passed_on(self):
        config = Config("mine", emulate=True)
        precision = Float8Precision(recipe=config)
        assert precision.convert(Net()).net[0].config is config
        assert precision.emulate
        with pytest.raises(MisconfigurationException, match="got emulate=True, and a recipe with emulate=False"):
            Float8Precision(recipe=Config(), emulate=True)

    def test_chosen_layers(self):
        module = Float8Precision(ignore_modules=["net.2"], emulate=True).convert(Net())
        assert [type(part) for part in module.net] == [Linear, nn.ReLU, nn.Linear]
        with pytest.raises(MisconfigurationException, match=r"(?s)'head', which matches no module.*net\.0, net\.2"):
            Float8Precision(ignore_modules=["head"], emulate=True).convert(Net())

    def test_layers_that_do_not_fit(self):
        module = Net(nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 5)))
        with pytest.warns(LightlibWarning, match=r"16 does not divide their sizes: net\.1 \(32 to 5\)"):
            Float8Precision(emulate=True).convert(module)
        assert [type(part) for part in module.net] == [Linear, nn.Linear]
        with pytest.raises(ArgumentTypeError, match="Net, which has no linear layer that fits"):
            Float8Precision(emulate=True).convert(Net(nn.Sequential(nn.Linear(3, 5))))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_a_run_has_the_bits_of_a_loop(self, dtype):
        module = Net()
        trainer = lightlib.Trainer(**QUIET, plugins=[Float8Precision(dtype, emulate=True)])
        trainer.fit(module, DATA)
        plain = convert_to_float8_training(network(), module_filter_fn=lambda *_: True)
        compare(module.net, plain, dtype)

    @pytest.mark.parametrize("name", ["fp8-mixed", "fp8-true"])
    def test_a_cpu_is_refused_before_training(self, name):
        with pytest.raises(MisconfigurationException, match=r"(?s)device 'cpu', which cannot.*8\.9.*emulate=True"):
            lightlib.Trainer(**QUIET, precision=name)

    @pytest.mark.parametrize("strategy", ["fsdp", "tensor", "pipeline"])
    def test_strategies_that_shard_are_refused(self, strategy):
        with pytest.raises(
            MisconfigurationException, match=r"precision='fp8-mixed' was given with .*shards or divides"
        ):
            lightlib.Trainer(**QUIET, strategy=strategy, devices=2, plugins=[Float8Precision(emulate=True)])

    def test_a_gpu_that_is_too_old_is_refused(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
        precision = Float8Precision()
        precision.check_strategy(SimpleNamespace(keeps_layers=True, root_device=torch.device("cuda")))
        with pytest.raises(MisconfigurationException, match=r"(?s)a GPU of capability 8\.0, which cannot.*H100"):
            precision.convert(Net())
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
        assert type(precision.convert(Net()).net[0]) is Linear

    def test_what_is_refused(self):
        with pytest.raises(ArgumentTypeError, match=r"weights_dtype=torch\.float16"):
            Float8Precision(torch.float16)
        with pytest.raises(UnknownNameError, match=r"recipe of Float8Precision 'rows'\. Did you mean 'rowwise'\?"):
            Float8Precision(recipe="rows")
        with pytest.raises(ArgumentTypeError, match=r"recipe=3 \(int\)"):
            Float8Precision(recipe=3)
        with pytest.raises(ArgumentTypeError, match=r"ignore_modules=\[3\]"):
            Float8Precision(ignore_modules=[3])


def compare(ours, plain, dtype):
    """Train `plain` in a loop, and compare the bits of both networks."""
    plain = plain.to(dtype)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for x in DATA:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.float32):
            loss = plain(x.to(dtype)).float().square().mean()
        loss.backward()
        optimizer.step()
    assert [parameter.dtype for parameter in ours.parameters()] == [dtype] * 4
    for one, two in zip(ours.parameters(), plain.parameters(), strict=True):
        assert one.equal(two)


@pytest.mark.filterwarnings("ignore")  # torchao's own, of its parts for other hardware
class TestEmulation:
    @pytest.mark.parametrize("recipe", float8.RECIPES)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_a_run_has_the_bits_of_a_loop_with_torchao(self, torchao, dtype, recipe):
        module = Net()
        precision = Float8Precision(dtype, recipe, emulate=True)
        if dtype is torch.float32 and recipe == "rowwise_with_gw_hp":
            with pytest.raises(MisconfigurationException, match="torchao heeds autocast on CUDA only"):
                lightlib.Trainer(**QUIET, plugins=[precision])
            return
        lightlib.Trainer(**QUIET, plugins=[precision]).fit(module, DATA)
        config = dataclasses.replace(torchao.Float8LinearConfig.from_recipe_name(recipe), emulate=True)
        compare(module.net, torchao.convert_to_float8_training(network(), config=config), dtype)
        assert not Net().net[0].weight.equal(module.net[0].weight)

    def test_checkpoints_are_those_of_other_precisions(self, torchao, tmp_path):
        saves = LambdaCallback(
            on_train_batch_end=lambda trainer, *_: trainer.save_checkpoint(tmp_path / f"{trainer.global_step}.ckpt")
        )
        precision = Float8Precision(emulate=True)
        whole, resumed = Net(), Net()
        lightlib.Trainer(**QUIET, plugins=[precision], callbacks=[saves]).fit(whole, DATA)
        lightlib.Trainer(**QUIET, plugins=[precision]).fit(resumed, DATA, ckpt_path=tmp_path / "2.ckpt")
        assert all(one.equal(two) for one, two in zip(whole.parameters(), resumed.parameters(), strict=True))
        other = Net()
        other.load_state_dict(torch.load(tmp_path / "4.ckpt", weights_only=True)["state_dict"])
        x = DATA[0]
        torch.testing.assert_close(copy.deepcopy(whole).net(x), other.net(x), rtol=0.2, atol=0.05)
        assert not whole.net(x).equal(other.net(x))
