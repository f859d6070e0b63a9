"""EpochMonitor: times by a clock of the test, and memory, once per epoch."""

from __future__ import annotations

import pytest
import torch

from lightlib.callbacks import EpochMonitor
from lightlib.callbacks.monitors import epochs
from lightlib.core.trainer import Trainer
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from tests.runs.plain import QUIET, Net, Rows, batches
from tests.runs.saves_at import SavesAt

STEP, VALIDATION = 2.0, 32.0


CLOCK = [0.0]


class Timed(Net):
    """Each batch takes two seconds more than the one before it in the epoch."""

    def training_step(self, batch, batch_idx):
        CLOCK[0] += STEP * (batch_idx + 1)
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self):
        self.log("done", 1.0)


class Validated(Timed):
    def validation_step(self, batch, batch_idx):
        CLOCK[0] += VALIDATION


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(epochs, "perf_counter", lambda: CLOCK[0])


def rows_of(monitor, module, *loaders, fit=None, **arguments):
    logger = Rows()
    made = Trainer(**QUIET | {"logger": logger}, **{"max_epochs": 2, "callbacks": [monitor], **arguments})
    made.fit(module, *loaders, **(fit or {}))
    rows = [(step, row) for step, row in logger.rows if "time/train_epoch" in row]
    return [
        (step, {name: value for name, value in row.items() if name.startswith("time/")}) for step, row in rows
    ], made


def test_times_of_steps_and_epochs():
    rows, made = rows_of(EpochMonitor(), Timed(), batches(4))
    of_epoch = {"time/train_epoch": 20.0, "time/train_step_last": 8.0, "time/train_step_mean": 5.0}
    assert rows == [(4, of_epoch), (8, of_epoch)]
    assert made.callback_metrics["time/train_epoch"] == 20.0


def test_validations_are_apart():
    rows, _ = rows_of(EpochMonitor(), Validated(), batches(4), batches(2), val_check_interval=2)
    assert [row["time/val_epoch"] for _, row in rows] == [4 * VALIDATION] * 2
    assert [row["time/train_epoch"] for _, row in rows] == [20.0] * 2
    assert [row["time/train_step_last"] for _, row in rows] == [8.0] * 2


def test_the_mean_leaves_out_the_first_batches_of_the_run():
    rows, _ = rows_of(EpochMonitor(warmup_steps=3), Timed(), batches(4))
    assert [row["time/train_step_mean"] for _, row in rows] == [8.0, 5.0]
    rows, _ = rows_of(EpochMonitor(warmup_steps=6), Timed(), batches(4))
    assert [row.get("time/train_step_mean") for _, row in rows] == [None, 7.0]


def test_every_second_epoch():
    rows, _ = rows_of(EpochMonitor(every_n_epochs=2), Timed(), batches(4), max_epochs=5)
    assert [step for step, _ in rows] == [8, 16]


def test_an_epoch_that_is_resumed_has_the_times_of_its_rest(tmp_path):
    path = tmp_path / "a.ckpt"
    rows_of(EpochMonitor(), Timed(), batches(4), callbacks=[SavesAt(path, 6)], save_user_state=False)
    rows, _ = rows_of(EpochMonitor(), Timed(), batches(4), fit={"ckpt_path": path}, save_user_state=False)
    assert rows == [(8, {"time/train_epoch": 14.0, "time/train_step_last": 8.0, "time/train_step_mean": 7.0})]


@pytest.mark.parametrize("memory", [True, False])
def test_memory_of_the_process(memory):
    logger = Rows()
    settings = QUIET | {"logger": logger, "max_epochs": 2}
    Trainer(**settings, callbacks=[EpochMonitor(memory=memory)]).fit(Timed(), batches(2))
    peaks = [row["memory/peak"] for _, row in logger.rows if "memory/peak" in row]
    assert len(peaks) == 2 * memory
    if memory:
        held = torch.ones(2**23)  # 32 MiB, written to
        now = epochs.memory_of(torch.device("cpu"))
        assert 0 < peaks[0] <= peaks[1] <= now["memory/peak"]
        assert held.nbytes / 2**20 < now.get("memory/resident", now["memory/peak"]) <= now["memory/peak"] + 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"every_n_epochs": 0}, MisconfigurationException, r"every_n_epochs=0\)"),
        ({"every_n_epochs": "1"}, ArgumentTypeError, r"every_n_epochs='1' \(str\)\)"),
        ({"warmup_steps": -1}, MisconfigurationException, r"warmup_steps=-1\)"),
        ({"memory": 1}, ArgumentTypeError, r"memory=1 \(int\)\)"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        EpochMonitor(**arguments)
