"""BaseFinetuning, BackboneFinetuning: plain loops, numbers of Lightning, resumed runs, bad arguments."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import BackboneFinetuning, BaseFinetuning, LearningRateMonitor
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.report import LightlibWarning
from lightlib.strategies import DeepSpeedStrategy
from tests.runs.plain import with_methods
from tests.runs.quiet import QUIET
from tests.runs.saves_at import SavesAt

STEPS = 6  # of an epoch


class Net(L.Module):
    """A backbone with batch norm and a head; the optimizer has the parameters that are not frozen."""

    def __init__(self, schedule=None):
        super().__init__()
        torch.manual_seed(5)
        self.backbone = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 6))
        self.head = nn.Linear(6, 2)
        self.schedule = schedule or (lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))

    def training_step(self, batch, batch_idx):
        return F.mse_loss(self.head(self.backbone(batch[0])), batch[1])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD([p for p in self.parameters() if p.requires_grad], 0.1, momentum=0.9)
        return [optimizer], [self.schedule(optimizer)]


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(24, 4, generator=generator)
    return DataLoader(TensorDataset(x, torch.randn(24, 2, generator=generator)), 4)


class Rates(L.Callback):
    """Notes the learning rates of the first batch of each epoch."""

    def __init__(self):
        self.rates = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == 0:
            self.rates.append([group["lr"] for group in trainer.optimizers[0].param_groups])


def fit(*callbacks, epochs=6, module=None, trainer=None, **arguments):
    module = module or Net()
    trainer = trainer or L.Trainer(**QUIET, max_epochs=epochs, callbacks=list(callbacks))
    trainer.fit(module, data(), **arguments)
    return module


def same(one, other):
    found, wanted = one.state_dict(), other.state_dict()
    return list(found) == list(wanted) and all(torch.equal(value, wanted[name]) for name, value in found.items())


def plain(epochs=6, at=2, ratio=0.1, factor=1.5):
    """Train the head and the batch norm first, the backbone from an epoch on."""
    module = Net()
    module.backbone[0].requires_grad_(False)
    module.backbone[3].requires_grad_(False)
    (optimizer,), (schedule,) = module.configure_optimizers()
    rate = 0.0
    for epoch in range(epochs):
        first = optimizer.param_groups[0]["lr"]
        if epoch == at:
            rate = first * ratio
            module.requires_grad_(True)
            optimizer.add_param_group({"params": [*module.backbone[0].parameters(), *module.backbone[3].parameters()]})
        elif epoch > at:
            rate = min(first, factor * rate)
        optimizer.param_groups[-1]["lr"] = rate if epoch >= at else first
        for x, y in data():
            optimizer.zero_grad()
            F.mse_loss(module.head(module.backbone(x)), y).backward()
            optimizer.step()
        schedule.step()
    return module


def finetuning(at=2, **options):
    return BackboneFinetuning(at, lambda epoch: 1.5, **options)


class Thawing(BaseFinetuning):
    """Freezes the backbone with its batch norm, and unfreezes its last layer and then the rest."""

    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.backbone, train_bn=False)

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.backbone[3], optimizer)
        if epoch == 2:
            self.unfreeze_and_add_param_group([pl_module.backbone[0], [pl_module.backbone[1]]], optimizer, lr=0.01)


class TestBackbone:
    def test_trains_as_a_plain_loop(self):
        assert same(fit(finetuning()), plain())

    def test_has_the_numbers_of_lightning(self):
        """Recorded with Lightning 2.6.0 and torch 2.13: this module, this data, `finetuning()`, 6 epochs."""
        rates = Rates()
        module = fit(finetuning(), rates)
        assert rates.rates == [
            [0.1],
            [0.1],
            [0.05, 0.005000000000000001],
            [0.05, 0.0075000000000000015],
            [0.025, 0.011250000000000003],
            [0.025, 0.016875000000000005],
        ]
        sums = [1.1613071, -0.073306, 6.174696, 0.6650673, 0.9717635, 0.3550818, 1.0149564, 0.5511087]
        assert [float(p.detach().sum()) for p in module.parameters()] == pytest.approx(sums, rel=1e-5)

    def test_never_exceeds_the_first_rate_when_aligned(self):
        rates = Rates()
        fit(BackboneFinetuning(1, backbone_initial_lr=0.04), rates, epochs=5)
        assert [r[1] for r in rates.rates[1:]] == [0.04, 0.05, 0.05, 0.025]

    def test_may_exceed_it_otherwise(self):
        rates = Rates()
        fit(BackboneFinetuning(1, backbone_initial_lr=0.04, should_align=False), rates, epochs=4)
        assert [r[1] for r in rates.rates[1:]] == [0.04, 0.08, 0.16]

    def test_logs_both_rates(self, caplog):
        with caplog.at_level("INFO", "lightlib"):
            fit(finetuning(verbose=True, rounding=4), epochs=4)
        assert "Epoch 3: learning rate 0.05, of the backbone 0.0075." in caplog.text

    def test_a_later_fit_unfreezes_it_too(self):
        callback, rates = finetuning(1), Rates()
        trainer = L.Trainer(**QUIET, max_epochs=2, callbacks=[callback, rates])
        module = fit(trainer=trainer)
        trainer.max_epochs = 4
        fit(trainer=trainer, module=module)
        assert [len(r) for r in rates.rates] == [1, 2, 2, 2]
        assert all(parameter.requires_grad for parameter in module.parameters())

    def test_a_fit_that_continues_within_an_epoch_trains_it(self):
        callback = finetuning(1)
        trainer = L.Trainer(**QUIET, max_epochs=3, max_steps=8, callbacks=[callback])
        module = fit(trainer=trainer)
        trainer.max_steps = 10
        before = module.backbone[0].weight.detach().clone()
        fit(trainer=trainer, module=module)
        assert not torch.equal(before, module.backbone[0].weight)

    def test_an_evaluation_freezes_nothing(self):
        module = Net()
        module.validation_step = module.training_step
        L.Trainer(**QUIET, callbacks=[finetuning()]).validate(module, data(), verbose=False)
        assert all(parameter.requires_grad for parameter in module.parameters())

    def test_in_an_optimizer_from_the_start_keeps_its_rate_with_a_warning(self):
        every = with_methods(Net, configure_optimizers=lambda self: torch.optim.SGD(self.parameters(), 0.1))
        rates = Rates()
        with pytest.warns(LightlibWarning, match="4 parameters to unfreeze are in a group of SGD already"):
            fit(finetuning(1), rates, epochs=3, module=every)
        assert rates.rates == [[0.1]] * 3

    def test_equal_values_are_different_parameters(self):
        """Lightning leaves out a bias that equals another one of the optimizer."""
        module = Net()
        with torch.no_grad():
            module.backbone[3].bias.copy_(module.backbone[1].bias)
        callback = finetuning(0)
        before = module.backbone[3].bias.detach().clone()
        fit(callback, epochs=1, module=module)
        assert not torch.equal(before, module.backbone[3].bias)


SCHEDULES = {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "Cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20),
    "Sequential": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o, [torch.optim.lr_scheduler.ConstantLR(o, 0.5, 2), torch.optim.lr_scheduler.CosineAnnealingLR(o, 8)], [2]
    ),
    "Plateau": None,
    "OneCycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, 8, cycle_momentum=False),
    "Cyclic": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.05, 0.2, 2, cycle_momentum=False),
}


@pytest.mark.filterwarnings("ignore:.*is built for", "ignore:Detected call of .lr_scheduler")
class TestSchedules:
    @pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "Plateau"])
    def test_move_a_new_group_in_proportion(self, name):
        class Half(Thawing):
            def finetune_function(self, pl_module, epoch, optimizer):
                if epoch == 1:
                    self.unfreeze_and_add_param_group(
                        pl_module.backbone, optimizer, optimizer.param_groups[0]["lr"] / 2
                    )

        rates = Rates()
        fit(Half(), rates, module=Net(SCHEDULES[name]))
        assert [r[1] for r in rates.rates[1:]] == pytest.approx([r[0] / 2 for r in rates.rates[1:]])
        assert len({r[0] for r in rates.rates[1:]}) > 1

    @pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "Plateau"])
    @pytest.mark.parametrize("step", [6, 8, 15])
    def test_are_resumed(self, name, step, tmp_path):
        whole, resumed = Rates(), Rates()
        unbroken = fit(Thawing(), SavesAt(tmp_path / "a.ckpt", step), whole, epochs=5, module=Net(SCHEDULES[name]))
        module = fit(Thawing(), resumed, epochs=5, module=Net(SCHEDULES[name]), ckpt_path=tmp_path / "a.ckpt")
        assert resumed.rates == whole.rates[-len(resumed.rates) :]
        assert same(module, unbroken)


@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler")  # the saved run has stepped
class TestResume:
    @pytest.mark.parametrize("kind", ["file", "directory"])
    @pytest.mark.parametrize("step", range(1, 5 * STEPS, 4))
    def test_ends_with_the_same_bits(self, step, kind, tmp_path):
        saves = SavesAt(tmp_path / "a.ckpt", step, format=kind)
        unbroken = fit(finetuning(), saves, epochs=5)
        callback = finetuning()
        assert same(fit(callback, epochs=5, ckpt_path=tmp_path / "a.ckpt"), unbroken)
        assert callback.previous_backbone_lr == pytest.approx(0.1 * 0.5 * 0.1 * 1.5**2)

    @pytest.mark.parametrize("saves_user_state", [True, False])
    @pytest.mark.parametrize("step", [3, 6, 9, 12, 14])
    def test_batch_norms_track_as_before(self, step, saves_user_state, tmp_path):
        def run(*callbacks, **arguments):
            trainer = L.Trainer(
                **QUIET, max_epochs=4, callbacks=[Thawing(), *callbacks], save_user_state=saves_user_state
            )
            return fit(trainer=trainer, **arguments)

        unbroken = run(SavesAt(tmp_path / "a.ckpt", step))
        module = run(ckpt_path=tmp_path / "a.ckpt")
        assert same(module, unbroken)
        assert module.backbone[1].track_running_stats

    def test_twice(self, tmp_path):
        unbroken = fit(Thawing(), SavesAt(tmp_path / "a.ckpt", 8), epochs=4)
        fit(Thawing(), SavesAt(tmp_path / "b.ckpt", 10), epochs=4, ckpt_path=tmp_path / "a.ckpt")
        assert same(fit(Thawing(), epochs=4, ckpt_path=tmp_path / "b.ckpt"), unbroken)

    def test_next_to_a_monitor_of_rates(self, tmp_path):
        unbroken = fit(Thawing(), SavesAt(tmp_path / "a.ckpt", 8), epochs=4)
        arguments = {**QUIET, "logger": True, "default_root_dir": tmp_path, "log_every_n_steps": 2}
        trainer = L.Trainer(**arguments, max_epochs=4, callbacks=[Thawing(), LearningRateMonitor("step")])
        assert same(fit(trainer=trainer, ckpt_path=tmp_path / "a.ckpt"), unbroken)


class TestFrozenBatchNorm:
    def test_keeps_its_statistics_and_uses_those_of_the_batch(self):
        module = fit(Thawing(), epochs=2)
        assert torch.equal(module.backbone[1].running_mean, torch.zeros(6))
        assert not module.backbone[1].weight.requires_grad


class TestTools:
    def test_flatten_has_parents_with_parameters(self):
        class Scaled(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale, self.inner = nn.Parameter(torch.ones(1)), nn.Linear(1, 1)

        scaled = Scaled()
        assert BaseFinetuning.flatten_modules(nn.ModuleDict({"a": scaled})) == [scaled, scaled.inner]

    def test_filter_by_batch_norm_and_flag(self):
        backbone = Net().backbone
        BaseFinetuning.freeze_module(backbone[0])
        assert len(list(BaseFinetuning.filter_params(backbone))) == 4
        assert len(list(BaseFinetuning.filter_params(backbone, train_bn=False))) == 2
        assert len(list(BaseFinetuning.filter_params(backbone, requires_grad=False))) == 2

    def test_a_rate_is_divided_by_default(self):
        net = Net()
        optimizer = torch.optim.SGD(net.head.parameters(), 0.1)
        BaseFinetuning.unfreeze_and_add_param_group(net.backbone, optimizer, initial_denom_lr=4, train_bn=False)
        assert optimizer.param_groups[1]["lr"] == pytest.approx(0.025)
        assert len(optimizer.param_groups[1]["params"]) == 4

    def test_filter_on_optimizer_warns(self):
        net = Net()
        optimizer = torch.optim.SGD(net.head.parameters(), 0.1)
        with pytest.warns(LightlibWarning, match="2 parameters"):
            assert BaseFinetuning.filter_on_optimizer(optimizer, net.head.parameters()) == []


class TestWrongArguments:
    @pytest.mark.parametrize(
        ("make", "error", "text"),
        [
            (lambda: BackboneFinetuning(-1), MisconfigurationException, "unfreeze_backbone_at_epoch=-1"),
            (lambda: BackboneFinetuning(1.5), ArgumentTypeError, "unfreeze_backbone_at_epoch=1.5"),
            (lambda: BackboneFinetuning(lambda_func=2.0), ArgumentTypeError, "lambda_func=2.0"),
            (lambda: BackboneFinetuning(backbone_initial_lr="1e-3"), ArgumentTypeError, "backbone_initial_lr='1e-3'"),
            (lambda: BackboneFinetuning(backbone_initial_ratio_lr=0), MisconfigurationException, "ratio_lr=0"),
            (lambda: BackboneFinetuning(initial_denom_lr=0.0), MisconfigurationException, "initial_denom_lr=0.0"),
            (lambda: BackboneFinetuning(rounding=-2), MisconfigurationException, "rounding=-2"),
            (lambda: fit(BaseFinetuning()), MisconfigurationException, "has no freeze_before_training"),
            (lambda: fit(finetuning(), module=Nameless()), MisconfigurationException, r"Nameless\.backbone is None"),
            (lambda: fit(finetuning(), module=two()), MisconfigurationException, "got 2 optimizers"),
        ],
    )
    def test_are_refused(self, make, error, text):
        with pytest.raises(error, match=text) as caught:
            make()
        assert "Expected: " in str(caught.value)
        assert "Fix: " in str(caught.value)

    def test_a_strategy_that_trains_copies_of_the_parameters(self):
        trainer = SimpleNamespace(strategy=DeepSpeedStrategy())
        with pytest.raises(MisconfigurationException, match="Thawing got a DeepSpeedStrategy"):
            Thawing().setup(trainer, Net(), "fit")


class Nameless(Net):
    def __init__(self):
        super().__init__()
        del self.backbone


def two():
    def configure_optimizers(self):
        return [torch.optim.SGD(self.head.parameters(), 0.1), torch.optim.SGD(self.head.parameters(), 0.1)]

    return with_methods(Net, configure_optimizers, automatic_optimization=False)


class Token(nn.Module):
    """A parameter next to a child, as the class token of a transformer."""

    def __init__(self, size):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(size))
        self.block = nn.Linear(2, 2)


@pytest.mark.parametrize("size", [1, 4])
def test_a_parameter_next_to_children_is_frozen_whatever_its_values(size):
    backbone = nn.Sequential(Token(size))
    BaseFinetuning.freeze(backbone)
    assert [name for name, parameter in backbone.named_parameters() if parameter.requires_grad] == []
    assert len(list(BaseFinetuning.filter_params(backbone, requires_grad=False))) == 3
    BaseFinetuning.make_trainable(backbone)
    assert all(parameter.requires_grad for parameter in backbone.parameters())
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)
    BaseFinetuning.freeze(backbone)
    BaseFinetuning.unfreeze_and_add_param_group(backbone, optimizer)
    assert {id(p) for p in optimizer.param_groups[1]["params"]} == {id(p) for p in backbone.parameters()}


class FreezesByStep(BaseFinetuning):
    """As kraken's: freezes in `on_train_start`, unfreezes at a step, and notes the group itself."""

    def freeze_before_training(self, pl_module):
        pass

    def finetune_function(self, pl_module, epoch, optimizer):
        pass

    def on_train_start(self, trainer, pl_module):
        self.freeze(pl_module.backbone)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == 2:
            (optimizer,) = trainer.optimizers
            before = len(optimizer.param_groups)
            self.unfreeze_and_add_param_group(pl_module.backbone[3], optimizer)
            self._store(pl_module, 0, before, optimizer.param_groups)


def test_a_group_is_noted_by_a_subclass():
    callback = FreezesByStep()
    module = with_methods(Net, configure_optimizers=lambda self: torch.optim.SGD(self.head.parameters(), 0.1))
    L.Trainer(max_epochs=1, callbacks=[callback], **QUIET).fit(module, data())
    (groups,) = callback.state_dict()["internal_optimizer_metadata"].values()
    assert [(group["params"], group["lr"]) for group in groups] == [
        (["head.weight", "head.bias"], 0.1),
        (["backbone.3.weight", "backbone.3.bias"], 0.01),
    ]
