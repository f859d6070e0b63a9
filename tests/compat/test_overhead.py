"""A step with compat on makes at most ten Python calls more than one without."""

from __future__ import annotations

import pytest
import torch

import lightlib
from lightlib import compat
from lightlib.conventions import LIGHTLIB, use
from tests.core.run.loop.test_overhead import Logs, data, fit, per_batch
from tests.runs.plain import Net, quiet_trainer


class WithSchedule(Net):
    """Its schedule steps with epochs, which compat does at another time."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Manual(Net):
    """Two optimizers, stepped by hand."""

    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()


class Hooked(Logs):
    """Overrides hooks around the batch and the step."""

    def __init__(self):
        super().__init__(1)

    def on_train_batch_start(self, batch, batch_idx):
        pass

    def on_train_batch_end(self, outputs, batch, batch_idx):
        pass

    def on_before_zero_grad(self, optimizer):
        pass

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer.step(closure=optimizer_closure)


def predict(module):
    return per_batch(lambda n: quiet_trainer().predict(module, data(n)))


class Predicts(Net):
    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])


@pytest.mark.filterwarnings("ignore:No logger received a value")
@pytest.mark.parametrize(
    ("kind", "arguments", "more"),
    [
        (Net, {}, 3),
        (Net, {"accumulate_grad_batches": 4, "gradient_clip_val": 1.0}, 3),
        (WithSchedule, {}, 5),
        (Manual, {}, 3),
        (Hooked, {}, 3),
    ],
)
def test_a_step_costs_at_most_ten_calls_more(kind, arguments, more):
    plain = fit(kind(), **arguments)
    compat.install()
    try:
        served = fit(kind(), **arguments)
    finally:
        compat.uninstall()
    assert served - plain <= more <= 10


def test_a_predicted_batch_costs_at_most_ten_calls_more():
    plain = predict(Predicts())
    compat.install()
    try:
        served = predict(Predicts())
    finally:
        compat.uninstall()
    assert served - plain <= 5


def test_the_count_sees_a_convention():
    compat.install()
    try:
        served = fit(Net())
        use(LIGHTLIB)
        assert served > fit(Net())
    finally:
        compat.uninstall()
    assert lightlib.conventions.chosen() is LIGHTLIB
