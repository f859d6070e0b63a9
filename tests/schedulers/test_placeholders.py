"""Placeholders: arithmetic, where they are found, and schedules that are built with them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, StepLR

from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.schedulers import (
    EVAL_DATALOADER_LEN,
    NUM_EPOCHS,
    TOTAL_UPDATE_STEPS,
    TRAIN_DATALOADER_LEN,
    UPDATE_STEPS_PER_EPOCH,
    Placeholder,
)
from lightlib.schedulers.placeholders import expression, resolved
from tests.runs.plain import Net, Unsized, batches, network, quiet_trainer, same_weights, with_methods

NUMBERS = {"NUM_EPOCHS": 3, "UPDATE_STEPS_PER_EPOCH": 4}.get


@pytest.mark.parametrize(
    ("given", "value", "text"),
    [
        (UPDATE_STEPS_PER_EPOCH * 7, 28, "UPDATE_STEPS_PER_EPOCH * 7"),
        (7 * UPDATE_STEPS_PER_EPOCH, 28, "7 * UPDATE_STEPS_PER_EPOCH"),
        (NUM_EPOCHS + 1, 4, "NUM_EPOCHS + 1"),
        (1 + NUM_EPOCHS, 4, "1 + NUM_EPOCHS"),
        (NUM_EPOCHS - 1, 2, "NUM_EPOCHS - 1"),
        (10 - NUM_EPOCHS, 7, "10 - NUM_EPOCHS"),
        (UPDATE_STEPS_PER_EPOCH // 2, 2, "UPDATE_STEPS_PER_EPOCH // 2"),
        (9 // NUM_EPOCHS, 3, "9 // NUM_EPOCHS"),
        ((NUM_EPOCHS - 1) * UPDATE_STEPS_PER_EPOCH, 8, "(NUM_EPOCHS - 1) * UPDATE_STEPS_PER_EPOCH"),
        (NUM_EPOCHS - (UPDATE_STEPS_PER_EPOCH - 1), 0, "NUM_EPOCHS - (UPDATE_STEPS_PER_EPOCH - 1)"),
        (NUM_EPOCHS * (UPDATE_STEPS_PER_EPOCH // 2), 6, "NUM_EPOCHS * (UPDATE_STEPS_PER_EPOCH // 2)"),
    ],
)
def test_arithmetic(given, value, text):
    assert given.value(NUMBERS) == value
    assert repr(given) == text
    assert expression(text) == given


@pytest.mark.parametrize(
    "text",
    ["cosine", "NUM_EPOCH * 2", "NUM_EPOCHS / 2", "NUM_EPOCHS * 1.5", "f(NUM_EPOCHS)", "NUM_EPOCHS *", "NUM_EPOCHS.x"],
)
def test_other_texts_are_none(text):
    assert expression(text) is None


@dataclass(frozen=True)
class Lengths:
    total: object
    name: str = "a"


class Pair(NamedTuple):
    one: object
    two: object


def test_where_they_are_found():
    inner = partial(max, NUM_EPOCHS, key=None)
    given = {
        "partial": partial(dict, inner, total=TOTAL_UPDATE_STEPS),
        "list": [NUM_EPOCHS, (UPDATE_STEPS_PER_EPOCH, "NUM_EPOCHS")],
        "data": Lengths(NUM_EPOCHS * 2),
        "pair": Pair(NUM_EPOCHS, 1),
    }
    found = resolved(given, {"NUM_EPOCHS": 3, "UPDATE_STEPS_PER_EPOCH": 4, "TOTAL_UPDATE_STEPS": 12}.get)
    assert found["partial"].args[0].args == (3,)
    assert found["partial"].keywords == {"total": 12}
    assert found["list"] == [3, (4, "NUM_EPOCHS")]
    assert found["data"] == Lengths(6)
    assert found["pair"] == Pair(3, 1)
    assert type(found["pair"]) is Pair


def test_other_objects_stay_the_same():
    given = {"a": [partial(max, 1), Lengths(2), Pair(1, 2)], "b": torch.ones(1), "c": Lengths}
    assert resolved(given, NUMBERS) is given


def sgd_with(scheduler, interval="step", **more):
    """Return a `configure` for Net."""

    def configure(parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": interval, **more}}

    return configure


def test_one_cycle_with_accumulation_equals_a_plain_loop():
    module, data = (
        Net(sgd_with(partial(OneCycleLR, max_lr=0.5, epochs=NUM_EPOCHS, steps_per_epoch=UPDATE_STEPS_PER_EPOCH))),
        batches(10),
    )
    quiet_trainer(max_epochs=3, accumulate_grad_batches=3).fit(module, data)
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    schedule = OneCycleLR(optimizer, max_lr=0.5, epochs=3, steps_per_epoch=4)
    for _ in range(3):
        for i in range(0, 10, 3):
            optimizer.zero_grad()
            window = data[i : i + 3]
            for x, y in window:
                (torch.nn.functional.cross_entropy(net(x), y) / len(window)).backward()
            optimizer.step()
            schedule.step()
    assert same_weights(module.net, net)


class Seen(Net):
    """Keeps the numbers that its schedule was built with."""

    def __init__(self, *placeholders):
        self.seen = []

        def build(optimizer, numbers, more):
            self.seen = [*numbers, more["last"]]
            return LambdaLR(optimizer, lambda _: 1.0)

        *first, last = placeholders
        super().__init__(sgd_with(partial(partial(build, numbers=first), more={"last": last})))


EVERY = (NUM_EPOCHS, UPDATE_STEPS_PER_EPOCH, TOTAL_UPDATE_STEPS, TRAIN_DATALOADER_LEN, EVAL_DATALOADER_LEN)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"max_epochs": 2, "accumulate_grad_batches": 3}, [2, 4, 8, 10, 5]),
        ({"max_epochs": 1.5, "accumulate_grad_batches": 3}, [2, 4, 6, 10, 5]),
        ({"max_epochs": -1, "max_steps": 21}, [3, 10, 21, 10, 5]),
        ({"max_epochs": 9, "max_steps": 21, "limit_train_batches": 4, "limit_val_batches": 2}, [6, 4, 21, 4, 2]),
    ],
)
def test_every_number(arguments, expected):
    module = with_methods(Seen(*EVERY), validation_step=lambda self, batch, batch_idx: None)
    quiet_trainer(**arguments).fit(module, batches(10), batches(5))
    assert module.seen == expected


def test_in_a_schedulers_dict():
    module = Net(
        sgd_with(
            partial(CosineAnnealingLR, T_max=TOTAL_UPDATE_STEPS - UPDATE_STEPS_PER_EPOCH), begin=UPDATE_STEPS_PER_EPOCH
        )
    )
    trainer = quiet_trainer(max_epochs=3)
    trainer.fit(module, batches(4))
    (config,) = trainer.lr_scheduler_configs
    assert (config.begin, config.scheduler.T_max) == (4, 8)


def test_epochs_by_steps_equal_epochs():
    """StepLR(7 * n) by step has the rates of StepLR(7) by epoch at the ends of epochs."""

    def rates(configure):
        def on_train_epoch_start(self):
            found.append(self.optimizers().param_groups[0]["lr"])

        found = []
        quiet_trainer(max_epochs=9).fit(with_methods(Net(configure), on_train_epoch_start), batches(3))
        return found

    by_step = rates(sgd_with(partial(StepLR, step_size=UPDATE_STEPS_PER_EPOCH * 7)))
    assert by_step == rates(sgd_with(partial(StepLR, step_size=7), "epoch")) == [0.1] * 7 + [pytest.approx(0.01)] * 2


class TestMistakes:
    def test_a_number_before_the_run(self):
        with pytest.raises(ArgumentTypeError, match=r"The placeholder NUM_EPOCHS \* 2 was used as a number"):
            range(NUM_EPOCHS * 2)
        with pytest.raises(ArgumentTypeError, match="the run puts it in"):
            int(NUM_EPOCHS)

    @pytest.mark.parametrize("operand", [1.5, "2", True, None])
    def test_other_operands(self, operand):
        with pytest.raises(ArgumentTypeError, match=r"combined by \* with"):
            NUM_EPOCHS * operand

    def test_a_number_that_the_run_does_not_know(self):
        module = Seen(UPDATE_STEPS_PER_EPOCH)
        with pytest.raises(MisconfigurationException, match=r"UPDATE_STEPS_PER_EPOCH \(optimizer steps of an epoch\)"):
            quiet_trainer(max_steps=2).fit(module, Unsized(batches(4)))
        with pytest.raises(MisconfigurationException, match="EVAL_DATALOADER_LEN"):
            quiet_trainer().fit(Seen(EVAL_DATALOADER_LEN), batches(4))

    def test_a_division_by_zero(self):
        with pytest.raises(MisconfigurationException, match="divides by 0 in this run"):
            quiet_trainer().fit(Seen(TOTAL_UPDATE_STEPS // (NUM_EPOCHS - 1)), batches(4))

    def test_a_placeholder_is_frozen(self):
        with pytest.raises(AttributeError):
            NUM_EPOCHS.name = "other"
        assert Placeholder("NUM_EPOCHS") == NUM_EPOCHS
