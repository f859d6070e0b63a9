"""When a fit validates, for every form of the interval; and when loaders are created again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lightlib import conventions
from lightlib.core.module.datamodule import DataModule
from lightlib.errors import MisconfigurationException
from lightlib_lightning.order import LIGHTNING
from tests.runs.plain import Net, Unsized, batches, calling, quiet_trainer
from tests.runs.steps import Steps, on


def validated_at(n=10, data=None, callbacks=(), **arguments):
    """Fit `n` batches per epoch; return after how many batches in all each validation ran."""
    seen = []
    sees = on(on_validation_start=lambda trainer, module: seen.append(trainer.progress.batch))
    trainer = quiet_trainer(callbacks=[sees, *callbacks], **arguments)
    trainer.fit(Steps(), batches(n) if data is None else data, batches(1))
    return seen


class Clock:
    """A monotonic clock that moves by one second per training batch, and by five per validation."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("lightlib.core.run.parts.monotonic", lambda: self.now)

    def callback(self):
        return on(on_train_batch_end=lambda *_: self.move(1), on_validation_end=lambda *_: self.move(5))

    def move(self, seconds):
        self.now += seconds


class TestInterval:
    @pytest.mark.parametrize(
        ("interval", "expected"),
        [
            (None, [10, 20]),
            (1.0, [10, 20]),
            (0.5, [5, 10, 15, 20]),
            (0.25, [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]),
            (0.4, [4, 8, 14, 18]),
            (0.01, list(range(1, 21))),
            (1, list(range(1, 21))),
            (4, [4, 8, 14, 18]),
            (10, [10, 20]),
        ],
    )
    def test_within_epochs(self, interval, expected):
        assert validated_at(max_epochs=2, val_check_interval=interval) == expected

    @pytest.mark.parametrize(("interval", "expected"), [(4, [4, 8, 12, 16, 20]), (7, [7, 14]), (15, [15]), (25, [])])
    def test_across_epochs(self, interval, expected):
        assert validated_at(max_epochs=2, val_check_interval=interval, check_val_every_n_epoch=None) == expected

    @pytest.mark.parametrize(("every", "expected"), [(1, [2, 4, 6, 8]), (2, [4, 8]), (3, [6]), (9, [])])
    def test_every_nth_epoch(self, every, expected):
        assert validated_at(2, max_epochs=4, check_val_every_n_epoch=every) == expected

    def test_every_nth_epoch_several_times(self):
        assert validated_at(4, max_epochs=4, check_val_every_n_epoch=2, val_check_interval=0.5) == [6, 8, 14, 16]

    def test_counts_batches_and_not_steps(self):
        assert validated_at(val_check_interval=3, accumulate_grad_batches=2) == [3, 6, 9]

    def test_is_a_fraction_of_what_the_limit_leaves(self):
        assert validated_at(val_check_interval=0.5, limit_train_batches=4) == [2, 4]

    def test_unknown_length(self):
        assert validated_at(data=Unsized(batches(10)), val_check_interval=4) == [4, 8]
        assert validated_at(data=Unsized(batches(10))) == [10]

    def test_a_fraction_across_epochs(self):
        with pytest.raises(
            MisconfigurationException, match=r"check_val_every_n_epoch=None with val_check_interval=0.5"
        ):
            quiet_trainer(val_check_interval=0.5, check_val_every_n_epoch=None)

    def test_max_steps_within_an_epoch(self):
        assert validated_at(max_steps=7, max_epochs=-1, val_check_interval=3) == [3, 6]

    def test_an_early_stop_validates_the_last_state(self):
        def stop(trainer, module, *_):
            trainer.should_stop = trainer.global_step == 4

        assert validated_at(callbacks=[on(on_train_batch_end=stop)]) == [4]


class TestClock:
    @pytest.mark.parametrize("interval", ["00:00:00:04", timedelta(seconds=4), {"seconds": 4}])
    def test_every_form(self, monkeypatch, interval):
        clock = Clock(monkeypatch)
        assert validated_at(callbacks=[clock.callback()], val_check_interval=interval) == [4, 8]

    def test_across_epochs(self, monkeypatch):
        clock = Clock(monkeypatch)
        found = validated_at(
            6,
            callbacks=[clock.callback()],
            val_check_interval={"seconds": 4},
            check_val_every_n_epoch=None,
            max_epochs=3,
        )
        assert found == [4, 8, 12, 16]

    def test_the_time_of_the_validation_itself_does_not_count(self, monkeypatch):
        clock = Clock(monkeypatch)
        slow = on(on_validation_end=lambda *_: clock.move(100))
        assert validated_at(callbacks=[clock.callback(), slow], val_check_interval={"seconds": 3}) == [3, 6, 9]

    def test_only_in_every_nth_epoch(self, monkeypatch):
        clock = Clock(monkeypatch)
        found = validated_at(
            5, callbacks=[clock.callback()], val_check_interval={"seconds": 2}, check_val_every_n_epoch=2, max_epochs=4
        )
        assert all(5 < batch <= 10 or 15 < batch <= 20 for batch in found)
        assert found


class Reloads(DataModule):
    """Counts the calls for its loaders; epoch e has e + 1 more training batches with `grows`."""

    def __init__(self, grows=False):
        super().__init__()
        self.train, self.val = [], []
        self.grows = grows

    def train_dataloader(self):
        self.train.append(self.trainer.current_epoch)
        return batches(2 + self.grows * len(self.train))

    def val_dataloader(self):
        self.val.append(self.trainer.current_epoch)
        return batches(1)


def asked(grows=False, **arguments):
    data, trainer = Reloads(grows), quiet_trainer(**arguments)
    trainer.fit(Steps(), datamodule=data)
    return data.train, data.val, trainer


class TestReload:
    @pytest.mark.parametrize(("every", "train"), [(0, [0]), (1, [0, 1, 2, 3]), (2, [0, 2]), (3, [0, 3]), (9, [0])])
    def test_every_n_epochs(self, every, train):
        found, val, _ = asked(reload_dataloaders_every_n_epochs=every, max_epochs=4)
        assert found == val == train

    def test_once_per_epoch_with_several_validations(self):
        _, val, _ = asked(reload_dataloaders_every_n_epochs=1, max_epochs=3, val_check_interval=1)
        assert val == [0, 1, 2]

    def test_validation_that_is_not_in_every_epoch(self):
        _, val, _ = asked(reload_dataloaders_every_n_epochs=2, max_epochs=8, check_val_every_n_epoch=2)
        assert val == [0, 3, 5, 7]

    @pytest.mark.parametrize(("rules", "epochs"), [(conventions.LIGHTLIB, [0, 5, 11]), (LIGHTNING, [2, 8])])
    def test_requests_are_at_least_so_many_epochs_apart(self, rules, epochs):
        with conventions.following(rules):
            _, val, _ = asked(reload_dataloaders_every_n_epochs=4, check_val_every_n_epoch=3, max_epochs=12)
        assert val == epochs  # validated in epochs 2, 5, 8 and 11

    def test_the_sanity_check_asks_for_all(self):
        _, val, _ = asked(reload_dataloaders_every_n_epochs=1, max_epochs=2, num_sanity_val_steps=1)
        assert val == [0, 1]

    def test_epochs_may_have_other_lengths(self):
        train, _, trainer = asked(grows=True, reload_dataloaders_every_n_epochs=1, max_epochs=3)
        assert train == [0, 1, 2]
        assert trainer.global_step == 3 + 4 + 5
        assert trainer.num_training_batches == 5


def test_without_validation_there_is_none():
    trainer = quiet_trainer(val_check_interval=5)
    trainer.fit(Net(), batches(2))
    assert trainer.val_check_batch is None


def test_an_override_that_asks_the_base_class_goes_back_to_training_mode():
    modes = []

    def on_validation_model_train(self):
        Steps.on_validation_model_train(self)

    def training_step(self, batch, batch_idx):
        modes.append(self.net.training)

    module = calling(Steps, on_validation_model_train, training_step)
    quiet_trainer(val_check_interval=1, num_sanity_val_steps=1).fit(module, batches(3), batches(1))
    assert modes == [True, True, True]
