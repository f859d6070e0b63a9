"""StochasticWeightAveraging: torch's swa_utils in a plain loop, resumed runs, bad arguments."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_avg_fn, update_bn

import lightlib as L
from lightlib.callbacks import ModelCheckpoint, StochasticWeightAveraging, WeightAveraging
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.strategies import DeepSpeedStrategy
from tests.callbacks.averaging.plain_loop import QUIET, Net, data
from tests.runs.plain import calling, with_methods
from tests.runs.saves_at import SavesAt

EPOCHS, STEPS = 5, 6
UNVALIDATED = {"limit_val_batches": 0}
LIGHTNINGS_RATES = [0.1, 0.1, 0.05, 0.045000000000000005, 0.035]
LIGHTNINGS_SUMS = [3.1628933, -0.1426673, -0.8135681, 0.3559332]


class Scheduled(Net):
    """Has a schedule, or not, and batch norm, or not; logs its loss."""

    def __init__(self, norm=True, schedule=True):
        super().__init__()
        self.net = nn.Sequential(*(part for part in self.net if norm or not isinstance(part, nn.BatchNorm1d)))
        self.schedule = schedule

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)
        return ([optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]) if self.schedule else optimizer


def swa(start=3, **options):
    return StochasticWeightAveraging(**{"swa_lrs": 0.03, "swa_epoch_start": start, "annealing_epochs": 3, **options})


def fit(*callbacks, module=None, epochs=EPOCHS, trainer=None, **arguments):
    module = module or Scheduled()
    trainer = trainer or L.Trainer(
        **QUIET, **UNVALIDATED, max_epochs=epochs, callbacks=list(callbacks), enable_checkpointing=False
    )
    trainer.fit(module, data(STEPS), **arguments)
    return module


def plain(module, start=2, epochs=EPOCHS, avg_fn=None, strategy="cos", rates=0.03):
    """Return the averaged module and the learning rates of each epoch."""
    configured = module.configure_optimizers()
    optimizer, schedule = (configured[0][0], configured[1][0]) if isinstance(configured, tuple) else (configured, None)
    averaged, found, annealing = AveragedModel(module.net, avg_fn=avg_fn), [], None
    for epoch in range(epochs):
        if epoch == start:
            annealing = SWALR(optimizer, rates, anneal_epochs=3, anneal_strategy=strategy)
        if epoch >= start:
            averaged.update_parameters(module.net)
        found.append(optimizer.param_groups[0]["lr"])
        for x, y in data(STEPS):
            optimizer.zero_grad()
            F.mse_loss(module.net(x), y).backward()
            optimizer.step()
        if annealing is not None or schedule is not None:
            (annealing or schedule).step()
    averaged.module.train()
    update_bn(data(STEPS), averaged.module)
    return averaged.module, found


def same(found, wanted):
    found, wanted = found.state_dict(), wanted.state_dict()
    return list(found) == list(wanted) and all(torch.equal(value, wanted[name]) for name, value in found.items())


class Rates(L.Callback):
    def __init__(self):
        self.rates = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == 0:
            self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


class TestNumbers:
    @pytest.mark.parametrize("schedule", [True, False])
    @pytest.mark.parametrize("norm", [True, False])
    @pytest.mark.parametrize("strategy", ["cos", "linear"])
    def test_are_those_of_torch(self, norm, schedule, strategy):
        wanted, rates = plain(Scheduled(norm, schedule), strategy=strategy)
        found = Rates()
        module = fit(swa(annealing_strategy=strategy), found, module=Scheduled(norm, schedule))
        assert same(module.net, wanted)
        assert found.rates == rates

    def test_with_a_function(self):
        wanted, _ = plain(Scheduled(), avg_fn=get_ema_avg_fn(0.6))
        assert same(fit(swa(avg_fn=get_ema_avg_fn(0.6))).net, wanted)

    def test_from_a_share_of_the_epochs(self):
        wanted, _ = plain(Scheduled(), start=3)
        assert same(fit(swa(0.8, swa_lrs=[0.03])).net, wanted)

    def test_have_those_of_lightning(self):
        """Recorded with Lightning 2.6.0 and torch 2.13: this module without batch norm, this data, `swa()`."""
        rates = Rates()
        module = fit(swa(), rates, module=Scheduled(norm=False))
        assert rates.rates == LIGHTNINGS_RATES
        assert [float(p.detach().sum()) for p in module.parameters()] == pytest.approx(LIGHTNINGS_SUMS, rel=1e-5)

    def test_a_run_that_ends_early_has_the_average(self):
        class Stops(L.Callback):
            def on_train_epoch_end(self, trainer, pl_module):
                trainer.should_stop = trainer.current_epoch == 3

        wanted, _ = plain(Scheduled(), epochs=4)
        assert same(fit(swa(), Stops()).net, wanted)


class TestPass:
    def test_leaves_metrics_alone(self):
        seen = {}

        class Sees(L.Callback):
            def on_train_end(self, trainer, pl_module):
                seen[self.priority] = pl_module.error.update_count, dict(trainer.callback_metrics)

        def training_step(self, batch, batch_idx):
            self.error(self.net(batch[0]), batch[1])
            self.log("error", self.error, on_epoch=True)

        module = calling(Scheduled, training_step)
        module.error = torchmetrics.MeanSquaredError()
        first, last = Sees(), Sees()
        first.priority, last.priority = 0, 100
        fit(first, swa(), last, module=module)
        assert seen[0] == seen[100]
        assert set(seen[0][1]) == {"error", "error_step", "error_epoch", "loss", "loss_step", "loss_epoch"}

    def test_logs_nothing_and_counts_nothing(self, tmp_path):
        logged = []

        class Sees(L.Callback):
            def on_log(self, trainer, pl_module, metrics):
                logged.append((trainer.global_step, dict(metrics)))

            def on_train_end(self, trainer, pl_module):
                self.rng = torch.get_rng_state()

        class Before(Sees):
            priority = "highest"

        before, after = Before(), Sees()
        arguments = {**QUIET, **UNVALIDATED, "logger": True, "default_root_dir": tmp_path}
        trainer = L.Trainer(**arguments, max_epochs=EPOCHS, callbacks=[before, swa(), after], log_every_n_steps=1)
        fit(trainer=trainer)
        assert len(logged) == 2 * EPOCHS * (STEPS + 1)  # two callbacks
        assert trainer.global_step == EPOCHS * STEPS
        assert torch.equal(before.rng, after.rng)

    def test_keeps_the_momentum_and_norms_in_eval_mode(self):
        module = fit(swa(), module=with_methods(Scheduled, on_train_epoch_start=lambda self: self.net[1].eval()))
        assert module.net[1].momentum == 0.1
        assert torch.equal(module.net[1].running_mean, torch.zeros(6))


class TestResume:
    @pytest.mark.parametrize("kind", ["file", "directory"])
    @pytest.mark.parametrize("norm", [True, False])
    @pytest.mark.parametrize("step", [3, 12, 13, 18, 22, 30])
    @pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler")  # the saved run has stepped
    def test_ends_with_the_same_bits(self, step, norm, kind, tmp_path):
        whole, resumed = Rates(), Rates()
        saves = SavesAt(tmp_path / "a.ckpt", step, format=kind)
        unbroken = fit(swa(), whole, saves, module=Scheduled(norm))
        module = fit(swa(), resumed, module=Scheduled(norm), ckpt_path=tmp_path / "a.ckpt")
        assert same(module, unbroken)
        assert not resumed.rates or resumed.rates == whole.rates[-len(resumed.rates) :]

    @pytest.mark.parametrize("step", [12, 20])
    @pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler")
    def test_without_a_schedule_of_the_module(self, step, tmp_path):
        unbroken = fit(swa(), SavesAt(tmp_path / "a.ckpt", step), module=Scheduled(schedule=False))
        module = fit(swa(), module=Scheduled(schedule=False), ckpt_path=tmp_path / "a.ckpt")
        assert same(module, unbroken)

    def test_at_once_to_the_rate(self, tmp_path):
        unbroken = fit(swa(annealing_epochs=0), SavesAt(tmp_path / "a.ckpt", 20))
        assert same(fit(swa(annealing_epochs=0), ckpt_path=tmp_path / "a.ckpt"), unbroken)

    def test_of_the_last_epoch_ends_again(self, tmp_path):
        saves = ModelCheckpoint(tmp_path, filename="last")
        trainer = L.Trainer(**QUIET, **UNVALIDATED, max_epochs=EPOCHS, callbacks=[swa(), saves])
        unbroken = fit(trainer=trainer)
        again = ModelCheckpoint(tmp_path / "again", filename="last")
        trainer = L.Trainer(**QUIET, **UNVALIDATED, max_epochs=EPOCHS, callbacks=[swa(), again])
        assert same(fit(trainer=trainer, ckpt_path=tmp_path / "last.ckpt"), unbroken)

    def test_of_the_end_changes_nothing(self, tmp_path):
        trainer = L.Trainer(**QUIET, **UNVALIDATED, max_epochs=EPOCHS, callbacks=[swa()], enable_checkpointing=False)
        unbroken = fit(trainer=trainer)
        trainer.save_checkpoint(tmp_path / "end.ckpt")
        assert same(Scheduled.load_from_checkpoint(tmp_path / "end.ckpt"), unbroken)
        resumed = swa()
        assert same(fit(resumed, ckpt_path=tmp_path / "end.ckpt"), unbroken)
        assert resumed.state_dict() == trainer.callbacks[0].state_dict()

    @pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler")
    def test_of_the_end_continues_the_average(self, tmp_path):
        options = {**UNVALIDATED, "enable_checkpointing": False}
        trainer = L.Trainer(**QUIET, **options, max_epochs=EPOCHS, callbacks=[swa()])
        module = fit(trainer=trainer, module=Scheduled(norm=False))
        trainer.save_checkpoint(tmp_path / "end.ckpt")
        optimizer, averaged = trainer.optimizers[0], AveragedModel(module.net)
        averaged.n_averaged.fill_(3)
        for _ in range(2):
            averaged.update_parameters(module.net)
            for x, y in data(STEPS):
                optimizer.zero_grad()
                F.mse_loss(module.net(x), y).backward()
                optimizer.step()
        longer = fit(swa(), module=Scheduled(norm=False), epochs=EPOCHS + 2, ckpt_path=tmp_path / "end.ckpt")
        assert same(longer.net, averaged.module)

    def test_without_the_callback_continues_the_schedule_of_the_module(self, tmp_path):
        fit(swa(), SavesAt(tmp_path / "a.ckpt", 15))
        rates = Rates()
        with pytest.warns(UserWarning, match="a callback that this run does not have"):
            fit(rates, ckpt_path=tmp_path / "a.ckpt")
        assert len(rates.rates) == 2

    def test_a_file_holds_both_weights(self, tmp_path):
        fit(swa(), SavesAt(tmp_path / "a.ckpt", 18))
        content = torch.load(tmp_path / "a.ckpt", weights_only=True)
        trained, averaged = content["state_dict"], content["average_model_state"]
        assert list(trained) == list(averaged)
        assert not torch.equal(trained["net.0.weight"], averaged["net.0.weight"])
        assert content["callbacks"]["StochasticWeightAveraging"]["n_averaged"] == 1


class Two(Net):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2) for _ in range(2)]


class Groups(Net):
    def configure_optimizers(self):
        return torch.optim.SGD([{"params": self.net[0].parameters()}, {"params": self.net[3].parameters()}], 0.1)


class TestWrongArguments:
    @pytest.mark.parametrize(
        ("make", "error", "text"),
        [
            (lambda: swa(swa_lrs="0.1"), ArgumentTypeError, "swa_lrs='0.1'"),
            (lambda: swa(swa_lrs=[]), ArgumentTypeError, r"swa_lrs=\[\]"),
            (lambda: swa(swa_lrs=-0.1), MisconfigurationException, "swa_lrs=-0.1"),
            (lambda: swa(swa_lrs=[0.1, 0.0]), MisconfigurationException, r"swa_lrs=0.0\)"),
            (lambda: swa(0), MisconfigurationException, "swa_epoch_start=0"),
            (lambda: swa(1.5), MisconfigurationException, "swa_epoch_start=1.5"),
            (lambda: swa("late"), ArgumentTypeError, "swa_epoch_start='late'"),
            (lambda: swa(annealing_strategy="exp"), UnknownNameError, "annealing_strategy of .* 'exp'"),
            (lambda: swa(annealing_epochs=-1), MisconfigurationException, "annealing_epochs=-1"),
            (lambda: swa(avg_fn=3), ArgumentTypeError, "avg_fn=3"),
            (lambda: swa(device=0), ArgumentTypeError, "device=0"),
            (lambda: fit(swa(), WeightAveraging()), MisconfigurationException, "two callbacks that put other weights"),
            (lambda: fit(swa(), module=Two()), MisconfigurationException, "got 2 schedules"),
            (
                lambda: fit(swa(), module=with_methods(Net, automatic_optimization=False)),
                MisconfigurationException,
                "automatic_optimization = False",
            ),
            (lambda: fit(swa(swa_lrs=[0.1]), module=Groups()), MisconfigurationException, "2 parameter groups"),
            (lambda: fit(swa(0.5), epochs=-1), MisconfigurationException, "max_epochs=-1"),
        ],
    )
    def test_are_refused(self, make, error, text):
        with pytest.raises(error, match=text) as caught:
            make()
        assert "Expected: " in str(caught.value)
        assert "Fix: " in str(caught.value)

    def test_a_strategy_that_trains_copies_of_the_parameters(self):
        trainer = SimpleNamespace(strategy=DeepSpeedStrategy(), callbacks=[])
        with pytest.raises(MisconfigurationException, match="got a DeepSpeedStrategy"):
            swa().setup(trainer, Net(), "fit")
