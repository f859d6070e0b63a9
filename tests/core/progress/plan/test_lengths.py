"""Lengths of runs and intervals of validations: parts of epochs, changes, the end."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from lightlib.callbacks import LambdaCallback
from tests.runs.plain import Net, batches, network, quiet_trainer, same_weights, with_methods
from tests.runs.steps import Steps


def by_hand(order, of, accumulate=1):
    """Train `network()` on the batches with these numbers, each list of numbers being an epoch."""
    net, data = network(), batches(of)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in order:
        for at in range(0, len(epoch), accumulate):
            window = epoch[at : at + accumulate]
            optimizer.zero_grad()
            for i in window:
                (cross_entropy(net(data[i][0]), data[i][1]) / len(window)).backward()
            optimizer.step()
    return net


@pytest.mark.parametrize(
    ("epochs", "accumulate", "order"),
    [
        (1.5, 1, [range(6), range(3)]),
        (0.34, 1, [range(3)]),  # 2.04 steps
        (1.5, 4, [range(6), range(4)]),  # one of two steps
        (2.0, 1, [range(6), range(6)]),
    ],
)
def test_a_part_of_an_epoch(epochs, accumulate, order):
    module = Net()
    trainer = quiet_trainer(max_epochs=epochs, accumulate_grad_batches=accumulate)
    trainer.fit(module, batches(6))
    assert same_weights(module.net, by_hand(order, 6, accumulate))
    assert trainer.current_epoch == int(epochs)
    assert trainer.global_step == trainer.estimated_stepping_batches


def test_a_part_of_an_epoch_goes_on_from_a_checkpoint(tmp_path):
    first, second = Net(), Net()
    trainer = quiet_trainer(max_epochs=1.5)
    trainer.fit(first, batches(6))
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    quiet_trainer(max_epochs=2.5).fit(second, batches(6), ckpt_path=tmp_path / "half.ckpt")
    assert same_weights(second.net, by_hand([range(6), range(6), range(3)], 6))


def test_a_schedule_gets_the_exact_number_of_steps():
    totals = []

    def schedule(optimizer, total_steps):
        totals.append(total_steps)
        return torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=total_steps)

    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=0.1)], [{"scheduler": schedule, "interval": "step"}]

    quiet_trainer(max_epochs=1.5, accumulate_grad_batches=2).fit(with_methods(Net, configure_optimizers), batches(6))
    assert totals == [3 + 2]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"max_epochs": 12, "check_val_every_n_epoch": [(0, 1), (10, 5)]}, [*range(2, 22, 2)]),
        ({"max_epochs": 4, "check_val_every_n_epoch": [(3, 1)]}, [6, 8]),
        ({"max_epochs": 5, "check_val_every_n_epoch": None, "val_check_interval": [(0, 2), (4, 5)]}, [2, 5, 10]),
        ({"max_epochs": 3, "check_val_every_n_epoch": 2, "val_check_at_end": True}, [4, 6]),
        ({"max_steps": 3, "max_epochs": -1, "val_check_at_end": True}, [2, 3]),
        ({"max_epochs": 1.5, "val_check_at_end": True}, [2, 3]),
    ],
)
def test_validations(arguments, expected):
    at = []
    callback = LambdaCallback(on_validation_start=lambda trainer, module: at.append(trainer.global_step))
    quiet_trainer(callbacks=callback, **arguments).fit(Steps(), batches(2), batches(1))
    assert at == expected


def test_a_stop_is_validated_at_the_end():
    at = []

    def on_train_batch_end(self, *args):
        self.trainer.should_stop = self.trainer.global_step == 3

    def on_validation_start(self):
        at.append(self.trainer.global_step)

    module = with_methods(Steps, on_train_batch_end, on_validation_start)
    quiet_trainer(max_epochs=9, check_val_every_n_epoch=5, val_check_at_end=True).fit(module, batches(2), batches(1))
    assert at == [3]
