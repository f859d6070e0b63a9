"""DeviceStatsMonitor: the numbers of the device in the logs, by name and step."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.utils.data import DataLoader

import lightlib
from lightlib.accelerators import CPUAccelerator
from lightlib.callbacks import DeviceStatsMonitor, History, LambdaCallback
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.loggers import Logger
from lightlib.report import LightlibWarning
from tests.runs.plain import Net, batches, subclass
from tests.runs.quiet import QUIET


class Rows(Logger):
    name, version = "rows", 0

    def __init__(self):
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows += [(step, name) for name in metrics if name != "epoch"]

    def log_hyperparams(self, *arguments, **options):
        pass


@pytest.fixture
def stats(monkeypatch):
    monkeypatch.setattr(CPUAccelerator, "get_device_stats", lambda self, device: {"cpu_percent": 12.5})


def fit(callback, module=None, **arguments):
    logger = Rows()
    trainer = lightlib.Trainer(
        **{**QUIET, "logger": logger, "max_epochs": 1, "log_every_n_steps": 2, **arguments}, callbacks=[callback]
    )
    return trainer, logger


def test_names_and_steps_in_training(stats):
    trainer, logger = fit(DeviceStatsMonitor())
    trainer.fit(Net(), batches(5))
    start, end = (f"DeviceStatsMonitor.on_train_batch_{at}/cpu_percent" for at in ("start", "end"))
    assert [row for row in logger.rows if "Stats" in row[1]] == [(1, start), (2, end), (3, start), (4, end)]


def test_every_batch_of_a_step_that_is_due_is_logged_while_accumulating(stats):
    trainer, logger = fit(DeviceStatsMonitor(), accumulate_grad_batches=2)
    trainer.fit(Net(), batches(6))
    assert [step for step, name in logger.rows if name.endswith("end/cpu_percent")] == [1, 2]


def test_evaluations_log_every_second_batch(stats):
    evaluated = subclass(test_step=lambda self, *_: None, validation_step=lambda self, *_: None)
    trainer, logger = fit(DeviceStatsMonitor())
    trainer.fit(evaluated(), batches(1), batches(3))
    assert [name.split(".")[1] for _, name in logger.rows if "validation" in name] == [
        "on_validation_batch_start/cpu_percent",
        "on_validation_batch_end/cpu_percent",
    ] * 2  # in the sanity check and after the epoch
    trainer.test(evaluated(), batches(2))
    assert sum("on_test_batch" in name for _, name in logger.rows) == 2


@pytest.mark.parametrize(("argument", "logs"), [(None, True), (True, True), (False, False)])
def test_the_cpu_can_be_left_out(argument, logs, stats):
    trainer, logger = fit(DeviceStatsMonitor(argument))
    trainer.fit(Net(), batches(2))
    assert any("Stats" in name for _, name in logger.rows) == logs


def test_a_logger_that_fails_does_not_end_the_run(stats):
    class Fails(Rows):
        def log_metrics(self, metrics, step=None):
            raise OSError("full")

    trainer = lightlib.Trainer(
        **{**QUIET, "logger": Fails()}, max_epochs=1, log_every_n_steps=1, callbacks=[DeviceStatsMonitor()]
    )
    with pytest.warns(LightlibWarning) as caught:
        trainer.fit(Net(), batches(2))
    first, count = [str(warning.message) for warning in caught]
    assert first.startswith("Fails.log_metrics raised OSError: full")
    assert count.startswith("Fails.log_metrics failed")
    assert trainer.global_step == 2


def test_without_a_receiver_it_is_refused(stats):
    with pytest.raises(MisconfigurationException, match="DeviceStatsMonitor has nowhere to log to"):
        lightlib.Trainer(**QUIET, max_epochs=1, callbacks=[DeviceStatsMonitor()]).fit(Net(), batches(1))


def test_history_alone_receives_the_numbers(stats):
    history = History()
    callbacks = [DeviceStatsMonitor(), history]
    lightlib.Trainer(**QUIET, max_epochs=1, log_every_n_steps=2, callbacks=callbacks).fit(Net(), batches(5))
    for at in ("start", "end"):
        assert history.values(f"DeviceStatsMonitor.on_train_batch_{at}/cpu_percent") == [12.5, 12.5]


def test_the_numbers_go_to_a_logger_and_to_on_log_once(stats):
    seen = []
    also = LambdaCallback(on_log=lambda trainer, module, metrics: seen.append([*metrics]))
    logger = Rows()
    arguments = {**QUIET, "logger": logger, "max_epochs": 1, "log_every_n_steps": 1}
    lightlib.Trainer(**arguments, callbacks=[DeviceStatsMonitor(), also]).fit(Net(), batches(2))
    names = [name for row in seen for name in row if name.startswith("Device")]
    assert names == [name for _, name in logger.rows if name.startswith("Device")]
    assert len(names) == 4


def test_without_psutil_it_is_refused_before_training(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    trainer, _ = fit(DeviceStatsMonitor())
    with pytest.raises(MisconfigurationException, match="pip install psutil"):
        trainer.fit(Net(), DataLoader(torch.ones(2, 1)))
    assert trainer.global_step == 0


def test_a_wrong_argument():
    with pytest.raises(ArgumentTypeError, match=r"DeviceStatsMonitor\(cpu_stats='yes'"):
        DeviceStatsMonitor("yes")
