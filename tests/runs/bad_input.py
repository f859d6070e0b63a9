"""Shared by tests of bad input: a small run that counts its steps, and a comparison of errors."""

from __future__ import annotations

import re
from contextlib import contextmanager

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightlib import report
from lightlib.core.module.module import Module
from lightlib.core.trainer import Trainer
from tests.runs import plain, quiet

QUIET = quiet.QUIET | {"max_epochs": 1}


def loader(samples=4):
    """Batches of one sample."""
    return DataLoader(TensorDataset(torch.randn(samples, 2), torch.randn(samples, 1)))


class Net(Module):
    """One layer, which counts its training steps."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.steps = 0

    def loss(self, batch):
        x, y = batch
        return (self.layer(x) - y).square().mean()

    def training_step(self, batch, batch_idx):
        self.steps += 1
        return self.loss(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Validated(Net):
    """With a validation that logs."""

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))


def with_methods(base=Net, *functions, **methods):
    """Return a module with these methods, as `plain.with_methods` does."""
    return plain.with_methods(base, *functions, **methods)


def trainer(**arguments):
    """A Trainer that prints and writes nothing."""
    return Trainer(**{**QUIET, **arguments})


def fits(pattern, text):
    """Whether `text` is `pattern`, in which *** stands for anything."""
    return re.fullmatch(re.escape(pattern).replace(r"\*\*\*", ".*"), text, re.DOTALL) is not None


@contextmanager
def refused(kind, what, expected, fix):
    """Expect exactly this error, with these three parts, in which *** stands for anything."""
    with pytest.raises(kind) as caught:
        yield caught
    assert type(caught.value) is kind
    text = str(caught.value)
    found, _, rest = text.partition("\n  Expected: ")
    found_expected, _, found_fix = rest.partition("\n  Fix: ")
    for pattern, part in ((what, found), (expected, found_expected), (fix, found_fix)):
        assert part, text
        assert fits(pattern, part), f"\n  {part}\nis not\n  {pattern}"


def refuses_fit(module, *data, error, steps=0, **arguments):
    """Expect `fit` to raise this error after so many training steps."""
    before = {name: value.clone() for name, value in module.state_dict().items()} if steps == 0 else {}
    with refused(*error) as caught:
        trainer(**arguments).fit(module, *(data or (loader(),)))
    assert module.steps == steps
    assert all(module.state_dict()[name].equal(value) for name, value in before.items())
    return caught.value


@pytest.fixture
def said(monkeypatch):
    """Lines that are printed through `report.info`."""
    lines: list[str] = []
    monkeypatch.setattr(report, "info", lines.append)
    return lines
