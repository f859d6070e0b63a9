"""The switches that find mistakes: each reaches its message on a small broken model."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from lightlib.callbacks import TerminateOnNaN
from lightlib.callbacks.terminate_on_nan import NonFiniteLossError
from tests.runs.plain import Net, batches, calling, quiet_trainer, raising, with_methods


class Terms(Net):
    """Returns two terms of a loss, of which one is not finite in the third batch."""

    def training_step(self, batch, batch_idx):
        good = self.loss(batch)
        bad = good * (math.nan if batch_idx == 2 else 1.0)
        return {"loss_class": good, "loss_box": bad}


class LogsTerms(Terms):
    """Logs the terms of the loss that it returns."""

    def training_step(self, batch, batch_idx):
        terms = super().training_step(batch, batch_idx)
        self.log_dict(terms)
        return sum(terms.values())


def loss_of_third_batch():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in batches(4)[:2]:
        optimizer.zero_grad()
        (2 * cross_entropy(net.net(x), y)).backward()
        optimizer.step()
    x, y = batches(4)[2]
    return cross_entropy(net.net(x), y).item()


@pytest.mark.parametrize("module", [Terms, LogsTerms])
def test_terminate_on_nan_lists_each_term_of_the_loss(module):
    with pytest.raises(NonFiniteLossError) as caught:
        quiet_trainer(callbacks=[TerminateOnNaN()]).fit(module(), batches(4))
    message = str(caught.value)
    assert "The loss is nan at epoch 0, batch 2, global step 2. training_step logged loss" in message
    assert "loss_box = nan, " in message
    assert f"loss_class = {loss_of_third_batch():.6g}" in message
    assert "All parameters are finite" in message


@pytest.mark.parametrize("module", [Terms, LogsTerms])
def test_the_warning_when_logging_lists_each_term_of_the_loss(module):
    with pytest.warns(UserWarning, match=r"is nan at epoch 0, batch 2, step 3 \(seen when logging\)\.") as caught:
        quiet_trainer(log_every_n_steps=1).fit(module(), batches(4)[:3])
    message = str(caught[0].message)
    assert f"loss_class = {loss_of_third_batch():.6g}" in message
    assert "loss_box" in message


def test_detect_anomaly_names_the_operation():
    # its gradient is 0 * inf
    root = with_methods(training_step=lambda self, batch, batch_idx: (self.net(batch[0]) * 0).sqrt().sum() * 0)
    with pytest.raises(RuntimeError, match=r"SqrtBackward0.*returned nan"), pytest.warns(UserWarning, match="Sqrt"):
        quiet_trainer(detect_anomaly=True).fit(root, batches(1))
    assert not torch.is_anomaly_enabled()


def test_fast_dev_run_reaches_a_broken_validation_after_one_batch():
    def training_step(self, batch, batch_idx):
        self.trained += 1
        return Net.training_step(self, batch, batch_idx)

    module = with_methods(Net, training_step, trained=0, validation_step=raising(KeyError("label")))
    with pytest.raises(KeyError, match="label"):
        quiet_trainer(fast_dev_run=True, max_epochs=100).fit(module, batches(50), batches(50))
    assert module.trained == 1


@pytest.mark.parametrize(("limit", "count"), [(3, 3), (0.25, 2), (1.0, 8)])
def test_limits_count_batches_or_a_share_of_them(limit, count):
    def training_step(self, batch, batch_idx):
        self.seen += 1
        return Net.training_step(self, batch, batch_idx)

    module = with_methods(Net, training_step, seen=0)
    quiet_trainer(limit_train_batches=limit).fit(module, batches(8))
    assert module.seen == count


def test_overfit_batches_repeats_the_same_batches_in_order():
    firsts = []
    module = calling(training_step=lambda self, batch, batch_idx: firsts.append(batch[0][0, 0].item()))
    quiet_trainer(overfit_batches=2, max_epochs=3).fit(module, batches(8))
    assert firsts == [x[0, 0].item() for x, _ in batches(8)[:2]] * 3
