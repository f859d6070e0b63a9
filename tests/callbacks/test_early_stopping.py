"""EarlyStopping: when and why a run ends, and the message."""

from __future__ import annotations

import math

import pytest
import torch

from lightlib.callbacks import EarlyStopping, ModelCheckpoint
from lightlib.callbacks.early_stopping import EarlyStoppingReason
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.report import PossibleUserWarning
from tests.callbacks.fake_trainer import FakeTrainer
from tests.callbacks.line import Line, line_trainer, names
from tests.runs.plain import with_methods


@pytest.fixture
def said(monkeypatch):
    messages = []
    monkeypatch.setattr("lightlib.report.info", messages.append)
    return messages


def stopped_after(callback, values, trainer=None):
    """Run epochs with these values of the metric and return how many it took to stop, or None."""
    trainer = (trainer or FakeTrainer()).start(callback)
    for number, value in enumerate(values, 1):
        trainer.epoch(m=value)
        if trainer.should_stop:
            return number
    return None


@pytest.mark.parametrize(
    ("arguments", "values", "expected"),
    [
        ({"patience": 2}, [3, 2, 2, 2, 1], 4),
        ({"patience": 2}, [3, 2, 2, 1, 1], None),
        ({"patience": 2}, [3, 2, 2, 1, 1, 1], 6),
        ({"patience": 0}, [3, 3], 2),
        ({"patience": 1, "mode": "max"}, [1, 2, 2], 3),
        ({"patience": 1, "min_delta": 0.5}, [3, 2.4, 2.0], 3),
        ({"patience": 1, "min_delta": -0.5}, [3, 2.4, 2.0], 3),
        ({"patience": 1, "min_delta": 0.5, "mode": "max"}, [1, 1.6, 2.0], 3),
        ({}, [1, math.nan], 2),
        ({}, [1, -math.inf], 2),
        ({"patience": 2, "check_finite": False}, [1, math.nan, math.nan], 3),
        ({"stopping_threshold": 1.0}, [3, 2, 0.9], 3),
        ({"stopping_threshold": 1.0}, [3, 2, 1], None),
        ({"stopping_threshold": 0.9, "mode": "max"}, [0.1, 0.95], 2),
        ({"divergence_threshold": 10.0}, [3, 11], 2),
        ({"divergence_threshold": 0.1, "mode": "max"}, [0.5, 0.05], 2),
    ],
)
def test_when(arguments, values, expected, said):
    assert stopped_after(EarlyStopping("m", **arguments), values) == expected
    assert len(said) == (expected is not None)


@pytest.mark.parametrize(
    ("arguments", "values", "reason", "message"),
    [
        ({"patience": 1}, [1, 2], "PATIENCE_EXHAUSTED", "'m' has not improved in the last 1 checks; the best was 1."),
        ({}, [1, math.nan], "NON_FINITE_METRIC", "'m' is nan, which is not finite; the best was 1."),
        (
            {"stopping_threshold": 1},
            [0.5],
            "STOPPING_THRESHOLD",
            "'m' = 0.5 has reached the stopping threshold 1.",
        ),
        (
            {"divergence_threshold": 1},
            [2],
            "DIVERGENCE_THRESHOLD",
            "'m' = 2 is worse than the divergence threshold 1.",
        ),
        ({}, [1], "NOT_STOPPED", None),
    ],
)
def test_reason(arguments, values, reason, message, said):
    callback = EarlyStopping("m", **arguments)
    stopped_after(callback, values)
    assert callback.stopping_reason is EarlyStoppingReason[reason]
    assert callback.stopping_reason_message == message
    if message:
        assert said == [f"EarlyStopping at current_epoch={len(values) - 1}: {message}"]
        assert callback.stopped_epoch == len(values) - 1


def test_verbose(said):
    stopped_after(EarlyStopping("m", verbose=True), [2, 1])
    assert said == ["'m' improved from inf to 2.", "'m' improved from 2 to 1."]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"patience": -1}, MisconfigurationException, "patience=-1"),
        ({"patience": 1.5}, ArgumentTypeError, r"patience=1.5.*\n.*int >= 0"),
        ({"mode": "mni"}, UnknownNameError, "Did you mean 'min'"),
        (
            {"monitor": ["a", "b"]},
            ArgumentTypeError,
            r"EarlyStopping\(monitor=\['a', 'b'\] \(list\)\)(.|\n)*one callback for each",
        ),
    ],
)
def test_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        EarlyStopping(**{"monitor": "m", **arguments})


class TestMissingMetric:
    def test_names_what_was_logged(self):
        trainer = FakeTrainer().start(EarlyStopping("val_los"))
        with pytest.raises(MisconfigurationException) as caught:
            trainer.epoch(val_loss=1, acc=1)
        assert "EarlyStopping(monitor='val_los'): this metric was never logged. Did you mean 'val_loss'?" in str(
            caught.value
        )
        assert "one of 'acc', 'val_loss'" in str(caught.value)

    def test_not_strict(self):
        trainer = FakeTrainer().start(EarlyStopping("val_los", strict=False))
        with pytest.warns(PossibleUserWarning, match="this metric was never logged") as warned:
            [trainer.epoch(val_loss=1) for _ in range(3)]
        assert len(warned) == 1
        assert not trainer.should_stop

    def test_before_the_first_validation(self):
        callback = EarlyStopping("val_loss", check_on_train_epoch_end=True)
        trainer = FakeTrainer(check_val_every_n_epoch=2).start(callback)
        trainer.epoch()
        trainer.epoch(val_loss=1)
        assert callback.best_score == 1


class TestWhenItIsChecked:
    def test_after_each_of_several_validations(self):
        callback = EarlyStopping("m", patience=1)
        trainer = FakeTrainer(val_check_interval=0.5).start(callback)
        trainer.batch(validate={"m": 1})
        trainer.batch(validate={"m": 2})
        assert trainer.should_stop

    def test_once_per_epoch_with_what_training_logs_in_it(self):
        callback = EarlyStopping("loss_epoch")
        trainer = FakeTrainer().start(callback)
        trainer.batch(validate={"val_loss": 1})
        assert callback.wait_count == 0
        trainer.end_epoch(loss_epoch=2)
        assert callback.best_score == 2

    def test_an_epoch_that_was_cut_does_not_count(self):
        callback = EarlyStopping("m", patience=1)
        trainer = FakeTrainer().start(callback)
        trainer.epoch(m=1)
        trainer.batch()
        trainer.end_epoch()
        assert callback.wait_count == 0
        assert not trainer.should_stop

    def test_not_in_the_sanity_check_nor_other_stages(self):
        callback = EarlyStopping("m", check_on_train_epoch_end=False)
        trainer = FakeTrainer(sanity_checking=True).start(callback)
        trainer.validate(m=math.nan)
        trainer.sanity_checking, trainer.state.fn = False, "validate"
        trainer.validate(m=math.nan)
        assert not trainer.should_stop

    def test_not_in_fast_dev_run(self):
        assert stopped_after(EarlyStopping("m"), [math.nan], FakeTrainer(fast_dev_run=1)) is None


def test_the_metric_of_rank_zero_counts_on_all():
    trainer = FakeTrainer()
    trainer.strategy.broadcast = lambda value: torch.tensor(math.nan)
    callback = EarlyStopping("m")
    assert stopped_after(callback, [1], trainer) == 1
    assert "is nan, which is not finite" in callback.stopping_reason_message


def test_state_goes_on_and_patience_may_change():
    callback = EarlyStopping("m", patience=3)
    stopped_after(callback, [1, 2, 2])
    assert callback.state_dict() == {
        "wait_count": 2,
        "stopped_epoch": 0,
        "best_score": torch.tensor(1.0),
        "patience": 3,
    }
    resumed = EarlyStopping("m", patience=4)
    resumed.load_state_dict(callback.state_dict())
    assert stopped_after(resumed, [1, 1, 1]) == 2
    assert resumed.state_key == "EarlyStopping{'monitor': 'm', 'mode': 'min'}"


class TestEarlyStopping:
    def test_stops(self, tmp_path):
        callback = EarlyStopping("val_loss", patience=2)
        run = line_trainer(tmp_path, callback, max_epochs=10)
        run.fit(Line([1, 2, 3, 4]))
        assert run.current_epoch == 3
        assert callback.stopped_epoch == 2
        assert callback.wait_count == 2

    def test_not_before_min_epochs(self, tmp_path):
        run = line_trainer(tmp_path, EarlyStopping("val_loss", patience=1), max_epochs=10, min_epochs=5)
        run.fit(Line())
        assert run.current_epoch == 5

    def test_within_an_epoch(self, tmp_path):
        run = line_trainer(tmp_path, EarlyStopping("val_loss", patience=1), val_check_interval=1)
        run.fit(Line())
        assert run.global_step == 2

    def test_counts_as_without_interruption(self, tmp_path):
        """The checkpoint between the validation and the end of the epoch."""
        whole = EarlyStopping("val_loss", patience=10)
        line_trainer(tmp_path, whole, max_epochs=3).fit(Line([1, 2, 3]))
        saver = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=4, save_top_k=-1)
        line_trainer(tmp_path, EarlyStopping("val_loss", patience=10), saver, max_epochs=2).fit(Line([1, 2]))
        resumed = EarlyStopping("val_loss", patience=10)
        other = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=4, save_top_k=-1)
        path = tmp_path / "kept" / "epoch=0-step=4.ckpt"
        line_trainer(tmp_path, resumed, other, max_epochs=3).fit(Line([2, 3]), ckpt_path=path)
        assert resumed.wait_count == whole.wait_count == 2
        assert resumed.best_score == 1


def test_early_stopping_and_checkpoint_see_what_the_module_logs_at_the_end_of_the_epoch(tmp_path):
    stop, save = EarlyStopping("late", patience=1), ModelCheckpoint(tmp_path, monitor="late", mode="max")
    run = line_trainer(tmp_path, stop, save)
    run.fit(with_methods(Line, on_train_epoch_end=lambda self: self.log("late", float(self.current_epoch))))
    assert run.current_epoch == 2
    assert names(save) == ["epoch=1-step=8.ckpt"]
