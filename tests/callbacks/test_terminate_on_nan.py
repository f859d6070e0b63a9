"""TerminateOnNaN: a loss that is not finite ends the run before it reaches the weights."""

from __future__ import annotations

import math

import pytest
import torch

from lightlib.callbacks import TerminateOnNaN
from lightlib.callbacks.terminate_on_nan import NonFiniteLossError
from lightlib.errors import ArgumentTypeError, LightlibError, MisconfigurationException
from tests.callbacks.fake_trainer import FakeTrainer
from tests.callbacks.line import Line, line_trainer


def look(loss, step=0, module=None, dtype=torch.float32, **arguments):
    trainer = FakeTrainer()
    trainer.progress.epoch, trainer.progress.epoch_batch, trainer.progress.step = 2, 7, step
    TerminateOnNaN(**arguments).on_before_backward(
        trainer, module or torch.nn.Linear(1, 1), torch.tensor(loss, dtype=dtype)
    )


def test_finite():
    look(1.0)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, [1.0, math.nan]])
def test_not_finite(loss):
    value = loss[1] if isinstance(loss, list) else loss
    with pytest.raises(NonFiniteLossError) as caught:
        look(loss, step=3)
    assert f"The loss is {value} at epoch 2, batch 7, global step 3. All parameters are finite" in str(caught.value)
    assert "Fix: look at this batch" in str(caught.value)
    assert isinstance(caught.value, LightlibError)


def test_names_the_parameters():
    module = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    with torch.no_grad():
        for parameter in module[1:].parameters():
            parameter.fill_(math.nan)
    with pytest.raises(NonFiniteLossError, match=r"not finite before: 1.weight, 1.bias, 2.weight and 1 more\."):
        look(math.nan, module=module)


def test_every_n_steps():
    look(math.nan, step=3, check_every_n_steps=2)
    with pytest.raises(NonFiniteLossError):
        look(math.nan, step=4, check_every_n_steps=2)


def test_what_the_loss_scaler_makes_of_float16():
    look(math.inf, dtype=torch.float16)
    with pytest.raises(NonFiniteLossError):
        look(math.nan, dtype=torch.float16)


def test_another_rank():
    trainer = FakeTrainer(world_size=2)
    trainer.strategy.reduce_boolean_decision = lambda decision, **how: not how["all"]
    trainer.strategy.all_gather_object = lambda found: [found, (1, math.inf, [], {"loss_a": 1.0, "loss_b": math.inf})]
    with pytest.raises(NonFiniteLossError, match=r"The loss of rank 1 is inf.*logged loss_b = inf, loss_a = 1\. All"):
        TerminateOnNaN().on_before_backward(trainer, torch.nn.Linear(1, 1), torch.tensor(1.0))


def test_refused():
    with pytest.raises(MisconfigurationException, match="check_every_n_steps=0"):
        TerminateOnNaN(0)
    with pytest.raises(ArgumentTypeError, match=r"check_every_n_steps=1.5"):
        TerminateOnNaN(1.5)


def test_terminate_on_nan(tmp_path):
    model = Line(bad_batch=5)
    with pytest.raises(NonFiniteLossError, match="The loss is nan at epoch 1, batch 1, global step 5"):
        line_trainer(tmp_path, TerminateOnNaN()).fit(model)
    assert model.layer.weight.isfinite().all()
