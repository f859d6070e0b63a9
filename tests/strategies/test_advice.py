"""Advice on a strategy: a table of sizes, and `strategy="auto"` with devices of a pretended memory."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lightlib.accelerators import CPUAccelerator
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.report import PossibleUserWarning
from lightlib.strategies import DDPStrategy, SingleDeviceStrategy, advise
from tests.runs import plain
from tests.runs.modules import Regression
from tests.runs.plain import batches, momentum, quiet_trainer, raising, sgd, with_methods

ADAMW = torch.optim.AdamW


def thousand(configure=ADAMW):
    """1000 parameters of 4 bytes."""
    return Regression(nn.Linear(99, 10), configure)


@pytest.mark.parametrize(
    ("devices", "memory", "configure", "strategy", "fits", "words"),
    [
        (1, None, ADAMW, "single_device", None, "memory of a device is not known"),
        (4, None, ADAMW, "ddp", None, "memory of a device is not known"),
        # parameters, gradients and two tensors of AdamW: 16 kB, and 90 % of 17.8 kB is 16.02 kB
        (1, 17_800, ADAMW, "single_device", True, "need 16.0 kB, and a device has 17.8 kB"),
        (4, 17_800, ADAMW, "ddp", True, "need 16.0 kB, and a device has 17.8 kB"),
        (1, 17_700, ADAMW, "single_device", False, "more than 90 % of the 17.7 kB of a device, and there is only one"),
        (4, 17_700, ADAMW, "fsdp", True, "sharded over 4 devices they need 4.00 kB on each"),
        (4, 4_500, ADAMW, "fsdp", True, "need 16.0 kB, more than"),
        (4, 4_400, ADAMW, "fsdp", False, "need 16.0 kB, more than"),
        # the optimizer is that of the module: 8 and 12 kB
        (4, 9_000, sgd, "ddp", True, "optimizer state need 8.00 kB"),
        (4, 13_400, momentum, "ddp", True, "optimizer state need 12.0 kB"),
        (4, 13_300, momentum, "fsdp", True, "optimizer state need 12.0 kB"),
    ],
)
def test_the_table(devices, memory, configure, strategy, fits, words):
    found = advise(thousand(configure), devices, memory)
    assert (found.strategy, found.fits) == (strategy, fits)
    assert words in found.reason


def test_optimizers_in_every_form():
    def several(parameters):
        one, two = parameters
        scheduled = torch.optim.SGD([two], lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(scheduled, 1)
        return [{"optimizer": torch.optim.SGD([one], lr=0.1)}, {"optimizer": scheduled, "lr_scheduler": scheduler}]

    assert advise(thousand(several), 2, 9_000).strategy == "ddp"
    net = thousand()
    assert advise(net, 2, 9_000, optimizers=[sgd(net.parameters())]).strategy == "ddp"
    assert advise(net, 2, 9_000, optimizers=[ADAMW(net.parameters())]).strategy == "fsdp"


def test_an_optimizer_that_cannot_be_made_counts_as_adamw():
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1 / self.trainer.max_epochs)

    reason = advise(with_methods(thousand(), configure_optimizers), 2, 9_000).reason
    assert "optimizer state (as AdamW's) need 16.0 kB" in reason
    uncopied = with_methods(thousand(), __deepcopy__=raising(TypeError("no")))
    assert "as AdamW's" in advise(uncopied, 2, 9_000).reason


def test_the_module_is_left_alone():
    net = thousand(momentum)
    before = copy.deepcopy(net.state_dict())
    state = torch.get_rng_state()
    advise(net, 2, 9_000)
    assert torch.get_rng_state().equal(state)
    assert all(value.equal(before[name]) for name, value in net.state_dict().items())
    assert all(not parameter.is_meta for parameter in net.parameters())


def test_frozen_parameters_and_other_dtypes():
    net = thousand()
    net.net.weight.requires_grad = False  # 990 of the 1000
    assert "need 4.12 kB, and" in advise(net, 2, 1_000_000).reason
    assert "need 8.00 kB, and" in advise(thousand(), 2, 1_000_000, param_dtype=torch.bfloat16).reason
    assert "optimizer state need 4.00 kB" in advise(thousand(sgd), 2, 6_000, param_dtype=torch.bfloat16).reason
    with torch.device("meta"):
        assert "need 16.0 kB, and" in advise(thousand(), 2, 1_000_000).reason


@pytest.mark.parametrize(
    ("devices", "memory", "error", "text"),
    [
        (0, 8, MisconfigurationException, "devices=0"),
        (2.0, 8, ArgumentTypeError, "devices=2.0"),
        (2, -1, MisconfigurationException, "memory=-1"),
        (2, "80GB", ArgumentTypeError, "memory='80GB'"),
    ],
)
def test_what_is_refused(devices, memory, error, text):
    with pytest.raises(error, match=text):
        advise(thousand(), devices, memory)


def test_on_a_cpu_the_number_decides_and_nothing_is_logged(caplog):
    caplog.set_level("INFO", logger="lightlib")
    trainer = quiet_trainer(strategy="auto", devices=1)
    trainer.fit(plain.Net(), batches(1))
    assert type(trainer.strategy) is SingleDeviceStrategy
    assert "auto" not in caplog.text
    assert CPUAccelerator().memory(torch.device("cpu")) is None
    assert type(quiet_trainer(strategy="auto", devices=2).strategy) is DDPStrategy


def test_one_device_is_never_changed_but_warned_of(monkeypatch):
    monkeypatch.setattr(CPUAccelerator, "memory", lambda self, device: 700)
    trainer = quiet_trainer(devices=1)
    with pytest.warns(PossibleUserWarning, match=r'strategy="auto" is single_device: .* there is only one\. Use more'):
        trainer.fit(plain.Net(), batches(1))
    assert type(trainer.strategy) is SingleDeviceStrategy
    quiet_trainer(devices=1, strategy="single_device").fit(plain.Net(), batches(1))  # chosen by the user
