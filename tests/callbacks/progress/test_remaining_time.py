"""The remaining time of a run: its remaining batches, and the validations between them."""

from __future__ import annotations

import math
import types

import pytest

from lightlib.callbacks.progress.plain import PlainProgressBar
from lightlib.callbacks.progress.remaining_time import Pace, Validations, remaining_in_run
from lightlib.core.progress.plan import Plan
from tests.callbacks.progress.test_progress_bar import MODULE, Clock, FakeTrainer, Recorder, clock, last

__all__ = ["clock"]


def seconds_left(plan, validations=None, batches=10, epochs=3, batch=5, max_steps=-1):
    """Return the remaining time after `batch` batches of 1 s each; a validation takes 100 s."""
    epoch, epoch_batch = divmod(batch, batches) if batches < math.inf else (0, batch)
    trainer = FakeTrainer(batches=batches, epochs=epochs, plan=plan, max_steps=max_steps)
    trainer.progress = types.SimpleNamespace(epoch=epoch, epoch_batch=epoch_batch, batch=batch, step=batch)
    known = Validations()
    for seconds in [100.0] if validations is None else validations:
        known.add(seconds)
    now = 1.0 + batch - 1 + known.seconds
    return remaining_in_run(trainer, Pace(1.0, 1, 1), known, now)


@pytest.mark.parametrize(
    ("plan", "validations"),
    [
        (Plan(num_batches=10), 0),  # never
        (Plan(num_batches=10, validate_every=math.inf), 3),
        (Plan(num_batches=10, validate_every=math.inf, validate_every_epochs=((0, 2),)), 1),
        (Plan(num_batches=10, validate_every=5), 5),  # of six, one is done
        (Plan(num_batches=10, validate_every=4), 5),  # at 8, 14, 18, 24, 28
        (Plan(num_batches=10, validate_every=4, validate_across_epochs=True), 6),  # at 8, 12, 16, 20, 24, 28
        (Plan(num_batches=10, validate_every=math.inf, validate_every_seconds=5.0), 5),  # in 25 seconds of training
    ],
)
def test_the_validations_that_are_left_are_counted_as_the_plan_has_them(plan, validations):
    assert seconds_left(plan) == pytest.approx(25 + 100 * validations)


def test_validations_that_were_never_seen_take_no_time():
    assert seconds_left(Plan(num_batches=10, validate_every=math.inf), validations=[]) == pytest.approx(25)


def test_max_steps_ends_batches_and_validations():
    plan = Plan(num_batches=10, validate_every=math.inf, max_steps=12)
    assert seconds_left(plan, max_steps=12) == pytest.approx(7 + 100)


def test_an_epoch_of_unknown_length_has_an_end_by_steps():
    plan = Plan(validate_every=4, max_steps=12)
    assert seconds_left(plan, batches=math.inf, max_steps=12) == pytest.approx(7 + 2 * 100)  # at 8 and 12


def test_nothing_is_known_before_the_second_batch():
    assert seconds_left(Plan(num_batches=10), batch=1) is None


def test_before_the_first_validation_the_pace_of_the_sanity_check_counts(clock: Clock) -> None:
    bar, trainer = Recorder(), FakeTrainer(clock, num_val_batches=[4, 6], num_sanity_val_batches=[2, 0])
    bar.setup(trainer, MODULE, "fit")
    trainer.sanity_checking = True
    bar.on_validation_start(trainer, MODULE)
    for index, seconds in enumerate((50.0, 3.0)):  # the first batch has to wait for the workers
        clock.now += seconds
        bar.on_validation_batch_end(trainer, MODULE, {}, None, index)
    bar.on_validation_end(trainer, MODULE)
    trainer.sanity_checking = False
    bar.on_train_start(trainer, MODULE)
    bar.on_train_epoch_start(trainer, MODULE)
    for _ in range(5):
        trainer.batch(bar)
    assert last(bar).remaining == pytest.approx(25 + 3 * 10 * 3.0)


def test_plain_lines_of_a_validation_come_when_it_takes_long(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """It does not matter whether training's next line would have been due during the validation."""
    bar, trainer = PlainProgressBar(interval=10), FakeTrainer(clock, batches=40, num_val_batches=[25])
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    bar.on_train_epoch_start(trainer, MODULE)
    for _ in range(4):
        for _ in range(7):
            trainer.batch(bar)
        trainer.validate(bar, batches=8)  # eight seconds
    lines = [line.split(" | ")[:2] for line in capsys.readouterr().out.splitlines()]
    assert [title for title, _ in lines] == ["Epoch 1/3"] * len(lines)
    assert len(lines) >= 4  # and training has its lines all the same
    trainer.validate(bar, batches=25)
    lines = [line.split(" | ")[:2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [["Validation", "10/25"], ["Validation", "20/25"]]
