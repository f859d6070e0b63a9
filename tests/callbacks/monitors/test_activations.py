"""ActivationMonitor: the statistics of a plain forward, in the logged batches alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightlib.callbacks import ActivationMonitor
from lightlib.core.trainer import Trainer
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.loggers.media import Histogram
from tests.runs.plain import QUIET, Net, Rows, batches, quiet_trainer, sgd


class Recording(Rows):
    """A logger that keeps histograms as well."""

    media_kinds = (Histogram,)

    def __init__(self):
        super().__init__()
        self.media = []

    def log_media(self, name, media, step):
        self.media.append((name, step, sum(media.counts)))


def net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def logged(monitor, data, **arguments):
    rows = Recording()
    Trainer(**QUIET | {"logger": rows, "max_epochs": 1, "callbacks": [monitor], **arguments}).fit(Net(net=net()), data)
    found = {step: row for step, row in rows.rows if any(name.startswith("activations") for name in row)}
    return found, rows.media


def by_hand(data, steps):
    """Train a plain loop; return the statistics of the first two layers before these steps."""
    module, found = net(), {}
    optimizer = sgd(module.parameters())
    for step, (x, y) in enumerate(data, 1):
        optimizer.zero_grad()
        first = module[0](x)
        second = module[1](first)
        nn.functional.cross_entropy(module[2](second), y).backward()
        if step in steps:
            for name, values in (("net.0", first.detach()), ("net.1", second.detach())):
                found.setdefault(step, {}).update(
                    {
                        f"activations/{name}/mean": float(values.mean()),
                        f"activations/{name}/std": float(values.var(correction=0).sqrt()),
                        f"activations/{name}/max_abs": float(values.abs().max()),
                        f"activations/{name}/zeros": float((values == 0).double().mean()),
                    }
                )
        optimizer.step()
    return found


def test_the_statistics_are_those_of_a_plain_loop():
    found, media = logged(ActivationMonitor(["net.0", "*.1"], every_n_steps=3), batches(7))
    expected = by_hand(batches(7), (3, 6))
    assert sorted(found) == [3, 6]
    for step, row in expected.items():
        assert {name: found[step][name] for name in row} == pytest.approx(row, rel=1e-5)
        assert not any("net.2" in name for name in found[step])
    assert media == []


def test_accumulated_batches_are_those_that_close_a_step():
    found, _ = logged(ActivationMonitor("net.1", every_n_steps=1), batches(4), accumulate_grad_batches=2)
    assert sorted(found) == [1, 2]


def test_histograms_go_to_the_loggers():
    _, media = logged(ActivationMonitor("net.0", every_n_steps=2, histograms=True), batches(4))
    assert media == [("activations/net.0", 2, 32), ("activations/net.0", 4, 32)]


def test_no_hook_stays():
    module = Net()
    quiet_trainer(callbacks=[ActivationMonitor(every_n_steps=1)]).fit(module, batches(2))
    assert not any(part._forward_hooks for part in module.modules())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"layers": "nets"}, MisconfigurationException, "matches no layer of Net. Did you mean 'net'"),
        ({"layers": [1]}, ArgumentTypeError, "names of layers"),
        ({"every_n_steps": 0}, MisconfigurationException, "every_n_steps"),
        ({"histograms": "all"}, ArgumentTypeError, "histograms"),
    ],
)
def test_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        quiet_trainer(callbacks=[ActivationMonitor(**arguments)]).fit(Net(), batches(1))
