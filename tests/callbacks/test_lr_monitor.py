"""LearningRateMonitor: when learning rates are logged, and under which names."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from lightlib.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    History,
    LambdaCallback,
    LearningRateMonitor,
    ModelCheckpoint,
)
from lightlib.conventions import following
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.loggers import CSVLogger
from lightlib.report import PossibleUserWarning
from lightlib_lightning.order import LIGHTNING
from tests.callbacks.fake_trainer import FakeTrainer
from tests.callbacks.line import Line, line_trainer
from tests.runs.modules import Manual
from tests.runs.plain import Net, Rows, Unsized, batches, quiet_trainer, with_methods


def parameters():
    return [torch.nn.Parameter(torch.zeros(1))]


def config(optimizer, name=None, interval="epoch"):
    return SimpleNamespace(scheduler=StepLR(optimizer, 1), name=name, interval=interval, frequency=1, monitor=None)


def logged(callback, optimizers, configs=(), **attributes):
    """One epoch of two steps, every one of which is logged."""
    trainer = FakeTrainer(
        loggers=[object()], log_every_n_steps=1, optimizers=optimizers, lr_scheduler_configs=list(configs), **attributes
    )
    callback.on_train_start(trainer, None)
    callback.on_train_epoch_start(trainer, None)
    for index in range(2):
        callback.on_train_batch_start(trainer, None, None, index)
        trainer.progress.step += 1
    return trainer.logged


def test_names():
    first = torch.optim.Adam(parameters(), lr=0.1)
    second = torch.optim.Adam([{"params": parameters()}, {"params": parameters(), "lr": 0.5}], lr=0.2)
    third = torch.optim.SGD(
        [{"params": parameters(), "name": "head"}, {"params": parameters(), "name": "body"}], lr=0.3
    )
    named = torch.optim.Adam(parameters(), lr=0.4)
    callback = LearningRateMonitor("step")
    result = logged(callback, [first, second, third, named], [config(named, "mine")])
    expected = {
        "lr-Adam": 0.1,
        "lr-Adam-1/pg1": 0.2,
        "lr-Adam-1/pg2": 0.5,
        "lr-SGD/head": 0.3,
        "lr-SGD/body": 0.3,
        "mine": 0.4,
    }
    assert result == [(1, expected), (2, expected)]
    assert callback.lrs == {name: [rate, rate] for name, rate in expected.items()}


def test_a_single_group_with_a_name_has_it_in_the_log():
    named = torch.optim.SGD([{"params": parameters(), "name": "linear"}], lr=0.1)
    assert logged(LearningRateMonitor("epoch"), [named]) == [(0, {"lr-SGD/linear": 0.1})]


def test_the_largest_group_alone():
    large = [torch.nn.Parameter(torch.zeros(3))]
    optimizer = torch.optim.SGD([{"params": parameters(), "lr": 0.1}, {"params": large, "lr": 0.2}], lr=0.3)
    assert [row for _, row in logged(LearningRateMonitor("step", largest_group=True), [optimizer])] == [
        {"lr-SGD": 0.2},
        {"lr-SGD": 0.2},
    ]
    with pytest.raises(ArgumentTypeError, match=r"largest_group='yes'"):
        LearningRateMonitor(largest_group="yes")


def test_the_names_are_known_before_anything_is_logged():
    callback = LearningRateMonitor("step", log_momentum=True, log_weight_decay=True)
    trainer = FakeTrainer(loggers=[object()], optimizers=[torch.optim.Adam(parameters(), lr=0.1, betas=(0.8, 0.9))])
    callback.on_train_start(trainer, None)
    assert callback.lrs == {"lr-Adam": []}
    assert callback.last_momentum_values == {"lr-Adam-momentum": None}
    assert callback.last_weight_decay_values == {"lr-Adam-weight_decay": None}
    trainer.log_every_n_steps = 1
    callback.on_train_batch_start(trainer, None, None, 0)
    assert callback.last_momentum_values == {"lr-Adam-momentum": 0.8}
    assert callback.last_weight_decay_values == {"lr-Adam-weight_decay": 0.0}


def test_an_optimizer_without_momentum_is_named():
    callback = LearningRateMonitor("epoch", log_momentum=True)
    optimizers = [torch.optim.SGD(parameters(), lr=0.1), torch.optim.Adagrad(parameters(), lr=0.1)]
    with pytest.warns(PossibleUserWarning, match="but lr-Adagrad has no momentum: 0 is logged"):
        assert logged(callback, optimizers)[0][1]["lr-Adagrad-momentum"] == 0


def test_momentum_weight_decay_and_prefix():
    adam = torch.optim.Adam(parameters(), lr=0.1, betas=(0.8, 0.9), weight_decay=0.01)
    sgd = torch.optim.SGD(parameters(), lr=0.2, momentum=0.7)
    callback = LearningRateMonitor("epoch", log_momentum=True, log_weight_decay=True, log_key_prefix="o/")
    assert logged(callback, [adam, sgd]) == [
        (
            0,
            {
                "o/lr-Adam": 0.1,
                "o/lr-Adam-momentum": 0.8,
                "o/lr-Adam-weight_decay": 0.01,
                "o/lr-SGD": 0.2,
                "o/lr-SGD-momentum": 0.7,
                "o/lr-SGD-weight_decay": 0.0,
            },
        )
    ]


def test_interval_is_that_of_the_scheduler_and_step_without_one():
    by_epoch, by_step = torch.optim.SGD(parameters(), lr=0.1), torch.optim.Adam(parameters(), lr=0.2)
    plain = torch.optim.AdamW(parameters(), lr=0.3)
    configs = [config(by_epoch), config(by_step, interval="step")]
    result = logged(LearningRateMonitor(), [by_epoch, by_step, plain], configs)
    steps = {"lr-Adam": 0.2, "lr-AdamW": 0.3}
    assert result == [(0, {"lr-SGD": 0.1}), (1, steps), (2, steps)]


def test_only_steps_that_are_logged_and_each_once_while_accumulating():
    callback = LearningRateMonitor("step")
    trainer = FakeTrainer(loggers=[object()], log_every_n_steps=2, optimizers=[torch.optim.SGD(parameters(), lr=0.1)])
    callback.on_train_start(trainer, None)
    for batch in range(8):
        callback.on_train_batch_start(trainer, None, None, batch)
        trainer.progress.step += batch % 2
    assert [step for step, _ in trainer.logged] == [2, 4]


def test_a_step_that_overflowed_is_not_logged_again_by_a_resumed_run():
    sgd = torch.optim.SGD(parameters(), lr=0.1)
    first, second = LearningRateMonitor("step"), LearningRateMonitor("step")
    logged(first, [sgd])
    second.load_state_dict(first.state_dict())
    trainer = FakeTrainer(loggers=[object()], log_every_n_steps=1, optimizers=[sgd], lr_scheduler_configs=[])
    trainer.progress.batch, trainer.progress.step = 2, 1  # the second step was tried, and skipped
    second.on_train_start(trainer, None)
    second.on_train_batch_start(trainer, None, None, 0)
    assert trainer.logged == []
    trainer.progress.batch, trainer.progress.step = 0, 1
    second.on_train_start(trainer, None)
    second.on_train_batch_start(trainer, None, None, 0)
    assert len(trainer.logged) == 1


def test_log_every_n_steps_zero_is_never():
    callback = LearningRateMonitor("step")
    trainer = FakeTrainer(loggers=[object()], log_every_n_steps=0, optimizers=[torch.optim.SGD(parameters(), lr=0.1)])
    callback.on_train_start(trainer, None)
    callback.on_train_batch_start(trainer, None, None, 0)
    assert trainer.logged == []


def test_groups_added_while_training():
    callback = LearningRateMonitor("epoch")
    optimizer = torch.optim.SGD(parameters(), lr=0.1)
    trainer = FakeTrainer(loggers=[object()], optimizers=[optimizer])
    callback.on_train_start(trainer, None)
    callback.on_train_epoch_start(trainer, None)
    optimizer.add_param_group({"params": parameters(), "lr": 0.2})
    callback.on_train_epoch_start(trainer, None)
    assert [list(metrics) for _, metrics in trainer.logged] == [["lr-SGD"], ["lr-SGD/pg1", "lr-SGD/pg2"]]


def test_refused():
    with pytest.raises(UnknownNameError, match=r"Unknown logging_interval of .* 'steps'. Did you mean 'step'"):
        LearningRateMonitor("steps")
    with pytest.raises(MisconfigurationException, match=r"has no logger(.|\n)*Fix: Trainer\(logger=True"):
        LearningRateMonitor().on_train_start(FakeTrainer(), None)
    LearningRateMonitor().on_train_start(FakeTrainer(fast_dev_run=True), None)


def test_history_alone_receives_the_rates():
    def configure(parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": StepLR(optimizer, 2, 0.5), "interval": "step"}}

    history = History()
    quiet_trainer(callbacks=[LearningRateMonitor(), history], log_every_n_steps=1).fit(Net(configure), batches(5))
    assert history.values("lr-SGD") == [0.5, 0.5, 0.25, 0.25, 0.125]


def test_two_groups_of_one_name():
    groups = [{"params": parameters(), "name": "a"}, {"params": parameters(), "name": "a"}]
    with pytest.raises(MisconfigurationException, match="SGD has several parameter groups with the name 'a'"):
        logged(LearningRateMonitor(), [torch.optim.SGD(groups, lr=0.1)])


def test_the_name_and_schedule_of_an_optimizer_that_another_shares_out():
    parameters = [torch.nn.Parameter(torch.ones(1))]
    given = torch.optim.AdamW(parameters, 0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(given, 1)
    shared = SimpleNamespace(optim=given, param_groups=given.param_groups)
    config = SimpleNamespace(scheduler=scheduler, name=None, interval="epoch")
    callback, trainer = (
        LearningRateMonitor(),
        FakeTrainer(optimizers=[shared], lr_scheduler_configs=[config], loggers=[1]),
    )
    callback.on_train_epoch_start(trainer, None)
    assert trainer.logged == [(0, {"lr-AdamW": 0.5})]


def rates_of_a_run(scheduler, data, every, interval=None, *callbacks, **arguments):
    """The logged (step, rate) of three epochs, with a rate that is multiplied by 0.5."""

    def configure(parameters):
        optimizer = torch.optim.SGD(parameters, lr=1.0)
        schedule = {"scheduler": StepLR(optimizer, 1, 0.5), "interval": scheduler}
        return [optimizer], [schedule] if scheduler else []

    rows, monitor = Rows(), LearningRateMonitor(interval)
    trainer = quiet_trainer(
        callbacks=[*callbacks, monitor], logger=rows, log_every_n_steps=every, **{"max_epochs": 3, **arguments}
    )
    trainer.fit(Net(configure), data)
    assert monitor.lrs == {"lr-SGD": [values["lr-SGD"] for _, values in rows.rows if "lr-SGD" in values]}
    return [(step, values["lr-SGD"]) for step, values in rows.rows if "lr-SGD" in values]


@pytest.mark.parametrize("scheduler", [None, "step", "batch", "manual"])
def test_an_epoch_without_a_logged_step_has_one_row(scheduler):
    def rate(step):
        return 0.5**step if scheduler in ("step", "batch") else 1.0

    # four steps an epoch: step 5 is in the second, and none in the first and the third; then every third step
    assert rates_of_a_run(scheduler, batches(4), 5) == [(0, 1.0), (5, rate(4)), (10, rate(9))]
    assert rates_of_a_run(scheduler, batches(4), 50) == [(0, 1.0), (4, rate(4)), (8, rate(8))]
    assert rates_of_a_run(scheduler, batches(4), 9) == [(0, 1.0), (4, rate(4)), (9, rate(8))]
    assert rates_of_a_run(scheduler, batches(4), 4) == [(4, rate(3)), (8, rate(7)), (12, rate(11))]
    assert rates_of_a_run(scheduler, batches(4), 0) == []


def test_an_epoch_without_a_logged_step_by_its_length():
    """Accumulation, a limit of steps, and a loader without a length, of which the first step alone is known."""
    assert rates_of_a_run(None, batches(4), 2, accumulate_grad_batches=4) == [(0, 1.0), (2, 1.0), (2, 1.0)]
    schedule = GradientAccumulationScheduler({0: 4, 1: 1})
    assert rates_of_a_run(None, batches(4), 3, None, schedule) == [(0, 1.0), (3, 1.0), (6, 1.0), (9, 1.0)]
    assert rates_of_a_run(None, batches(4), 4, max_steps=3) == [(0, 1.0)]
    assert rates_of_a_run(None, Unsized(batches(4)), 50) == [(0, 1.0), (4, 1.0), (8, 1.0)]
    assert rates_of_a_run(None, Unsized(batches(4)), 1) == [(step, 1.0) for step in range(1, 13)]


def test_a_schedule_by_epochs_and_a_chosen_interval_have_no_further_rows():
    assert rates_of_a_run("epoch", batches(4), 50) == [(0, 1.0), (4, 0.5), (8, 0.25)]
    assert rates_of_a_run("epoch", batches(4), 5) == [(0, 1.0), (4, 0.5), (8, 0.25)]
    assert rates_of_a_run(None, batches(4), 5, "step") == [(5, 1.0), (10, 1.0)]
    assert rates_of_a_run(None, batches(4), 50, "step") == []
    assert rates_of_a_run(None, batches(4), 50, "epoch") == [(0, 1.0), (4, 1.0), (8, 1.0)]


def test_with_lightnings_conventions():
    """As recorded with Lightning 2.6.6: without a schedule also when an epoch begins, else as the schedule steps."""
    with following(LIGHTNING):
        assert rates_of_a_run(None, batches(4), 50) == [(0, 1.0), (4, 1.0), (8, 1.0)]
        assert rates_of_a_run(None, batches(4), 3, max_epochs=2) == [(0, 1.0), (2, 1.0), (4, 1.0), (5, 1.0)]
        assert rates_of_a_run("step", batches(4), 50) == []


@pytest.mark.parametrize("interval", ["step", "epoch", None])
def test_with_lightnings_conventions_several_optimizers_count_as_one(interval):
    """`global_step` counts the steps of both; as recorded with Lightning 2.6.6, the x-axis does not."""

    def configure(parameters):
        return [torch.optim.SGD([parameter], lr=1.0) for parameter in parameters]

    rows = Rows()
    arguments = {"max_epochs": 2, "log_every_n_steps": 2, "logger": rows}
    with following(LIGHTNING):
        quiet_trainer(callbacks=LearningRateMonitor(interval), **arguments).fit(Manual(configure), batches(4))
    expected = {"step": [1, 3, 5, 7], "epoch": [0, 4], None: [0, 1, 3, 4, 5, 7]}
    assert [step for step, values in rows.rows if "lr-SGD-1" in values] == expected[interval]


def test_learning_rate_monitor(tmp_path):
    def configure_optimizers(self):
        optimizer = Line.configure_optimizers(self)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    callback = LearningRateMonitor()
    seen = []
    watch = LambdaCallback(on_log=lambda trainer, module, metrics: seen.append(metrics.get("lr-SGD")))
    run = line_trainer(tmp_path, callback, watch, logger=CSVLogger(tmp_path), max_epochs=1, log_every_n_steps=2)
    run.fit(with_methods(Line, configure_optimizers))
    assert callback.lrs == {"lr-SGD": pytest.approx([0.001, 0.00001])}
    assert [rate for rate in seen if rate is not None] == pytest.approx([0.001, 0.00001])


def test_learning_rates_can_be_monitored(tmp_path):
    def configure_optimizers(self):
        optimizer = Line.configure_optimizers(self)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)]

    saver = ModelCheckpoint(tmp_path, monitor="lr-SGD", save_top_k=2)
    stop = EarlyStopping("lr-SGD", stopping_threshold=0.0005)
    run = line_trainer(tmp_path, LearningRateMonitor(), saver, stop, logger=CSVLogger(tmp_path), max_epochs=9)
    run.fit(with_methods(Line, configure_optimizers))
    assert run.current_epoch == 3
    assert run.callback_metrics["lr-SGD"] == pytest.approx(0.0001)
    assert sorted(value.item() for value in saver.best_k_models.values()) == pytest.approx([0.0001, 0.001])


def test_a_rate_that_is_logged_per_step_is_known_from_the_first_epoch_on(tmp_path):
    saver = ModelCheckpoint(tmp_path, monitor="lr-SGD")
    line_trainer(tmp_path, LearningRateMonitor("step"), saver, logger=CSVLogger(tmp_path), max_epochs=1).fit(Line())
    assert saver.best_model_score == pytest.approx(0.01)
