"""LearningRateFinder: the curve of a plain loop, Lightning's suggestion, and no trace in the run."""

from __future__ import annotations

import os

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import lightlib as L
from lightlib.callbacks import LearningRateFinder, ModelCheckpoint
from lightlib.errors import MisconfigurationException
from lightlib.tuner import Tuner
from lightlib.tuner.lr_curve import LRFinder
from tests.runs import plain
from tests.runs.plain import with_methods
from tests.tuner.nets import QUIET, Net, outcome

# Tuner.lr_find of Lightning 2.6.6 with the module, the data and the arguments of `test_lightnings_numbers`.
RECORDED = {
    "exponential": {
        "n": 53,
        "lr": [0.0001, 0.0001548694181916953, 0.00019272963557631287, 8.691752218196562, 10.816585075945353],
        "loss": [0.6117834587289822, 0.8508939408004044, 0.9117081336590201, 1.8269202950424595, 2.632840908844075],
        "suggestion": 0.005124966150526037,
    },
    "linear": {
        "n": 60,
        "lr": [0.0001, 0.03343, 0.05009500000000001, 0.983335, 1.0],
        "loss": [0.6117834587289822, 0.8508939408004044, 0.911237603648342, 1.0132847403806806, 1.0224009779019558],
        "suggestion": 0.86668,
    },
}


def curve_of_a_loop(batches, n, low, high, threshold=4.0):
    """The smoothed losses and learning rates of plain SGD with a learning rate that grows exponentially."""
    net, lrs, losses, mean, best = plain.network(), [], [], 0.0, 0.0
    optimizer = torch.optim.SGD(net.parameters(), low, momentum=0.9)
    for step in range(n):
        lr = low if step == 0 else low * (high / low) ** ((step + 1) / n)
        optimizer.param_groups[0]["lr"] = lr
        x, y = batches[step % len(batches)]
        loss = cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = 0.98 * mean + (1 - 0.98) * loss.item()
        smooth = mean / (1 - 0.98 ** (step + 2))
        lrs.append(lr)
        losses.append(smooth)
        if step > 0 and smooth > threshold * best:
            break
        best = smooth if step == 0 else min(best, smooth)
    return lrs, losses


def test_the_curve_is_that_of_a_plain_loop():
    module, batches = Net(), plain.batches(10)
    curve = Tuner(L.Trainer(**QUIET, max_epochs=1)).lr_find(
        module, batches, min_lr=1e-4, max_lr=50.0, num_training=60, update_attr=False
    )
    lrs, losses = curve_of_a_loop(batches, 60, 1e-4, 50.0)
    assert (curve.results["lr"], curve.results["loss"]) == (lrs, losses)
    assert module.lr == 0.1


def test_it_stops_at_a_loss_beyond_the_threshold():
    batches = plain.batches(10)
    curve = Tuner(L.Trainer(**QUIET, max_epochs=1)).lr_find(
        Net(), batches, min_lr=1e-2, max_lr=1e4, num_training=60, early_stop_threshold=1.5, update_attr=False
    )
    lrs, losses = curve_of_a_loop(batches, 60, 1e-2, 1e4, 1.5)
    assert len(losses) < 60
    assert (curve.results["lr"], curve.results["loss"]) == (lrs, losses)


@pytest.mark.parametrize("mode", ["exponential", "linear"])
def test_lightnings_numbers(mode):
    data = DataLoader(TensorDataset(*plain.samples(40)), batch_size=4)
    module = with_methods(Net, configure_optimizers=lambda self: torch.optim.SGD(self.parameters(), self.lr))
    curve = Tuner(L.Trainer(**QUIET, max_epochs=100)).lr_find(
        module, data, mode=mode, min_lr=1e-4, max_lr=50.0 if mode == "exponential" else 1.0, num_training=60
    )
    lr, loss, expected = curve.results["lr"], curve.results["loss"], RECORDED[mode]
    assert len(lr) == expected["n"]
    assert lr[:3] + lr[-2:] == pytest.approx(expected["lr"], rel=1e-12)
    assert loss[:3] + loss[-2:] == pytest.approx(expected["loss"], rel=1e-4)
    assert curve.suggestion() == module.lr == pytest.approx(expected["suggestion"], rel=1e-12)


def test_a_search_that_sets_nothing_leaves_no_trace():
    def run(callbacks):
        torch.manual_seed(3)
        module, loader = Net(dropout=0.5), plain.loader(40, shuffle=True, generator=torch.Generator().manual_seed(4))
        trainer = L.Trainer(**plain.QUIET, max_epochs=2, callbacks=callbacks)
        trainer.fit(module, loader, plain.loader(8))
        return outcome(trainer, module)

    finder = LearningRateFinder(num_training_steps=15, update_attr=False)
    torch.testing.assert_close(run([finder]), run([]), rtol=0, atol=0)
    assert len(finder.optimal_lr.results["lr"]) == 15
    assert os.listdir(".") == []


def test_training_begins_with_what_was_found():
    finder = LearningRateFinder(min_lr=1e-3, max_lr=1.0, num_training_steps=30)
    module = Net()
    trainer = L.Trainer(**QUIET, max_epochs=2, callbacks=[finder])
    trainer.fit(module, plain.batches(5))
    found = finder.optimal_lr.suggestion()
    assert module.lr == found != 0.1
    assert trainer.lr_scheduler_configs[0].scheduler.base_lrs == [found]

    net = plain.network()
    optimizer = torch.optim.SGD(net.parameters(), found, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for _ in range(2):
        for x, y in plain.batches(5):
            optimizer.zero_grad()
            cross_entropy(net(x), y).backward()
            optimizer.step()
        schedule.step()
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), module.net.parameters(), strict=True))


def test_a_resumed_run_does_not_search_again(monkeypatch):
    searches = []
    trial = L.Trainer.run_probe
    monkeypatch.setattr(L.Trainer, "run_probe", lambda self, *args: (searches.append(1), trial(self, *args))[1])

    def run(epochs, **resumed):
        torch.manual_seed(3)
        finder = LearningRateFinder(min_lr=1e-3, max_lr=1.0, num_training_steps=30)
        module = Net(dropout=0.5)
        saves = ModelCheckpoint("saved", "{step}", every_n_train_steps=3, save_top_k=-1)
        quiet = {**QUIET, "enable_checkpointing": True}
        trainer = L.Trainer(**quiet, max_epochs=epochs, callbacks=[finder, saves])
        trainer.fit(module, plain.loader(20, shuffle=True), **resumed)
        result = outcome(trainer, module)
        return {name: result[name] for name in ("weights", "optimizer", "schedules", "random", "progress")}, module.lr

    unbroken, lr = run(2)
    assert searches == [1]
    resumed, again = run(2, ckpt_path="saved/step=3.ckpt")
    assert searches == [1]
    assert lr == again
    torch.testing.assert_close(resumed, unbroken, rtol=0, atol=0)


def test_an_error_in_the_search_leaves_everything_as_it_was():
    def on_train_batch_start(self, batch, batch_idx):
        if self.trainer.global_step == 5 and len(self.seen) == 5:
            raise RuntimeError("in the search")

    module, finder = with_methods(Net, on_train_batch_start), LearningRateFinder(num_training_steps=15)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="in the search"):
        L.Trainer(**QUIET, max_epochs=1, callbacks=[finder]).fit(module, plain.batches(10))
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert (finder.optimal_lr, module.seen, module.lr, os.listdir(".")) == (None, [], 0.1, [])


def test_own_moments():
    class AtEpoch1(LearningRateFinder):
        def on_fit_start(self, trainer, pl_module):
            return

        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                self.lr_find(trainer, pl_module)

    finder, module = AtEpoch1(min_lr=1e-3, num_training_steps=20), Net()
    trainer = L.Trainer(**QUIET, max_epochs=2, callbacks=[finder])
    trainer.fit(module, plain.batches(5))
    assert module.lr == finder.optimal_lr.suggestion()
    assert len(module.seen) == 10
    assert trainer.global_step == 10


def test_hyperparameters_are_set():
    class Saved(Net):
        def __init__(self, learning_rate):
            super().__init__()
            del self.lr
            self.save_hyperparameters()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), self.hparams.learning_rate)

    module = Saved(0.5)
    curve = Tuner(L.Trainer(**QUIET)).lr_find(module, plain.batches(5), num_training=20)
    assert module.hparams.learning_rate == curve.suggestion() != 0.5


def test_the_suggestion_is_the_steepest_descent():
    curve = LRFinder("linear", 0.0, 1.0, 5)
    curve.results = {"lr": [0.1, 0.2, 0.3, 0.4, 0.5], "loss": [3.0, 2.0, float("nan"), 1.9, 5.0]}
    assert curve.suggestion(skip_begin=0) == 0.1  # 3 to 2 is the steepest; NaN is left out
    with pytest.warns(UserWarning, match="No learning rate can be suggested: 0 finite losses are left of 5"):
        assert curve.suggestion() is None


def test_the_plot_marks_the_suggestion():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    curve = LRFinder("exponential", 0.01, 1.0, 14)
    curve.results = {"lr": [0.01 * (i + 1) for i in range(14)], "loss": [14.0 - i for i in range(14)]}
    axes = curve.plot(suggest=True).axes[0]
    assert (axes.get_xscale(), axes.get_xlabel(), axes.get_ylabel()) == ("log", "Learning rate", "Loss")
    assert list(axes.lines[0].get_ydata()) == curve.results["loss"]
    assert list(axes.lines[1].get_xdata()) == [curve.suggestion()]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"mode": "cubic"}, r"mode of LearningRateFinder 'cubic'.*'exponential', 'linear'"),
        ({"num_training_steps": 0}, r"num_training_steps=0"),
        ({"min_lr": -1}, r"min_lr=-1"),
        ({"min_lr": 2}, r"min_lr=2, max_lr=1.*min_lr < max_lr"),
        ({"max_lr": "1"}, r"max_lr='1'"),
        ({"early_stop_threshold": 0}, r"early_stop_threshold=0"),
    ],
)
def test_bad_arguments(arguments, text):
    with pytest.raises(MisconfigurationException, match=f"(?s){text}"):
        LearningRateFinder(**arguments)


def test_bad_runs():
    def configure_optimizers(self):
        return [torch.optim.SGD(self.net[i].parameters(), 0.1) for i in (0, 3)]

    def find(module, **arguments):
        return Tuner(L.Trainer(**QUIET, max_epochs=1)).lr_find(module, plain.batches(5), num_training=5, **arguments)

    nameless, uncopied = Net(), Net()
    del nameless.lr
    uncopied.numbers = (i for i in range(3))
    with pytest.raises(MisconfigurationException, match=r"looked for `lr` or `learning_rate` in Net"):
        find(nameless)
    with pytest.raises(MisconfigurationException, match=r"looked for `rate` in Net"):
        find(Net(), attr_name="rate")
    with pytest.raises(MisconfigurationException, match="with 2 optimizers"):
        find(with_methods(Net, configure_optimizers))
    with pytest.raises(MisconfigurationException, match="Given, which steps its optimizers itself"):
        find(with_methods(Net, automatic_optimization=False, training_step=lambda self, batch, batch_idx: None))
    with pytest.raises(MisconfigurationException, match="method='validate'"):
        find(Net(), method="validate")
    with pytest.raises(MisconfigurationException, match="dataloaders with method='fit'"):
        find(Net(), dataloaders=plain.batches(1))
    with pytest.raises(MisconfigurationException, match="has a LearningRateFinder already"):
        Tuner(L.Trainer(**QUIET, callbacks=[LearningRateFinder()])).lr_find(Net(), plain.batches(5))
    with pytest.raises(MisconfigurationException, match="cannot copy the module and its data: TypeError"):
        find(uncopied)
    with pytest.warns(UserWarning, match="fast_dev_run is on"):
        assert Tuner(L.Trainer(**QUIET, fast_dev_run=True)).lr_find(Net(), plain.batches(5)) is None
