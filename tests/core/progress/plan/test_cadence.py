"""When a run validates: every form, counted; and several fits that count on."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy, interpolate

from lightlib.callbacks import History, LambdaCallback
from tests.runs.modules import LogsLoss
from tests.runs.plain import Rows, batches, momentum, network, quiet_trainer, same_weights
from tests.runs.steps import Steps

BATCHES = 5
ACROSS = {"check_val_every_n_epoch": None}


class Clock:
    """A clock that a training batch moves by one second."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("lightlib.core.run.parts.monotonic", lambda: self.now)

    def tick(self, *_):
        self.now += 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param({}, [5, 10, 15, 20], id="every epoch"),
        pytest.param({"check_val_every_n_epoch": 2}, [10, 20], id="every second epoch"),
        pytest.param({"val_check_interval": 0.4}, [2, 4, 7, 9, 12, 14, 17, 19], id="parts of an epoch"),
        pytest.param({"val_check_interval": 3}, [3, 8, 13, 18], id="batches within an epoch"),
        pytest.param({"val_check_interval": 7, **ACROSS}, [7, 14], id="batches across epochs"),
        pytest.param({"val_check_interval": "00:00:00:06", **ACROSS}, [6, 12, 18], id="time"),
        pytest.param({"check_val_every_n_epoch": [(3, 1)]}, [15, 20], id="epochs from an offset"),
        pytest.param({"val_check_interval": [(8, 4)], **ACROSS}, [8, 12, 16, 20], id="batches from an offset"),
        pytest.param({"check_val_every_n_epoch": [(0, 1), (2, 2)]}, [5, 10, 20], id="epochs that change"),
        pytest.param({"val_check_interval": [(0, 2), (6, 7)], **ACROSS}, [2, 4, 7, 14], id="batches that change"),
        pytest.param({"check_val_every_n_epoch": 3, "val_check_at_end": True}, [15, 20], id="and at the end"),
        pytest.param(
            {"val_check_interval": 7, "val_check_at_end": True, **ACROSS}, [7, 14, 20], id="across, and the end"
        ),
        pytest.param({"limit_val_batches": 0}, [], id="never"),
    ],
)
def test_each_form_is_counted(arguments, expected, monkeypatch):
    at, clock = [], Clock(monkeypatch)
    callback = LambdaCallback(
        on_train_batch_start=clock.tick, on_validation_start=lambda trainer, module: at.append(trainer.global_step)
    )
    trainer = quiet_trainer(callbacks=callback, **{"max_epochs": 4, **arguments})
    trainer.fit(Steps(), batches(BATCHES), batches(1))
    assert at == expected


def test_before_training():
    """A validation that is requested as training starts runs before the first batch, and is logged at step 0."""

    def ask(trainer, module):
        trainer.request_validation()

    logger = Rows()
    callbacks = [LambdaCallback(on_train_start=ask)]
    trainer = quiet_trainer(callbacks=callbacks, logger=logger, num_sanity_val_steps=0)
    trainer.fit(Steps(), batches(3), batches(2, seed=4))
    expected = torch.stack([x.mean() for x, _ in batches(2, seed=4)]).mean().item()
    assert [(step, row["x"]) for step, row in logger.rows] == [
        (0, pytest.approx(expected)),
        (3, pytest.approx(expected)),
    ]


def test_the_sanity_check_is_not_logged():
    logger = Rows()
    quiet_trainer(logger=logger, num_sanity_val_steps=-1).fit(Steps(), batches(3), batches(2))
    assert [step for step, _ in logger.rows] == [3]


class AnySize(LogsLoss):
    """A classifier of any number of inputs, which are resized to six."""

    def __init__(self):
        super().__init__(momentum, on_step=False, on_epoch=True)

    def loss(self, batch):
        return loss_of(self.net, *batch)


def loss_of(net, x, y):
    return cross_entropy(net(interpolate(x[:, None], 6)[:, 0]), y)


PHASES = {8: 2, 16: 3, 32: 6}  # epochs by size


def resized(size):
    """Three batches of inputs of this size."""
    return [(interpolate(x[:, None], size)[:, 0], y) for x, y in batches(3)]


def test_three_fits_with_growing_sizes_are_one_history():
    history, module, trainer, net = History(), AnySize(), None, network()
    trainer = quiet_trainer(callbacks=[history], max_epochs=0, log_every_n_steps=1)
    for size, epochs in PHASES.items():
        trainer.max_epochs += epochs
        trainer.fit(module, resized(size))
    records = history["loss"]
    assert [record.epoch for record in records] == [*range(11)]
    assert [record.step for record in records] == [*range(3, 34, 3)]
    assert [record.fit for record in records] == [0] * 2 + [1] * 3 + [2] * 6
    assert (trainer.current_epoch, trainer.global_step) == (11, 33)
    losses = []
    for size, epochs in PHASES.items():
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)  # each fit makes its optimizer
        for _ in range(epochs):
            values = []
            for x, y in resized(size):
                optimizer.zero_grad()
                loss = loss_of(net, x, y)
                loss.backward()
                optimizer.step()
                values.append(loss.detach())
            losses.append(torch.stack(values).mean().item())
    assert same_weights(module.net, net)
    assert [record.value for record in records] == pytest.approx(losses)


def test_another_trainer_begins_again():
    module = AnySize()
    for _ in range(2):
        trainer = quiet_trainer(max_epochs=2)
        trainer.fit(module, resized(8))
        assert (trainer.current_epoch, trainer.global_step) == (2, 6)
