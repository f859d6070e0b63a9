"""Timer: the durations that it measures, and the end of a run when its time is up."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from lightlib.callbacks import LambdaCallback, Timer
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from tests.callbacks.fake_trainer import FakeTrainer
from tests.callbacks.line import Line, line_trainer


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        ("01:02:03:04", 93784),
        ("00:00:00:05", 5),
        ("12:34:56:65", 12 * 86400 + 34 * 3600 + 56 * 60 + 65),
        (timedelta(minutes=2), 120),
        ({"hours": 1, "seconds": 1}, 3601),
        (None, None),
    ],
)
def test_duration(duration, seconds):
    assert Timer(duration).time_remaining() == seconds


@pytest.mark.parametrize(
    ("duration", "error", "text"),
    [
        ("12:00", MisconfigurationException, "DD:HH:MM:SS"),
        ("00:25:00:-1", MisconfigurationException, "DD:HH:MM:SS"),
        ({"hour": 1}, MisconfigurationException, "'hour'"),
        (60, ArgumentTypeError, r"duration=60(.|\n)*timedelta"),
        (timedelta(seconds=-1), MisconfigurationException, "not negative"),
    ],
)
def test_refused_durations(duration, error, text):
    with pytest.raises(error, match=text):
        Timer(duration)


def test_refused_names():
    with pytest.raises(UnknownNameError, match=r"Unknown interval of Timer 'steps'. Did you mean 'step'"):
        Timer(interval="steps")
    with pytest.raises(UnknownNameError, match="Unknown stage 'training'"):
        Timer().time_elapsed("training")


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_stops(clock, interval, monkeypatch):
    said = []
    monkeypatch.setattr("lightlib.report.info", said.append)
    timer = Timer(timedelta(seconds=10), interval=interval)
    trainer = FakeTrainer().start(timer)
    clock.now += 9
    trainer.batch()
    trainer.end_epoch()
    assert not trainer.should_stop
    clock.now += 1
    trainer.batch()
    assert trainer.should_stop == (interval == "step")
    trainer.end_epoch()
    assert trainer.should_stop
    assert said == ["Timer: the limit of 0:00:10 is reached after 0:00:10 of training; the run ends."]


def test_stages(clock):
    timer, trainer = Timer("00:00:01:00"), FakeTrainer()
    assert timer.start_time() is None
    assert timer.time_elapsed() == 0
    timer.on_train_start(trainer, None)
    clock.now += 5
    timer.on_validation_start(trainer, None)
    clock.now += 2
    timer.on_validation_end(trainer, None)
    timer.on_train_end(trainer, None)
    clock.now += 100
    assert (timer.start_time(), timer.end_time()) == (1000, 1007)
    assert (timer.time_elapsed(), timer.time_elapsed("validate"), timer.time_remaining()) == (7, 2, 53)
    timer.on_test_start(trainer, None)
    clock.now += 3
    timer.on_test_end(trainer, None)
    assert timer.time_elapsed("test") == 3


def test_goes_on_over_resumes(clock):
    timer, trainer = Timer(timedelta(seconds=10)), FakeTrainer().start(Timer())
    timer.on_fit_start(trainer, None)
    timer.on_train_start(trainer, None)
    clock.now += 6
    resumed = Timer(timedelta(seconds=10))
    resumed.load_state_dict(timer.state_dict())
    assert resumed.time_elapsed() == 6
    resumed.on_fit_start(trainer, None)
    resumed.on_train_start(trainer, None)
    clock.now += 4
    resumed.on_train_batch_end(trainer, None, None, None, 0)
    assert trainer.should_stop


def test_goes_on_over_calls_of_fit_and_stops_at_once_when_it_is_over(clock):
    timer, trainer = Timer(timedelta(seconds=10), verbose=False), FakeTrainer()
    for _ in range(2):
        timer.on_fit_start(trainer, None)
        assert not trainer.should_stop
        timer.on_train_start(trainer, None)
        clock.now += 6
        timer.on_train_end(trainer, None)
    timer.on_fit_start(trainer, None)
    assert trainer.should_stop


def test_key_of_lightning():
    assert Timer().state_key == "Timer"


class TestTimer:
    def test_stops(self, tmp_path):
        timer = Timer(timedelta(seconds=0.2))
        run = line_trainer(
            tmp_path, timer, LambdaCallback(on_train_batch_end=lambda *_: time.sleep(0.03)), max_epochs=-1, max_steps=-1
        )
        run.fit(Line())
        assert timer.time_elapsed() >= 0.2
        assert timer.time_elapsed("validate") > 0
        assert 0 < run.global_step < 50
