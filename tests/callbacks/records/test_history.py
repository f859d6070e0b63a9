"""History: the values of a plain loop, windows as NumPy's, and an exact resume."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightlib.callbacks import Callback, History
from lightlib.core.trainer import Trainer
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from tests.runs.modules import LogsLoss, Validated
from tests.runs.plain import QUIET, Net, loader
from tests.runs.resumable import Everything, loaders
from tests.runs.saves_at import SavesAt


class Validates(LogsLoss, Validated):
    pass


def trainer(history, **settings):
    return Trainer(**QUIET, log_every_n_steps=1, callbacks=[history], **{"max_epochs": 2, **settings})


def losses_of_a_plain_loop(data, epochs, model=None):
    model = model or Net()
    optimizer = model.configure_optimizers()
    losses = []
    for _ in range(epochs):
        for x, y in data:
            loss = torch.nn.functional.cross_entropy(model.net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def test_the_values_of_several_fits_are_those_of_plain_loops():
    history, data = History(), loader(20)
    for _ in range(2):
        trainer(history).fit(Validates(on_step=True, on_epoch=True), data, loader(8))
    expected = losses_of_a_plain_loop(data, 2)
    records = history["loss_step"]
    assert [record.value for record in records] == expected * 2
    assert [record.fit for record in records] == [0] * 10 + [1] * 10
    assert [record.epoch for record in records] == ([0] * 5 + [1] * 5) * 2
    assert [record.step for record in records] == [*range(1, 11)] * 2
    by_epoch = [float(numpy.mean(expected[:5], dtype=numpy.float64)), float(numpy.mean(expected[5:]))]
    assert history.values("loss_epoch") == pytest.approx(by_epoch * 2, rel=1e-6)
    assert [record[:3] for record in history["val_loss"]] == [(0, 0, 5), (0, 1, 10), (1, 0, 5), (1, 1, 10)]
    assert history.names == ["loss_step", "val_loss", "loss_epoch"]
    assert "loss_step" in history
    assert "epoch" not in history


def test_windows_over_a_run():
    history, data = History(), loader(20)
    for _ in range(2):
        trainer(history).fit(LogsLoss(on_step=True, on_epoch=True), data)
    losses = losses_of_a_plain_loop(data, 2) * 2
    assert history.smoothed("loss_step", 3) == pytest.approx(numpy.mean(losses[-3:]), rel=1e-15)
    assert history.smoothed("loss_step", "epoch", "median") == numpy.median(losses[-5:])
    assert history.smoothed("loss_step", "global", "max") == max(losses)
    assert history.smoothed("loss_step", 1000, "min") == min(losses)
    assert history.latest("loss_step") == history.smoothed("loss_step", method="latest") == losses[-1]


NUMPY = {"mean": numpy.mean, "median": numpy.median, "min": numpy.min, "max": numpy.max, "latest": lambda v: v[-1]}


@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=12), st.integers(1, 14))
def test_smoothing_equals_numpy(values, window):
    history = History()
    for value in values:
        history.add("x", value)
    for method, function in NUMPY.items():
        for size, part in ((window, values[-window:]), ("global", values), ("epoch", values)):
            found, expected = history.smoothed("x", size, method), float(function(part))
            assert found == pytest.approx(expected, rel=1e-12, abs=1e-9, nan_ok=True)


class Shares(Callback):
    """Adds values to the history, and counts in its `info`."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        trainer.history.add("square", outputs["loss"] ** 2)
        info = trainer.history.info
        info["batches"] = info.get("batches", 0) + 1


def test_other_callbacks_find_it():
    history, shares = History(), Shares()
    settings = {**QUIET, "max_epochs": 1, "log_every_n_steps": 1}
    shared = Trainer(**settings, callbacks=[shares, history])
    shared.fit(LogsLoss(on_step=True, on_epoch=True), loader(20))
    assert shared.history is history
    assert history.values("square") == [float(torch.tensor(loss) ** 2) for loss in history.values("loss_step")]
    assert [record[:3] for record in history["square"]] == [(0, 0, step) for step in range(1, 6)]
    assert history.info == {"batches": 5}
    assert Trainer(**QUIET).history is None


def state_of(tmp_path, saved_at=None, resumed=None):
    """Run `Everything` for three epochs, and return the state of its history."""
    torch.manual_seed(3)
    history = History()
    callbacks = [history, Shares(), *([SavesAt(tmp_path / "saved.ckpt", saved_at)] if saved_at else [])]
    run = Trainer(**QUIET, log_every_n_steps=1, max_epochs=3, val_check_interval=0.5, callbacks=callbacks)
    data = loaders()
    run.fit(Everything(), *data, ckpt_path=resumed)
    return history.state_dict()


def same(one, two):
    assert list(one["series"]) == list(two["series"])
    for name, series in one["series"].items():
        for part, tensor in series.items():
            assert torch.equal(tensor, two["series"][name][part]), (name, part)
    assert (one["now"], one["info"]) == (two["now"], two["info"])


@pytest.mark.parametrize("step", [1, 6, 7, 10, 14, 20])
def test_a_resumed_run_has_the_history_of_an_unbroken_one(tmp_path, step):
    whole = state_of(tmp_path, saved_at=step)
    assert len(whole["series"]["loss_step"]["values"]) == whole["now"][2] > 20
    same(state_of(tmp_path, resumed=tmp_path / "saved.ckpt"), whole)


def test_the_oldest_values_are_forgotten():
    history = History(max_values=3)
    for value in range(5):
        history.add("x", value)
    assert history.values("x") == [2.0, 3.0, 4.0]
    assert len(history["x"]) == 3


def test_it_can_be_emptied():
    history, data = History(), loader(20)
    trainer(history).fit(LogsLoss(on_step=True, on_epoch=True), data)
    history.clear()
    assert history.names == []
    trainer(history).fit(LogsLoss(on_step=True, on_epoch=True), data)
    assert {record.fit for record in history["loss_step"]} == {0}


def test_bad_input():
    history = History()
    with pytest.raises(UnknownNameError, match=r"Unknown metric of History 'los'"):
        history.values("los")
    history.add("loss", 1.0)
    with pytest.raises(UnknownNameError, match=r"'los'\. Did you mean 'loss'\?"):
        history.smoothed("los")
    with pytest.raises(UnknownNameError, match=r"Unknown window of History\.smoothed 'epochs'"):
        history.smoothed("loss", "epochs")
    with pytest.raises(UnknownNameError, match=r"Unknown method of History\.smoothed 'average'"):
        history.smoothed("loss", 2, "average")
    with pytest.raises(MisconfigurationException, match=r'window=0\)\.\n  Expected: an int >= 1, "epoch" or "global"'):
        history.smoothed("loss", 0)
    with pytest.raises(ArgumentTypeError, match=r"window=2\.5"):
        history.smoothed("loss", 2.5)
    with pytest.raises(ArgumentTypeError, match=r"The metric 'loss' is 'high'"):
        history.add("loss", "high")
    with pytest.raises(MisconfigurationException, match=r"History\(max_values=0\)\.\n  Expected: an int >= 1, or None"):
        History(max_values=0)
