"""A data set in place of a loader: the error of a step names the batches that lightlib made of it."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightlib.core.setup.loaders import explain_batch, serve
from lightlib.errors import MisconfigurationException
from tests.runs.plain import Net, calling, quiet_trainer, samples, with_methods

DATA = TensorDataset(*samples(8))
BATCH = "The data are a TensorDataset, which lightlib serves in batches of 32: a batch is a list of 2: "
SHAPES = "a tensor of shape (8, 6), a tensor of shape (8,)."
FIX = (
    "\n  Expected: a step that takes such a batch.\n"
    "  Fix: unpack it, `x, y = batch`, or pass a DataLoader with a `collate_fn` of your own."
)
with_notes = pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes from Python 3.11 on")


class Expects(Net):
    """Takes a batch for a tensor."""

    def training_step(self, batch, batch_idx):
        return self.net(batch).mean()

    def validation_step(self, batch, batch_idx):
        self.net(batch)


def notes(error):
    return getattr(error, "__notes__", [])


@with_notes
class TestSaid:
    def test_in_training(self):
        with pytest.raises(TypeError) as caught:
            quiet_trainer(limit_val_batches=0).fit(Expects(), DATA)
        assert notes(caught.value) == [BATCH + SHAPES + FIX]

    @pytest.mark.parametrize("sanity", [0, 1])
    def test_in_validation(self, sanity):
        module = with_methods(Expects, training_step=Net.training_step)
        with pytest.raises(TypeError) as caught:
            quiet_trainer(num_sanity_val_steps=sanity).fit(module, DATA, DATA)
        assert notes(caught.value) == [BATCH + SHAPES + FIX]

    def test_of_other_batches(self):
        error = ValueError("shape")
        batch = {"x": torch.ones(2, 3), "names": ["a", "b"], "n": 5}
        explain_batch(error, [serve(DATA, "val", 2)], batch)
        (note,) = notes(error)
        assert note.endswith(
            "a batch is a dict of 'x': a tensor of shape (2, 3), 'names': a list of 2: a str, a str, 'n': a int.\n"
            "  Expected: a step that takes such a batch.\n"
            "  Fix: read it by its keys, batch['x'], or pass a DataLoader with a `collate_fn` of your own."
        )

    @pytest.mark.parametrize(
        ("batch", "code"),
        [([1], "unpack it, `x, = batch`,"), ((1, 2, 3), "unpack it, `x0, x1, x2 = batch`,"), (1, "compute with it as")],
    )
    def test_of_batches_of_other_lengths(self, batch, code):
        error = ValueError("shape")
        explain_batch(error, [serve(DATA, "val", 2)], batch)
        assert f"Fix: {code}" in notes(error)[0]


class TestNotSaid:
    def test_of_a_loader_of_the_user(self):
        with pytest.raises(TypeError) as caught:
            quiet_trainer(limit_val_batches=0).fit(Expects(), DataLoader(DATA, batch_size=4))
        assert notes(caught.value) == []

    def test_of_a_later_batch(self):
        def training_step(self, batch, batch_idx):
            if batch_idx:
                raise TypeError("later")

        with pytest.raises(TypeError) as caught:
            quiet_trainer(limit_val_batches=0).fit(calling(Net, training_step), TensorDataset(*samples(64)))
        assert notes(caught.value) == []

    @pytest.mark.parametrize("error", [MisconfigurationException("ours"), KeyboardInterrupt(), SystemExit(1)])
    def test_of_other_errors(self, error):
        explain_batch(error, [serve(DATA, "val", 2)], torch.ones(1))
        assert notes(error) == []
