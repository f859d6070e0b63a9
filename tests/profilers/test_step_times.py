"""The time of training: each second is counted once, in a run with a clock that is set by hand."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import lightlib
from lightlib.loggers import Logger
from lightlib.profilers import simple
from lightlib.profilers.simple import SimpleProfiler
from lightlib.profilers.step_times import CATEGORIES, StepTimes, category_of
from tests.runs.quiet import QUIET

SECONDS = {"data": 3.0, "forward": 2.0, "backward": 5.0, "optimizer": 7.0, "hooks": 11.0, "logging": 13.0,
           "validation": 17.0, "checkpoints": 19.0, "the rest": 23.0}  # fmt: skip


class Clock:
    """A clock that only the parts of the run below move."""

    def __init__(self):
        self.now = 0.0

    def pass_(self, category):
        self.now += SECONDS[category]


class Slow(Dataset):
    def __init__(self, clock):
        self.clock = clock

    def __len__(self):
        return 4

    def __getitem__(self, index):
        self.clock.pass_("data")
        return torch.ones(2)


class SlowLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, clock):
        ctx.clock = clock
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.clock.pass_("backward")
        return gradient, None


class SlowSGD(torch.optim.SGD):
    def __init__(self, parameters, clock):
        super().__init__(parameters, 0.1)
        self.clock = clock

    def step(self, closure=None):
        self.clock.pass_("optimizer")
        return super().step(closure)


class Net(lightlib.Module):
    def __init__(self, clock):
        super().__init__()
        self.layer, self.clock = torch.nn.Linear(2, 1), clock

    def training_step(self, batch, batch_idx):
        self.clock.pass_("forward")
        loss = SlowLoss.apply(self.layer(batch).sum(), self.clock)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.clock.pass_("validation")

    def on_validation_epoch_end(self):
        self.clock.pass_("validation")

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        pass

    def configure_optimizers(self):
        self.clock.now += 1000  # before training
        return SlowSGD(self.parameters(), self.clock)


class SlowCallback(lightlib.Callback):
    def __init__(self, clock):
        self.clock = clock

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.clock.pass_("hooks")

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        self.clock.pass_("checkpoints")

    def on_train_epoch_end(self, trainer, pl_module):
        trainer.save_checkpoint("a.ckpt")


class SlowLogger(Logger):
    name, version = "slow", 0

    def __init__(self, clock):
        self.clock = clock

    def log_metrics(self, metrics, step=None):
        self.clock.pass_("logging")

    def log_hyperparams(self, *arguments, **options):
        pass


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(simple, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(simple, "monotonic", lambda: clock.now)
    return clock


def test_each_second_of_a_run_is_counted_once_and_where_it_belongs(clock):
    profiler, data = SimpleProfiler(), DataLoader(Slow(clock))
    trainer = lightlib.Trainer(
        **{**QUIET, "logger": SlowLogger(clock), "log_every_n_steps": 2}, max_epochs=2, profiler=profiler,
        callbacks=[SlowCallback(clock)],
    )  # fmt: skip
    trainer.fit(Net(clock), data, [torch.ones(1, 2)] * 3)
    times = profiler.step_times
    found = {name: seconds for name, seconds in times.by_category().items() if seconds}
    assert found == {
        "data": 7 * 3.0, "forward": 7 * 2.0, "backward": 7 * 5.0, "optimizer": 7 * 7.0, "hooks": 8 * 11.0,
        "logging": 4 * 13.0, "validation": 2 * (3 + 1) * 17.0, "checkpoints": 2 * 19.0,
    }  # fmt: skip
    assert (times.total, times.batches) == (sum(found.values()), 7)
    assert times.first == 3.0 + 2.0 + 5.0 + 7.0
    assert times.longest("logging") == "[Logger]SlowLogger.log_metrics"
    assert times.longest("hooks") == "[Callback]SlowCallback.on_train_batch_end"
    assert times.longest("transfer") == ""


def test_a_second_fit_is_counted_from_nothing(clock):
    profiler = SimpleProfiler()
    trainer = lightlib.Trainer(**QUIET, max_epochs=1, limit_val_batches=0, profiler=profiler)
    trainer.fit(Net(clock), DataLoader(Slow(clock)))
    trainer.settings.change("max_epochs", 3)
    trainer.fit(trainer.model, DataLoader(Slow(clock)))
    assert (profiler.step_times.batches, profiler.step_times.by_category()["data"]) == (7, 21.0)


def test_without_a_profiler_nothing_is_measured(clock, monkeypatch):
    def refuse(*_):
        raise AssertionError("a call of a profiler that is off")

    from lightlib.core.setup import timing

    monkeypatch.setattr(timing, "_measured", refuse)
    monkeypatch.setattr(timing, "_each_measured", refuse)
    trainer = lightlib.Trainer(**QUIET, max_epochs=1, limit_val_batches=0, callbacks=[SlowCallback(clock)])
    trainer.fit(Net(clock), DataLoader(Slow(clock)))
    assert trainer.optimizers[0]._optimizer_step_pre_hooks == {}


def warm():
    """Return times after a first batch that ended at 0."""
    times = StepTimes()
    times.start("run_training_batch", 0.0)
    times.stop("run_training_batch", 0.0)
    return times


def test_what_is_left_of_the_time_is_the_rest():
    times = warm()
    times.start("run_training_batch", 1.0)
    times.start("[LightningModule]Net.training_step", 2.0)
    times.start("my own block", 2.5)
    times.stop("my own block", 3.0)
    times.stop("[LightningModule]Net.training_step", 4.0)
    times.stop("run_training_batch", 9.0)
    assert times.by_category()["forward"] == 2.0
    assert times.by_category()["the rest"] == 7.0
    assert list(times.by_category()) == list(CATEGORIES)


def test_what_an_exception_leaves_open_is_closed():
    times = warm()
    times.start("run_training_batch", 0.0)
    times.start("[Callback]Mine.on_train_batch_start", 1.0)
    times.stop("run_training_batch", 3.0)
    times.stop("[Callback]Mine.on_train_batch_start", 4.0)
    assert (times.total, times.batches) == (3.0, 1)


def test_nothing_is_counted_before_the_first_batch():
    times = StepTimes()
    times.start("run_validation", 0.0)
    times.stop("run_validation", 5.0)
    assert (times.total, times.seconds) == (0.0, {})


def test_one_batch_is_no_measurement():
    times = warm()
    assert (times.total, times.batches, times.seconds) == (0.0, 0, {})


@pytest.mark.parametrize(
    ("action", "category"),
    [
        ("[Strategy]DDPStrategy.batch_to_device", "transfer"),
        ("[Strategy]DDPStrategy.backward", "backward"),
        ("[LightningModule]Net.backward", "backward"),
        ("[LightningModule]Net.optimizer_step", "optimizer"),
        ("[LightningModule]Net.on_train_start", "hooks"),
        ("[LightningDataModule]Data.setup", None),
    ],
)
def test_categories_of_actions(action, category):
    assert category_of(action) == category
