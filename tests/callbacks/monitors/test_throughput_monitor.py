"""ThroughputMonitor: rates and times by the test's clock, operations in closed form, resumed totals."""

from __future__ import annotations

import pytest
import torch

from lightlib.callbacks import ThroughputMonitor
from lightlib.callbacks.monitors import step_clock, throughput_monitor
from lightlib.conventions import following
from lightlib.core.trainer import Trainer
from lightlib.data import train
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib_lightning.order import LIGHTNING
from tests.runs.modules import Manual
from tests.runs.plain import QUIET, Net, Rows, batches, quiet_trainer, raising, same_weights, with_methods
from tests.runs.saves_at import SavesAt

OF_A_SAMPLE = 2 * (6 * 8 + 8 * 3)  # of the network's two layers
TRAINED = OF_A_SAMPLE + 2 * (6 * 8 + 8 * 3) + 2 * 8 * 3  # forward, gradients of the weights, and of the inner layer
DATA, FORWARD, BACKWARD, OPTIMIZER = 1.0, 2.0, 4.0, 8.0
BATCH = DATA + FORWARD + BACKWARD + OPTIMIZER


class Clock:
    """A clock that stands still unless the data or the module advance it."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def advance(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in (throughput_monitor, step_clock, train):
        monkeypatch.setattr(module, "perf_counter", made)
    return made


class Slow(Net):
    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def training_step(self, batch, batch_idx):
        self.clock.advance(FORWARD)
        return super().training_step(batch, batch_idx)

    def backward(self, loss):
        self.clock.advance(BACKWARD)
        loss.backward()

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        self.clock.advance(OPTIMIZER)


class Evaluated(Slow):
    def validation_step(self, batch, batch_idx):
        self.clock.advance(64.0)

    test_step = predict_step = validation_step


class Data:
    def __init__(self, clock, count):
        self.clock, self.count = clock, count

    def __len__(self):
        return self.count

    def __iter__(self):
        for batch in batches(self.count):
            self.clock.advance(DATA)
            yield batch


def samples(batch):
    return len(batch[0])


def fit(monitor, module, *loaders, **arguments):
    rows = Rows()
    made = Trainer(**{**QUIET, "logger": rows, "max_epochs": 1, **arguments}, callbacks=[monitor])
    made.fit(module, *loaders)
    return made, [(step, row) for step, row in rows.rows if any("time" in name for name in row)]


def test_rates_and_the_time_of_each_phase(clock):
    monitor = ThroughputMonitor(samples, lambda batch: batch[0].numel(), window_size=3)
    _, rows = fit(monitor, Slow(clock), Data(clock, 7), log_every_n_steps=2)
    assert [step for step, _ in rows] == [2, 4, 6]
    assert rows[0][1] == {
        "epoch": 0,
        "train/time": DATA + 2 * BATCH,  # the next batch is there already
        "train/batches": 2,
        "train/samples": 8,
        "train/lengths": 48,
        "train/data_time": DATA,
        "train/forward_time": FORWARD,
        "train/backward_time": BACKWARD,
        "train/optimizer_time": OPTIMIZER,
    }
    assert rows[1][1]["train/device/batches_per_sec"] == 1 / BATCH
    assert rows[1][1]["train/device/samples_per_sec"] == 4 / BATCH
    assert rows[1][1]["train/device/items_per_sec"] == 24 / BATCH
    assert {name: rows[2][1][f"train/{name}_time"] for name in step_clock.PHASES} == {
        "data": DATA,
        "forward": FORWARD,
        "backward": BACKWARD,
        "optimizer": OPTIMIZER,
    }


def test_accumulated_batches_share_one_row(clock):
    monitor = ThroughputMonitor(samples, window_size=2)
    _, rows = fit(monitor, Slow(clock), Data(clock, 6), accumulate_grad_batches=3, log_every_n_steps=1)
    assert [(step, row["train/batches"]) for step, row in rows] == [(1, 3), (2, 6)]
    assert rows[1][1]["train/optimizer_time"] == pytest.approx(OPTIMIZER / 3)
    assert rows[1][1]["train/forward_time"] == FORWARD


def test_validations_have_rates_of_their_own_and_are_no_training_time(clock):
    monitor = ThroughputMonitor(samples, window_size=2, separator=".", step_times=False)
    made, rows = fit(
        monitor, Evaluated(clock), Data(clock, 5), batches(3), val_check_interval=2, log_every_n_steps=2,
        num_sanity_val_steps=2,
    )  # fmt: skip
    assert [(step, set(row) & {"train.time", "validate.time"}) for step, row in rows] == [
        (2, {"train.time"}),
        (2, {"validate.time"}),
        (4, {"train.time"}),
        (4, {"validate.time"}),
        (6, {"validate.time"}),
    ]
    assert [row["train.time"] for _, row in rows if "train.time" in row] == [DATA + 2 * BATCH, DATA + 4 * BATCH]
    assert rows[1][1]["validate.device.samples_per_sec"] == 4 / 64
    assert not any("forward" in name for _, row in rows for name in row)
    made.test(Evaluated(clock), batches(4), verbose=False)
    made.predict(Evaluated(clock), batches(4))
    logged = [row for _, row in made.logger.rows]
    assert [row["test.samples"] for row in logged if "test.samples" in row] == [8, 16]
    assert [row["predict.samples"] for row in logged if "predict.samples" in row] == [8, 16]


def test_manual_optimization_with_two_steps_in_a_batch(clock):
    def training_step(self, batch, batch_idx):
        for _ in range(2):
            loss = Slow.training_step(self, batch, batch_idx)
            self.optimizers().zero_grad()
            self.manual_backward(loss)
            self.optimizers().step()

    def configure_optimizers(self):
        optimizer = Slow.configure_optimizers(self)
        optimizer.register_step_pre_hook(lambda *_: self.clock.advance(OPTIMIZER))
        return optimizer

    module = with_methods(Slow(clock), training_step, configure_optimizers, automatic_optimization=False)
    _, rows = fit(ThroughputMonitor(samples), module, Data(clock, 5), log_every_n_steps=4)
    assert {name: rows[-1][1][f"train/{name}_time"] for name in step_clock.PHASES} == {
        "data": DATA,
        "forward": 2 * FORWARD,
        "backward": 2 * BACKWARD,
        "optimizer": 2 * OPTIMIZER,
    }


def test_counted_operations_and_the_same_weights(clock, monkeypatch):
    monkeypatch.setattr(throughput_monitor, "get_available_flops", lambda device, dtype: 1000)
    monitor = ThroughputMonitor(samples, window_size=2, count_flops=True)
    counted = Evaluated(clock)
    data = [*Data(clock, 3), tuple(part[:2] for part in batches(1)[0])]  # the last batch is smaller
    _, rows = fit(monitor, counted, data, batches(2), log_every_n_steps=1)
    found = {step: row["train/device/flops_per_sec"] for step, row in rows if "train/device/flops_per_sec" in row}
    seconds = BATCH - DATA
    assert found == {2: 4 * TRAINED / seconds, 3: 4 * TRAINED / seconds, 4: 2 * TRAINED / seconds}
    assert [row["train/device/mfu"] for step, row in rows if step == 4 and "train/time" in row] == [found[4] / 1000]
    assert monitor.state_dict()["counted"] == {"train": [4 * TRAINED, 4], "validate": [0, 4]}
    plain = Slow(clock)
    Trainer(**QUIET, max_epochs=1).fit(plain, data)
    assert same_weights(counted, plain)


def test_the_modules_own_number_is_used(clock):
    def setup(self, stage):
        self.flops_per_batch = 300

    monitor = ThroughputMonitor(samples, window_size=2, count_flops=True)
    _, rows = fit(monitor, with_methods(Slow(clock), setup), Data(clock, 3), log_every_n_steps=2)
    assert rows[-1][1]["train/device/flops_per_sec"] == 300 / BATCH
    assert monitor.state_dict()["counted"] == {}


def test_a_batch_that_fails_leaves_no_counter_on(clock):
    fails = with_methods(Slow(clock), training_step=raising(RuntimeError("bad batch")))
    with pytest.raises(RuntimeError, match="bad batch"):
        fit(ThroughputMonitor(samples, count_flops=True), fails, Data(clock, 2))
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_without_a_number_it_says_once_how_to_give_one(clock, capsys):
    fit(ThroughputMonitor(samples), Evaluated(clock), Data(clock, 2), batches(1))
    assert capsys.readouterr().out.count("Slow has no flops_per_batch") <= 1


def test_totals_and_counts_continue_in_a_resumed_run(clock, tmp_path):
    path = tmp_path / "a.ckpt"

    def leg(*callbacks, **arguments):
        monitor, rows = ThroughputMonitor(samples, window_size=2, count_flops=True), Rows()
        made = Trainer(
            **{**QUIET, "logger": rows},
            max_epochs=2,
            callbacks=[monitor, *callbacks],
            log_every_n_steps=3,
            save_user_state=False,  # the clock of the test does not go back
        )
        made.fit(Slow(clock), Data(clock, 6), **arguments)
        return monitor.state_dict(), [(step, row) for step, row in rows.rows if "train/time" in row]

    state, rows = leg(SavesAt(path, 7))
    resumed, later = leg(ckpt_path=path)
    again = 2 * DATA  # the resumed run reads the batch before it again, and with it the one after
    assert state["totals"]["train"] == {"time": 12 * BATCH, "batches": 12, "samples": 48, "lengths": 0}
    assert resumed["totals"]["train"] == state["totals"]["train"] | {"time": 12 * BATCH + again}
    assert resumed["counted"] == state["counted"] == {"train": [4 * TRAINED, 4]}
    assert [(step, row["train/samples"]) for step, row in later] == [(9, 36), (12, 48)]
    assert later[-1][1] == rows[-1][1] | {"train/time": 12 * BATCH + again}


@pytest.mark.parametrize("what", ["batch_size_fn", "length_fn"])
@pytest.mark.parametrize("value", [0, "four", None])
def test_a_function_that_returns_no_number(clock, what, value):
    functions = {"batch_size_fn": samples, what: lambda batch: value}
    with pytest.raises(MisconfigurationException, match=f"{what} returned {value!r}"):
        fit(ThroughputMonitor(**functions), Slow(clock), Data(clock, 1))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch_size_fn": 4}, ArgumentTypeError, r"batch_size_fn=4 \(int\)\)"),
        ({"batch_size_fn": samples, "length_fn": 4}, ArgumentTypeError, r"length_fn=4 \(int\)\)"),
        ({"batch_size_fn": samples, "window_size": 1}, MisconfigurationException, r"window_size=1\)"),
        ({"batch_size_fn": samples, "separator": None}, ArgumentTypeError, r"separator=None \(NoneType\)\)"),
        ({"batch_size_fn": samples, "step_times": 1}, ArgumentTypeError, r"step_times=1 \(int\)\)"),
        ({"batch_size_fn": samples, "count_flops": "yes"}, ArgumentTypeError, r"count_flops='yes' \(str\)\)"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        ThroughputMonitor(**arguments)


def test_with_lightnings_conventions_rows_stand_at_the_step_before():
    """As recorded with Lightning 2.6.6, also where `global_step` counts the steps of two optimizers."""

    def configure(parameters):
        return [torch.optim.SGD([parameter], lr=0.1) for parameter in list(parameters)[:2]]

    rows = Rows()
    monitor = ThroughputMonitor(lambda batch: len(batch[0]))
    with following(LIGHTNING):
        trainer = quiet_trainer(callbacks=[monitor], logger=rows, max_epochs=2, log_every_n_steps=2)
        trainer.fit(Manual(configure), batches(4))
    assert [step for step, values in rows.rows if "train/batches" in values] == [1, 3, 5, 7]
