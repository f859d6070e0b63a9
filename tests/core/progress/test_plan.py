"""The table of due work: one row per documented combination of limits and intervals."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lightlib.core.progress.plan import Plan, count_due, is_due
from lightlib.core.progress.progress import Progress
from lightlib.core.setup.plugins import plan_of
from lightlib.errors import MisconfigurationException
from tests.runs.plain import quiet_trainer


def plan(n, has_val=True, **arguments):
    return plan_of(quiet_trainer(**{"max_epochs": 3, **arguments}).settings, n, has_val)


def walk(plan, n):
    """Return the batches after which this plan validates, queried at the same places as in the loop."""
    progress, validated = Progress(), []
    while not plan.done(progress):
        for i in range(n + 1):
            if plan.validation_due(progress, exhausted=i == n, stopping=False, seconds=0.0):
                validated.append(progress.batch)
                progress.validated = progress.batch
            if plan.done(progress):
                return validated
            if i < n:
                progress.end_batch(plan.steps_now(progress, i + 1 == n))
        progress.end_epoch()
    return validated


VALIDATION = [
    # (batches per epoch, arguments, validates after these batches)
    pytest.param(4, {}, [4, 8, 12], id="default: at the end of every epoch"),
    pytest.param(4, {"val_check_interval": 1.0}, [4, 8, 12], id="1.0 is the end of the epoch"),
    pytest.param(4, {"val_check_interval": 0.5}, [2, 4, 6, 8, 10, 12], id="a fraction of the epoch"),
    pytest.param(5, {"val_check_interval": 0.5}, [2, 4, 7, 9, 12, 14], id="a fraction that does not divide it"),
    pytest.param(3, {"val_check_interval": 0.1}, [*range(1, 10)], id="a fraction below one batch is every batch"),
    pytest.param(4, {"val_check_interval": 1}, [*range(1, 13)], id="1 is every batch"),
    pytest.param(5, {"val_check_interval": 2}, [2, 4, 7, 9, 12, 14], id="batches, counted from the epoch's start"),
    pytest.param(4, {"val_check_interval": 4}, [4, 8, 12], id="as many batches as the epoch has"),
    pytest.param(4, {"check_val_every_n_epoch": 2}, [8], id="every second epoch"),
    pytest.param(4, {"check_val_every_n_epoch": 2, "val_check_interval": 2}, [6, 8], id="within every second epoch"),
    pytest.param(4, {"check_val_every_n_epoch": 2, "val_check_interval": 0.25}, [5, 6, 7, 8], id="fractions of it"),
    pytest.param(4, {"check_val_every_n_epoch": 9}, [], id="an epoch that is never reached"),
    pytest.param(5, {"check_val_every_n_epoch": None, "val_check_interval": 4}, [4, 8, 12], id="across epochs"),
    pytest.param(5, {"check_val_every_n_epoch": None, "val_check_interval": 7}, [7, 14], id="more than an epoch"),
    pytest.param(4, {"max_steps": 6, "val_check_interval": 0.5}, [2, 4, 6], id="max_steps at an interval's end"),
    pytest.param(4, {"max_steps": 5}, [4], id="max_steps within an epoch: its end is not reached"),
    pytest.param(4, {"accumulate_grad_batches": 2, "val_check_interval": 3}, [3, 7, 11], id="batches, not steps"),
    pytest.param(4, {"limit_val_batches": 0}, [], id="switched off"),
    pytest.param(2, {"max_epochs": 7, "check_val_every_n_epoch": [(0, 1), (4, 3)]}, [2, 4, 6, 12], id="it changes"),
    pytest.param(2, {"max_epochs": 5, "check_val_every_n_epoch": [(4, 1)]}, [8, 10], id="it begins later"),
    pytest.param(
        4, {"check_val_every_n_epoch": [(2, 1)], "val_check_interval": 2}, [6, 8, 10, 12], id="within later epochs"
    ),
    pytest.param(
        5,
        {"check_val_every_n_epoch": None, "val_check_interval": [(2, 1), (5, 4)]},
        [2, 3, 4, 8, 12],
        id="batches that change",
    ),
    pytest.param(4, {"check_val_every_n_epoch": 2, "val_check_at_end": True}, [8, 12], id="and at the end"),
    pytest.param(4, {"val_check_at_end": True}, [4, 8, 12], id="at an end that is validated anyway"),
    pytest.param(4, {"max_steps": 5, "val_check_at_end": True}, [4, 5], id="at the end within an epoch"),
    pytest.param(
        13,
        {"max_epochs": 1, "val_check_interval": 5, "val_check_at_end": True},
        [5, 10, 13],
        id="where the interval does not divide it",
    ),
    pytest.param(
        4, {"max_epochs": 1.5, "val_check_at_end": True, "check_val_every_n_epoch": 9}, [6], id="after half an epoch"
    ),
]


@pytest.mark.parametrize(("n", "arguments", "expected"), VALIDATION)
def test_validation(n, arguments, expected):
    assert walk(plan(n, has_val=arguments.get("limit_val_batches") != 0, **arguments), n) == expected


def test_validation_by_time():
    every = plan(4, val_check_interval="00:00:01:00")
    progress = Progress(batch=3, epoch_batch=3)
    assert not every.validation_due(progress, exhausted=True, stopping=False, seconds=59.9)
    assert every.validation_due(progress, exhausted=False, stopping=False, seconds=60.0)


def test_no_validation_twice_at_one_batch():
    every = plan(4, val_check_interval=2)
    progress = Progress(batch=2, epoch_batch=2)
    assert every.validation_due(progress, False, False, 0.0)
    progress.validated = 2
    assert not every.validation_due(progress, False, False, 0.0)
    assert not every.validation_due(progress, False, True, 0.0)


def test_a_granted_stop_is_validated_in_an_epoch_that_validates():
    second = plan(4, check_val_every_n_epoch=2)
    assert not second.validation_due(Progress(batch=1, epoch_batch=1), False, True, 0.0)
    assert second.validation_due(Progress(epoch=1, batch=5, epoch_batch=1), False, True, 0.0)
    assert not plan(4, has_val=False).validation_due(Progress(batch=1), True, True, 0.0)


@pytest.mark.parametrize(
    ("n", "arguments", "text"),
    [
        (4, {"val_check_interval": 5}, "val_check_interval=5 is more than the 4 training batches"),
        (math.inf, {"val_check_interval": 0.5}, "is a fraction of an epoch, but the training loader has no length"),
    ],
)
def test_intervals_that_do_not_fit(n, arguments, text):
    with pytest.raises(MisconfigurationException, match=text):
        plan(n, **arguments)


def test_a_fraction_across_epochs_is_refused():
    with pytest.raises(MisconfigurationException, match=r"check_val_every_n_epoch=None with val_check_interval=0\.5"):
        quiet_trainer(check_val_every_n_epoch=None, val_check_interval=0.5)


LIMITS = [
    # (arguments, progress, done, may stop)
    pytest.param({"max_epochs": 2}, Progress(epoch=1, step=9), False, True, id="before max_epochs"),
    pytest.param({"max_epochs": 2}, Progress(epoch=2), True, True, id="max_epochs"),
    pytest.param({"max_epochs": -1}, Progress(epoch=10**6, step=10**9), False, True, id="no limit"),
    pytest.param({"max_epochs": -1, "max_steps": 5}, Progress(step=5), True, True, id="max_steps"),
    pytest.param({"max_epochs": 0}, Progress(), True, True, id="no epoch at all"),
    pytest.param({"max_steps": 0}, Progress(), True, True, id="no step at all"),
    pytest.param({"min_epochs": 2}, Progress(epoch=1, step=9), False, False, id="before min_epochs"),
    pytest.param({"min_epochs": 2}, Progress(epoch=2), False, True, id="min_epochs"),
    pytest.param({"min_steps": 5, "min_epochs": 0}, Progress(epoch=1, step=4), False, False, id="before min_steps"),
    pytest.param({"min_steps": 5}, Progress(epoch=0, step=5), False, False, id="min_steps asks for an epoch too"),
    pytest.param({"min_steps": 5}, Progress(epoch=1, step=5), False, True, id="min_steps"),
]


@pytest.mark.parametrize(("arguments", "progress", "done", "may_stop"), LIMITS)
def test_limits(arguments, progress, done, may_stop):
    found = plan(4, **arguments)
    assert (found.done(progress), found.may_stop(progress)) == (done, may_stop)


WINDOWS = [
    # (batches, accumulate, sizes of the windows)
    (6, 1, [1, 1, 1, 1, 1, 1]),
    (6, 3, [3, 3]),
    (7, 3, [3, 3, 1]),
    (2, 5, [2]),
]


@pytest.mark.parametrize(("n", "accumulate", "sizes"), WINDOWS)
def test_windows(n, accumulate, sizes):
    found, progress, planned, taken = plan(n, accumulate_grad_batches=accumulate), Progress(), [], []
    for i in range(n):
        if found.window_starts(progress):
            planned.append(found.window_size(progress))
            taken.append(0)
        taken[-1] += 1
        closes = found.steps_now(progress, i + 1 == n)
        progress.end_batch(closes)
        assert found.window_closed(progress, i + 1 == n) == closes
    assert planned == taken == sizes
    assert found.steps_per_epoch == len(sizes) == progress.step
    assert found.total_steps == 3 * len(sizes)


CHANGES = [((0, 4), (1, 1)), ((0, 1), (2, 3)), ((0, 2), (1, 5), (3, 2)), ((0, 7), (9, 1)), ((2, 3),)]


def counted(n, epochs, changes, max_steps=math.inf, last=math.inf, begin=(0, 0)):
    """Count the optimizer steps and the batches of a plain loop from (epoch, batch) on."""
    steps = done = 0
    for epoch in range(begin[0], epochs):
        accumulate = ([1] + [number for start, number in changes if start <= epoch])[-1]
        batches = min(n, last) if epoch == epochs - 1 else n
        for i in range(begin[1] if epoch == begin[0] else 0, batches):
            if steps == max_steps:
                return steps, done
            done += 1
            steps += (i + 1) % accumulate == 0 or i + 1 == n or i + 1 == batches
    return steps, done


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("n", [1, 4, 10])
@pytest.mark.parametrize("max_steps", [math.inf, 1, 3, 5, 11, 12, 99])
def test_steps_and_batches_with_an_accumulation_that_changes(n, changes, max_steps):
    found = Plan(num_batches=n, accumulate_changes=changes, max_epochs=5, max_steps=max_steps)
    assert (found.total_steps, found.total_batches) == counted(n, 5, changes, max_steps)
    assert found.num_epochs == math.ceil(found.total_batches / n)
    differ = len({([1] + [number for start, number in changes if start <= epoch])[-1] for epoch in range(5)}) > 1
    assert found.steps_differ == differ
    assert (found.steps_per_epoch == math.inf) == differ
    for epoch in range(5):
        accumulate = ([1] + [number for start, number in changes if start <= epoch])[-1]
        assert found.accumulation(epoch) == accumulate
        for i in range(0, n, accumulate):
            done = counted(n, epoch, changes)[0] + i // accumulate
            if done >= max_steps:
                break
            at = Progress(epoch=epoch, epoch_batch=i, batch=epoch * n + i, step=done)
            rest = replace(found, accumulate=accumulate).rest(at)
            assert rest.total_steps == counted(n, 5, changes, max_steps - done, begin=(epoch, i))[0]
            assert rest.num_epochs == found.num_epochs - epoch
            assert replace(found, accumulate=accumulate).total_steps_from(at) == found.total_steps


def test_the_last_epoch_of_an_accumulation_that_changes():
    settings = quiet_trainer(max_epochs=2.3).settings
    found = plan_of(settings, 10, False, accumulation=((0, 4), (2, 2)))
    assert found.last_epoch_batches == 4, "two of the five steps of an epoch of two batches each"
    assert (found.total_steps, found.total_batches) == counted(10, 3, ((0, 4), (2, 2)), last=4) == (8, 24)


def test_an_accumulation_that_changes_without_lengths():
    assert Plan(accumulate_changes=((0, 4), (1, 1)), max_epochs=3, max_steps=9).total_steps == 9
    assert Plan(accumulate_changes=((0, 4), (1, 1)), max_epochs=3, max_steps=9).total_batches == math.inf
    assert Plan(accumulate_changes=((0, 4), (1, 1)), num_batches=10, max_epochs=math.inf).total_steps == math.inf
    assert Plan(accumulate_changes=((0, 4), (1, 1)), max_epochs=3).total_steps_from(Progress()) == math.inf


def test_the_steps_that_were_made_count_as_they_were_made():
    """A fit over 10 batches an epoch, then one over 20, and batches without a loss in between."""
    found = Plan(num_batches=20, max_epochs=3)
    assert found.total_steps_from(Progress(epoch=1, batch=10, step=10)) == 50
    assert found.total_steps_from(Progress(epoch=1, epoch_batch=5, batch=15, step=13)) == 13 + 35
    assert found.total_steps_from(Progress(epoch=3, batch=50, step=48)) == 48


@pytest.mark.parametrize(
    "arguments", [{}, {"max_steps": 5}, {"max_steps": 8}, {"max_epochs": 1.5}, {"accumulate_grad_batches": 3}]
)
def test_the_last_epoch_is_the_one_after_which_the_run_is_done(arguments):
    limits, progress, answers = plan(4, **arguments), Progress(), []
    while not limits.done(progress):
        progress.note_epoch_start()
        answers.append(limits.is_last_epoch(progress))
        for index in range(4):
            if not limits.done(progress):
                progress.end_batch(limits.steps_now(progress, index == 3))
        progress.end_epoch()
    assert answers == [False] * (len(answers) - 1) + [True]


def test_steps_of_an_endless_run():
    assert Plan(num_batches=5).total_steps == math.inf
    assert Plan(max_epochs=3).total_steps == math.inf
    assert Plan(num_batches=5, max_epochs=3, max_steps=7).total_steps == 7


@pytest.mark.parametrize(("every", "steps"), [(0, []), (1, [1, 2, 3, 4]), (2, [2, 4]), (50, [])])
def test_logging(every, steps):
    found = plan(4, log_every_n_steps=every)
    assert [step for step in range(1, 5) if found.logging_due(Progress(step=step))] == steps


def test_the_sanity_check_only_before_a_run_that_starts_from_nothing():
    asked = plan(4, num_sanity_val_steps=2)
    assert asked.sanity_check_due(Progress())
    assert not asked.sanity_check_due(Progress(batch=1))
    assert not plan(4, num_sanity_val_steps=0).sanity_check_due(Progress())
    assert not plan(4, has_val=False, num_sanity_val_steps=2).sanity_check_due(Progress())


@pytest.mark.parametrize(
    ("n", "arguments", "batches", "steps"),
    [
        (10, {"max_epochs": 1.5}, 15, 15),
        (10, {"max_epochs": 0.25}, 3, 3),
        (10, {"max_epochs": 1.1}, 11, 11),  # 1.1 * 10 is more than 11
        (10, {"max_epochs": 0.01}, 1, 1),
        (10, {"max_epochs": 2.0}, 20, 20),
        (10, {"max_epochs": 1.5, "accumulate_grad_batches": 4}, 18, 5),  # 3 steps an epoch: 4, 4 and 2 batches
        (10, {"max_epochs": 1.9, "accumulate_grad_batches": 4}, 20, 6),
        (10, {"max_epochs": 1.5, "max_steps": 12}, 12, 12),
    ],
)
def test_parts_of_epochs(n, arguments, batches, steps):
    plan_, progress = plan(n, **arguments), Progress()
    while not plan_.done(progress):
        exhausted = progress.epoch_batch + 1 == n
        progress.end_batch(plan_.steps_now(progress, exhausted))
        if exhausted and not plan_.done(progress):
            progress.end_epoch()
        elif exhausted:
            break
    assert (progress.batch, progress.step, plan_.total_steps) == (batches, steps, steps)


def test_a_part_of_an_epoch_without_a_length_is_an_error():
    with pytest.raises(MisconfigurationException, match=r"(?s)max_epochs=1\.5 ends within an epoch.*max_steps=1000"):
        plan(math.inf, max_epochs=1.5)


def test_intervals_that_change_within_an_epoch_are_refused():
    with pytest.raises(MisconfigurationException, match=r"(?s)\[\(0, 5\)\] with batches.*check_val_every_n_epoch=None"):
        quiet_trainer(val_check_interval=[(0, 5)])


@pytest.mark.parametrize("number", range(31))
@pytest.mark.parametrize("intervals", [((0, 1),), ((0, 1), (10, 5)), ((3, 2), (8, 7), (9, 1)), ((5, 3),)])
def test_the_number_of_those_due(intervals, number):
    def due(n):
        begun = [every for start, every in intervals if start <= n]
        return bool(begun) and n % begun[-1] == 0

    assert count_due(intervals, number) == sum(due(n) for n in range(1, number + 1))
    assert is_due(intervals, number) == (number > 0 and due(number))
