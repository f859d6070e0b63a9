"""Schedules of a second `fit` of a module span the rest of the run, as in a plain loop."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import OneCycleLR

from lightlib.callbacks.callback import Callback
from tests.runs.plain import Net, batches, network, quiet_trainer, same_weights


class Rates(Callback):
    def __init__(self):
        self.rates = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.rates.append(optimizer.param_groups[0]["lr"])


def module(seen):
    def make(optimizer, total_steps):
        seen.append(total_steps)
        return OneCycleLR(optimizer, 0.5, total_steps=total_steps)

    def configure(parameters):
        return {
            "optimizer": torch.optim.SGD(parameters, lr=0.1),
            "lr_scheduler": {"scheduler": make, "interval": "step"},
        }

    return Net(configure)


def by_hand(phases, data, accumulate):
    net, rates = network(), []
    for steps in phases:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        schedule, epoch = OneCycleLR(optimizer, 0.5, total_steps=steps), []
        for _ in range(steps):
            epoch = epoch or [data[at : at + accumulate] for at in range(0, len(data), accumulate)]
            window = epoch.pop(0)
            optimizer.zero_grad()
            for x, y in window:
                (cross_entropy(net(x), y) / len(window)).backward()
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
    return net, rates


@pytest.mark.parametrize("accumulate", [1, 2])
def test_epochs_are_added(accumulate):
    seen, rates, net = [], Rates(), None
    net = module(seen)
    trainer = quiet_trainer(max_epochs=0, accumulate_grad_batches=accumulate, callbacks=rates)
    for epochs in (2, 3):
        trainer.max_epochs += epochs
        trainer.fit(net, batches(3))
    per_epoch = -(-3 // accumulate)
    phases = [2 * per_epoch, 3 * per_epoch]
    plain, expected = by_hand(phases, batches(3), accumulate)
    assert seen == phases
    assert rates.rates == expected
    assert same_weights(net.net, plain)
    assert trainer.global_step == sum(phases)


def test_steps_are_added_within_an_epoch():
    seen, rates = [], Rates()
    net = module(seen)
    trainer = quiet_trainer(max_epochs=-1, max_steps=4, callbacks=rates)
    trainer.fit(net, batches(3))
    trainer.max_steps = 9
    trainer.fit(net, batches(3))
    assert seen == [4, 5]
    assert len(rates.rates) == 9


def test_epochs_end_a_run_that_stopped_within_one():
    seen, rates = [], Rates()
    net = module(seen)
    trainer = quiet_trainer(max_epochs=4, max_steps=4, callbacks=rates)
    trainer.fit(net, batches(3))
    trainer.max_steps = -1
    trainer.fit(net, batches(3))
    assert seen == [4, 8]
    assert len(rates.rates) == 12


def test_a_resumed_run_continues_its_schedule(tmp_path):
    seen, rates = [], Rates()
    full = module([])
    quiet_trainer(max_epochs=4, callbacks=rates).fit(full, batches(3))

    class Saves(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                trainer.save_checkpoint(tmp_path / "two.ckpt")

    quiet_trainer(max_epochs=4, callbacks=Saves()).fit(module([]), batches(3))
    again = module(seen)
    quiet_trainer(max_epochs=4).fit(again, batches(3), ckpt_path=tmp_path / "two.ckpt")
    assert seen == [12]
    assert same_weights(again, full)
