"""The cost of a batch beyond plain PyTorch, in Python calls: the same number on every machine."""

from __future__ import annotations

import gc
import io
import itertools

import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks.calls import count_calls
from lightlib.callbacks import Callback, ModelCheckpoint, RichProgressBar
from lightlib.callbacks.progress import timed
from lightlib.core.trainer import Trainer
from tests.runs.plain import Net, batches, loader, quiet_trainer

LONG, SHORT = 200, 100


def calls(function, *args):
    """Return the number of Python functions that `function` calls."""
    gc.disable()  # no collection of other tests' garbage: finalizers are calls too
    try:
        return count_calls(lambda: function(*args))
    finally:
        gc.enable()


def per_batch(run):
    """Return the Python calls per batch of `run(number_of_batches)`, without those made once per run."""
    for _ in range(2):  # the second run of a module may import something, too
        run(10)
    return (calls(run, LONG) - calls(run, SHORT)) / (LONG - SHORT)


def data(n):
    return batches(1, size=16) * n


@pytest.fixture(scope="module")
def plain():
    def run(n):
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x, y in data(n):
            optimizer.zero_grad()
            cross_entropy(net.net(x), y).backward()
            optimizer.step()

    return per_batch(run)


@pytest.fixture(scope="module")
def forward():
    def run(n):
        net = Net().eval()
        with torch.inference_mode():
            for x, y in data(n):
                cross_entropy(net.net(x), y)

    return per_batch(run)


def in_memory(n):
    return loader(16 * n, 16, shuffle=True)


class Logs(Net):
    """Logs so many names per step, with these arguments."""

    def __init__(self, names, **arguments):
        super().__init__()
        self.names = [f"loss{i}" for i in range(names)]
        self.arguments = arguments

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        for name in self.names:
            self.log(name, loss, **self.arguments)
        return loss

    def validation_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        for name in self.names:
            self.log(name, loss)

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])


def fit(module, **arguments):
    return per_batch(lambda n: quiet_trainer(limit_val_batches=0, **arguments).fit(module, data(n)))


class TestTraining:
    def test_bare(self, plain):
        assert fit(Net()) - plain <= 45

    def test_bare_with_accumulation_and_clipping(self, plain):
        assert fit(Net(), accumulate_grad_batches=4, gradient_clip_val=1.0) - plain <= 45

    def test_clipping_adds_three_calls_to_those_of_torch(self, plain):
        def by_hand(n):
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for x, y in data(n):
                optimizer.zero_grad()
                cross_entropy(net.net(x), y).backward()
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()

        clipped = fit(Net(), gradient_clip_val=1.0) - per_batch(by_hand)
        assert clipped - (fit(Net()) - plain) <= 3

    def test_data_in_memory_are_read_with_fewer_calls_than_the_loop_by_hand_has(self):
        def by_hand(n):
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for x, y in in_memory(n):
                optimizer.zero_grad()
                cross_entropy(net.net(x), y).backward()
                optimizer.step()

        ours = per_batch(lambda n: quiet_trainer(limit_val_batches=0).fit(Net(), in_memory(n)))
        assert ours < per_batch(by_hand) - 30

    def test_each_log(self):
        none, one, three = (fit(Logs(names)) for names in (0, 1, 3))
        assert one - none <= 10
        assert (three - one) / 2 <= 10

    def test_the_first_log_of_a_mean_looks_for_the_batch_size(self):
        none, one, three = (fit(Logs(names, on_step=True, on_epoch=True, prog_bar=True)) for names in (0, 1, 3))
        assert one - none <= 15
        assert (three - one) / 2 <= 10


class Nothing(Callback):
    """Overrides no hook."""


class TestTenCallbacksThatOverrideNothing:
    """They cost no call per batch; one call of one of them would make the difference 1."""

    @staticmethod
    def added(cost):
        """The smaller of two measurements each: calls that are made once in a process do not count."""
        ten = min(cost([Nothing() for _ in range(10)]) for _ in range(2))
        return ten - min(cost([]) for _ in range(2))

    @pytest.mark.parametrize("settings", [{}, {"accumulate_grad_batches": 4, "gradient_clip_val": 1.0}])
    def test_in_training(self, settings):
        assert abs(self.added(lambda callbacks: fit(Net(), callbacks=callbacks, **settings))) < 0.5

    @pytest.mark.parametrize("verb", ["validate", "test", "predict"])
    def test_in_other_stages(self, verb):
        quiet = {} if verb == "predict" else {"verbose": False}

        def cost(callbacks):
            return per_batch(lambda n: getattr(quiet_trainer(callbacks=callbacks), verb)(Logs(1), data(n), **quiet))

        assert abs(self.added(cost)) < 0.5


@pytest.mark.filterwarnings("ignore:No logger received a value")  # in the shorter of two runs that are compared
class TestDefaultTrainer:
    """A progress bar, TensorBoard every 50 steps, a ModelCheckpoint, and one `self.log`."""

    def default(self, tmp_path, **arguments):
        def run(n):
            Trainer(max_epochs=1, accelerator="cpu", default_root_dir=tmp_path, limit_val_batches=0, **arguments).fit(
                Logs(1), data(n)
            )

        return per_batch(run)

    @pytest.fixture(autouse=True)
    def clock(self, monkeypatch):
        """A clock by which a batch takes two milliseconds, so that every machine draws as often."""
        monkeypatch.setattr(timed, "monotonic", itertools.count(0, 0.002).__next__)

    def test_with_lines_in_place_of_a_bar(self, plain, tmp_path, capsys):
        assert self.default(tmp_path) - plain <= 120

    def test_with_a_bar_drawn_by_rich(self, plain, tmp_path):
        screen = io.StringIO()
        bar = RichProgressBar(console_kwargs={"file": screen, "force_terminal": True, "width": 120})
        assert self.default(tmp_path, callbacks=[bar]) - plain <= 120
        assert screen.getvalue().count("Epoch 1/1") > 10


def test_a_checkpoint_per_epoch_calls_nothing_after_a_batch(tmp_path):
    checkpoint, module = ModelCheckpoint(tmp_path), Net()
    trainer = quiet_trainer(callbacks=[checkpoint], enable_checkpointing=True)
    trainer.fit(module, data(2))
    nothing = calls(lambda: None)
    assert calls(lambda: checkpoint.on_train_batch_end(trainer, module, None, None, 0)) - nothing == 1


class TestEvaluation:
    """Ceilings are the measured values plus a fifth."""

    @pytest.mark.parametrize("verb", ["validate", "test"])
    def test_evaluate(self, forward, verb):
        def run(n):
            getattr(quiet_trainer(), verb)(Logs(1), data(n), verbose=False)

        assert per_batch(run) - forward <= 30

    def test_validation_within_fit(self, forward):
        def run(n):
            quiet_trainer().fit(Logs(0), data(2), data(n))

        assert per_batch(run) - forward <= 14

    def test_predict(self, forward):
        def run(n):
            quiet_trainer().predict(Logs(0), data(n))

        assert per_batch(run) - forward <= 5
