"""ParamScheduler: momentum, betas and weight decay as a plain loop sets them."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, ReduceLROnPlateau, StepLR

from lightlib.callbacks import LearningRateMonitor
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.schedulers import LinearWarmupLR, ParamScheduler
from tests.runs.plain import Net, Rows, batches, network, quiet_trainer, same_weights, with_methods


class Momentum(Net):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_start(self, batch, batch_idx):
        self.seen.append(self.optimizers().param_groups[0]["momentum"])

    def configure_optimizers(self):
        optimizer = SGD(self.parameters(), lr=0.1, momentum=0.9)
        moved = ParamScheduler(optimizer, "momentum", partial(LinearLR, start_factor=0.5, total_iters=4))
        rate = StepLR(optimizer, step_size=3)
        return [optimizer], [{"scheduler": moved, "interval": "step"}, {"scheduler": rate, "interval": "step"}]


def test_momentum_equals_a_plain_loop():
    net = network()
    optimizer = SGD(net.parameters(), lr=0.1, momentum=0.45)
    for step, (x, y) in enumerate(batches(6)):
        optimizer.param_groups[0].update(lr=0.1 * 0.1 ** (step // 3), momentum=0.9 * min(1, 0.5 + 0.125 * step))
        optimizer.zero_grad()
        cross_entropy(net(x), y).backward()
        optimizer.step()
    module = Momentum()
    quiet_trainer().fit(module, batches(6))
    assert module.seen == pytest.approx([0.45, 0.5625, 0.675, 0.7875, 0.9, 0.9])
    for found, expected in zip(module.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


def test_resumed(tmp_path):
    def fit(max_steps, ckpt_path=None):
        module, trainer = Momentum(), quiet_trainer(max_epochs=-1, max_steps=max_steps)
        trainer.fit(module, batches(3), ckpt_path=ckpt_path)
        return module, trainer

    expected, _ = fit(6)
    fit(2)[1].save_checkpoint(tmp_path / "file.ckpt")
    found, _ = fit(6, tmp_path / "file.ckpt")
    assert torch.load(tmp_path / "file.ckpt", weights_only=True)["global_step"] == 2
    assert found.seen == expected.seen  # the module's list is restored as well
    same_weights(found, expected)


@pytest.mark.parametrize(
    ("param", "values"), [("betas.0", [0.9, 0.45, 0.0]), ("betas.1", [0.8, 0.4, 0.0]), ("weight_decay", [0.4, 0.2, 0])]
)
def test_each_option(param, values):
    optimizer = AdamW([torch.zeros(1, requires_grad=True)], lr=0.1, betas=(0.9, 0.8), weight_decay=0.4)
    schedule = ParamScheduler(optimizer, param, partial(LinearWarmupLR, total_steps=2))
    key, _, index = param.partition(".")
    for value in values:
        found = optimizer.param_groups[0][key]
        assert (found[int(index)] if index else found) == pytest.approx(value)
        assert optimizer.param_groups[0]["lr"] == 0.1
        schedule.step()
    assert isinstance(optimizer.param_groups[0]["betas"], tuple)


def test_each_group_has_its_own_value():
    groups = [{"params": [torch.zeros(1)], "weight_decay": decay} for decay in (0.4, 0.0)]
    optimizer = SGD(groups, lr=0.1)
    schedule = ParamScheduler(optimizer, "weight_decay", partial(CosineAnnealingLR, T_max=2))
    schedule.step()
    assert [group["weight_decay"] for group in optimizer.param_groups] == pytest.approx([0.2, 0.0])


def test_one_that_reads_a_metric():
    def configure_optimizers(self):
        optimizer = SGD(self.parameters(), lr=0.1, momentum=0.8)
        moved = ParamScheduler(optimizer, "momentum", partial(ReduceLROnPlateau, patience=0, factor=0.5))
        config = {"scheduler": moved, "reduce_on_plateau": True, "monitor": "m"}
        return {"optimizer": optimizer, "lr_scheduler": config}

    module = with_methods(Net, configure_optimizers, on_train_epoch_end=lambda self: self.log("m", 1.0))
    quiet_trainer(max_epochs=3).fit(module, batches(1))
    assert module.optimizers().param_groups[0]["momentum"] == pytest.approx(0.2)


def test_it_is_seen_by_the_monitor_of_learning_rates():
    rows = Rows()
    trainer = quiet_trainer(logger=rows, log_every_n_steps=1, callbacks=[LearningRateMonitor(log_momentum=True)])
    trainer.fit(Momentum(), batches(3))
    logged = [values for _, values in rows.rows if "lr-SGD" in values]
    assert [values["lr-SGD-momentum"] for values in logged] == pytest.approx([0.45, 0.5625, 0.675])


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (("momentun", StepLR), MisconfigurationException, "momentun"),
        (("betas", StepLR), MisconfigurationException, r"betas\.0, betas\.1"),
        (("betas.2", StepLR), MisconfigurationException, r"betas\.2"),
        (("nesterov", StepLR), MisconfigurationException, "nesterov"),
        (("weight_decay", 3), ArgumentTypeError, "scheduler=3"),
        (("weight_decay", lambda optimizer: None), ArgumentTypeError, "returned None"),
    ],
)
def test_bad_arguments(arguments, kind, message):
    with pytest.raises(kind, match=message):
        ParamScheduler(AdamW([torch.zeros(1)], lr=0.1), *arguments)
