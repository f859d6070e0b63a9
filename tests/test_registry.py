"""Names to classes: built in, from installed packages, unknown, and taken."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
import torch

from lightlib import registry
from lightlib.accelerators import CPUAccelerator
from lightlib.core.trainer import Trainer
from lightlib.errors import MisconfigurationException, UnknownNameError
from lightlib.precision import Precision
from lightlib.strategies.single import SingleDeviceStrategy
from lightlib.strategies.strategy import Strategy
from tests.core.plain import QUIET, Net, batches, quiet_trainer, same_weights


@pytest.fixture
def installed(monkeypatch):
    """Declare entry points as installed packages would: ``installed(strategies={"mine": "package:Class"})``."""
    declared = []

    def declare(**groups):
        declared.extend(
            EntryPoint(name, value, f"lightlib.{group}") for group, points in groups.items() for name, value in points
        )
        find = lambda group: [point for point in declared if point.group == group]  # noqa: E731  one place to patch
        monkeypatch.setattr(registry, "entry_points", find)
        monkeypatch.setattr("lightlib.core.resolve.entry_points", find)

    return declare


class Elsewhere(CPUAccelerator):
    """The CPU under another name."""

    @staticmethod
    def name():
        return "elsewhere"

    def describe(self, device):
        return "a machine elsewhere"


class Counting(Strategy):
    """A strategy of a third party: one device, and it counts the calls of its batches."""

    def __init__(self):
        self.inner = SingleDeviceStrategy()
        self.collectives = self.inner.collectives
        self.count = 0

    root_device = property(lambda self: self.inner.root_device)

    def connect(self, accelerator, devices, precision, environment):
        super().connect(accelerator, devices, precision, environment)
        self.inner.connect(accelerator, devices, precision, environment)

    def setup_environment(self):
        self.inner.setup_environment()

    def setup(self, module, steps):
        self.inner.setup(module, steps)
        for name in steps:
            setattr(self, name, getattr(self.inner, name))

    def forward_backward(self, batch, batch_idx, backward, sync):
        self.count += 1
        return self.inner.forward_backward(batch, batch_idx, backward, sync)

    def init_context(self):
        return self.inner.init_context()

    def optimizer(self, optimizer):
        return self.inner.optimizer(optimizer)

    def batch_to_device(self, batch):
        return self.inner.batch_to_device(batch)

    def clip_gradients(self, optimizer, value, algorithm):
        return self.inner.clip_gradients(optimizer, value, algorithm)

    def module_state(self):
        return self.inner.module_state()

    def load_module_state(self, state, strict=True):
        self.inner.load_module_state(state, strict)

    def optimizer_state(self, optimizer):
        return self.inner.optimizer_state(optimizer)

    def load_optimizer_state(self, optimizer, state):
        self.inner.load_optimizer_state(optimizer, state)

    def teardown(self):
        self.inner.teardown()


def wide():
    """A precision of a third party."""
    return Precision("wide", torch.float64, torch.float64, torch.float64)


def callback():
    """What a package adds to every Trainer."""
    from lightlib.callbacks import LambdaCallback

    return LambdaCallback(on_train_start=lambda trainer, module: module.greeted.append("one"))


def callbacks():
    return [callback(), callback()]


HERE = __name__


@pytest.mark.parametrize("group", registry.BUILT_IN)
def test_every_built_in_name_can_be_imported(group):
    assert all(callable(registry.get(group, name)) for name in registry.BUILT_IN[group])


def test_names_are_sorted_and_complete(installed):
    assert registry.names("accelerators") == ["cpu", "cuda", "mps"]
    installed(accelerators=[("elsewhere", f"{HERE}:Elsewhere"), ("another", f"{HERE}:Elsewhere")])
    assert registry.names("accelerators") == ["another", "cpu", "cuda", "elsewhere", "mps"]


def test_unknown_name(installed):
    installed(strategies=[("counting", f"{HERE}:Counting")])
    with pytest.raises(UnknownNameError, match=r"'countin'. Did you mean 'counting'") as caught:
        registry.get("strategies", "countin")
    assert "one of 'counting', 'ddp', " in str(caught.value)


@pytest.mark.parametrize(
    ("group", "word"),
    [("strategies", "strategy"), ("accelerators", "accelerator"), ("precision", "precision"), ("loggers", "logger")],
)
def test_the_error_says_what_is_unknown_in_the_singular(group, word):
    with pytest.raises(UnknownNameError, match=f"^Unknown {word} 'nothing'"):
        registry.get(group, "nothing")


def test_a_plugin_may_not_take_a_built_in_name(installed):
    installed(accelerators=[("cpu", f"{HERE}:Elsewhere")])
    with pytest.raises(MisconfigurationException, match=r"'cpu' = .*Elsewhere.* taken by 'lightlib.accelerators.cpu"):
        registry.get("accelerators", "cuda")


def test_two_plugins_may_not_share_a_name(installed):
    installed(strategies=[("mine", "one:Strategy"), ("mine", "other:Strategy")])
    with pytest.raises(MisconfigurationException, match=r"'mine' = 'other:Strategy'.*taken by 'one:Strategy'"):
        registry.names("strategies")


def test_the_same_plugin_found_twice_is_one(installed):
    installed(strategies=[("mine", f"{HERE}:Counting"), ("mine", f"{HERE}:Counting")])
    assert registry.get("strategies", "mine") is Counting


class TestPluginsInARun:
    def test_accelerator(self, installed):
        installed(accelerators=[("elsewhere", f"{HERE}:Elsewhere")])
        trainer = quiet_trainer(accelerator="elsewhere")
        module = Net()
        trainer.fit(module, batches(3))
        assert type(trainer.accelerator) is Elsewhere
        assert module.device == torch.device("cpu")

    def test_strategy(self, installed):
        installed(strategies=[("counting", f"{HERE}:Counting")])
        trainer = quiet_trainer(strategy="counting", max_epochs=2, gradient_clip_val=0.1, accumulate_grad_batches=2)
        module, plain = Net(), Net()
        trainer.fit(module, batches(3))
        quiet_trainer(max_epochs=2, gradient_clip_val=0.1, accumulate_grad_batches=2).fit(plain, batches(3))
        assert trainer.strategy.count == 6
        assert same_weights(module, plain)

    def test_checkpoints_of_the_strategy_are_read_by_another(self, installed, tmp_path):
        installed(strategies=[("counting", f"{HERE}:Counting")])
        first, trainer = Net(), quiet_trainer(strategy="counting")
        trainer.fit(first, batches(3))
        trainer.save_checkpoint(tmp_path / "a.ckpt")
        resumed, whole = Net(), Net()
        quiet_trainer(max_epochs=2).fit(resumed, batches(3), ckpt_path=tmp_path / "a.ckpt")
        quiet_trainer(max_epochs=2).fit(whole, batches(3))
        assert same_weights(resumed, whole)

    def test_precision(self, installed):
        installed(precision=[("wide", f"{HERE}:wide")])
        trainer, module = quiet_trainer(precision="wide"), Net()
        trainer.fit(module, batches(2))
        assert module.dtype is torch.float64
        assert trainer.precision == "wide"

    def test_callbacks_join_every_trainer(self, installed):
        installed(callbacks=[("greeter", f"{HERE}:callback"), ("greeters", f"{HERE}:callbacks")])
        module = Net()
        module.greeted = []
        Trainer(**QUIET, max_epochs=1).fit(module, batches(1))
        assert module.greeted == ["one"] * 3
