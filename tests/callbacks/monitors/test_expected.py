"""ExpectedMetrics: a run passes or fails by its final metrics, and the error names each that differs."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

import lightlib as L
from lightlib.callbacks import ExpectedMetrics
from lightlib.callbacks.monitors.expected import UnexpectedMetricsError
from lightlib.errors import ArgumentTypeError, LightlibError, MisconfigurationException, UnknownNameError
from tests.processes.ranks import ranks
from tests.runs.modules import LogsLoss, Validated
from tests.runs.plain import QUIET, Net, batches, calling, quiet_trainer, with_methods


class Logs(LogsLoss, Validated):
    def __init__(self):
        super().__init__(on_step=False, on_epoch=True)


def plain_losses():
    """The mean training loss of an epoch, and the loss afterwards."""
    net, losses = Net(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in batches(4):
        optimizer.zero_grad()
        loss = cross_entropy(net.net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    x, y = batches(1)[0]
    return sum(losses) / 4, cross_entropy(net.net(x), y).item()


def fit(check):
    quiet_trainer(callbacks=[check]).fit(Logs(), batches(4), batches(1))


def test_the_numbers_of_a_plain_loop_pass():
    loss, after = plain_losses()
    fit(ExpectedMetrics({"loss": loss, "val_loss": after}, rtol=1e-5))
    fit(ExpectedMetrics({"loss": (loss - 1e-4, None), "val_loss": (None, after + 1e-4)}))
    fit(ExpectedMetrics({"loss": loss + 0.1}, rtol=0, atol=0.11))


def test_each_metric_that_differs_is_named():
    loss, after = plain_losses()
    wanted = {"loss": loss + 0.1, "val_loss": (after + 1, None), "val_los": 1.0}
    with pytest.raises(UnexpectedMetricsError) as caught:
        fit(ExpectedMetrics(wanted, rtol=0, atol=0.01))
    text = str(caught.value)
    assert "3 of 3 metrics are not as expected at the end of fit:" in text
    assert f"loss: {loss:.6g}, expected {loss + 0.1:.6g} (differs by 0.1, allowed 0.01)" in text
    assert f"val_loss: {after:.6g}, expected between {after + 1} and None" in text
    assert "val_los: was not logged. Did you mean 'val_loss'?" in text


def test_a_metric_that_is_nan_fails():
    nan = with_methods(Logs, validation_step=lambda self, batch, batch_idx: self.log("val_loss", math.nan))
    with pytest.raises(UnexpectedMetricsError, match=r"val_loss: nan, expected 1 \(is not finite"):
        quiet_trainer(callbacks=[ExpectedMetrics({"val_loss": 1.0}, rtol=1e9)]).fit(nan, batches(1), batches(1))


@pytest.mark.parametrize(("verb", "name"), [("validate", "val_loss"), ("test", "test_loss")])
def test_other_stages(verb, name):
    x, y = batches(1)[0]
    loss = cross_entropy(Net().net(x), y).item()
    module = Logs()
    run = lambda check: getattr(quiet_trainer(callbacks=[check]), verb)(module, batches(1), verbose=False)  # noqa: E731
    run(ExpectedMetrics({name: loss}, rtol=1e-5, stage=verb))
    run(ExpectedMetrics({name: loss + 1}))  # of a fit
    with pytest.raises(UnexpectedMetricsError, match=f"at the end of {verb}"):
        run(ExpectedMetrics({name: loss + 1}, stage=verb))


def on_two(rank):
    own = calling(
        training_step=lambda self, batch, batch_idx: self.log("rank", float(rank), on_step=False, on_epoch=True)
    )
    settings = QUIET | {"devices": 2, "strategy": "ddp", "max_epochs": 1}
    trainer = L.Trainer(**settings, callbacks=[ExpectedMetrics({"rank": 9.0})])
    try:
        trainer.fit(own, batches(4))
    except LightlibError as error:
        return type(error).__name__, str(error)
    return None


@pytest.mark.processes
def test_two_processes_fail_together():
    text = "1 of 1 metrics are not as expected at the end of fit on rank 0:\n    rank: 0.5, expected 9 (differs by 8.5"
    failed = ranks(2, on_two)
    assert all(text in message for _, message in failed)
    assert "UnexpectedMetricsError" in {kind for kind, _ in failed}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"expected": 1}, ArgumentTypeError, "expected=1"),
        ({"expected": {1: 2.0}}, ArgumentTypeError, "expected={1"),
        ({"expected": {}}, MisconfigurationException, "compares nothing"),
        ({"expected": {"a": "1"}}, ArgumentTypeError, "'a': '1'"),
        ({"expected": {"a": math.nan}}, ArgumentTypeError, "'a': nan"),
        ({"expected": {"a": (1, 2, 3)}}, ArgumentTypeError, r"'a': \(1, 2, 3\)"),
        ({"expected": {"a": (2, 1)}}, MisconfigurationException, "allows no number"),
        ({"expected": {"a": (None, None)}}, MisconfigurationException, "allows every number"),
        ({"expected": {"a": 1}, "rtol": "x"}, ArgumentTypeError, "rtol='x'"),
        ({"expected": {"a": 1}, "atol": -1}, MisconfigurationException, "atol=-1"),
        ({"expected": {"a": 1}, "stage": "predict"}, UnknownNameError, "Unknown stage of ExpectedMetrics 'predict'"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        ExpectedMetrics(**arguments)
