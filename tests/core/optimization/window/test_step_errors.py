"""Bad input at the first batch: return values of training_step, and steps that train nothing."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from lightlib.callbacks import EarlyStopping
from lightlib.errors import MisconfigurationException
from lightlib.report import PossibleUserWarning
from tests.runs.bad_input import Net, loader, refused, refuses_fit, trainer, with_methods

WRONG = MisconfigurationException
A_LOSS = (
    "the loss (a tensor with one element and a gradient), a dict with 'loss' or with several losses whose names "
    "contain 'loss', or None to skip the batch."
)
RETURN = "return loss, or return {'loss': loss, …}."
GRADIENT = "a loss that depends on parameters with requires_grad=True."
LOOK = "look for .detach(), .item(), torch.no_grad() or only frozen parameters in the computation of the loss."
WEIGHT = "a finite number >= 0 or a tensor with one element: how many items the loss is the sum of."
WEIGHTED = "return {'loss': loss_sum, 'weight': number_of_tokens}"


def returning(change):
    """Return a module with a training step that returns `change(loss)`."""

    def training_step(self, batch, batch_idx):
        self.steps += 1
        return change(self.loss(batch))

    return with_methods(Net, training_step)


NO_GRADIENT = (WRONG, "training_step returned a loss without a gradient (requires_grad is False).", GRADIENT, LOOK)


@pytest.mark.parametrize(
    ("change", "what", "expected", "fix"),
    [
        (lambda loss: loss.item(), "training_step returned 0.*** (float).", A_LOSS, RETURN),
        (lambda loss: "x", "training_step returned 'x' (str).", A_LOSS, RETURN),
        (lambda loss: True, "training_step returned True (bool).", A_LOSS, RETURN),
        (lambda loss: (loss, 1), "training_step returned (tensor(***), 1) (tuple).", A_LOSS, RETURN),
        (lambda loss: np.float32(1), "training_step returned np.float32(1.0) (float32).", A_LOSS, RETURN),
        (lambda loss: {"los": loss}, "training_step returned a dict with the keys ['los'].", A_LOSS, RETURN),
        (lambda loss: {}, "training_step returned a dict with the keys [].", A_LOSS, RETURN),
        (
            lambda loss: {"loss": 1.0}, "training_step returned a dict with the keys ['loss'] whose 'loss' is 1.0.",
            A_LOSS, RETURN,
        ),
        (lambda loss: loss.detach(), *NO_GRADIENT[1:]),
        (lambda loss: {"loss": loss.detach()}, *NO_GRADIENT[1:]),
        (lambda loss: {"loss": loss.detach(), "weight": 2}, *NO_GRADIENT[1:]),
        (
            lambda loss: torch.stack([loss, loss]), "training_step returned a loss of shape (2,).",
            "a tensor with exactly one element.", "return loss.mean()",
        ),
        (
            lambda loss: loss.to(torch.complex64), "training_step returned a complex loss (torch.complex64).",
            "a real number.", "return loss.abs()",
        ),
        (
            lambda loss: {"loss": loss, "weight": "3"}, "training_step returned a dict whose 'weight' is '3' (str).",
            WEIGHT, WEIGHTED,
        ),
        (
            lambda loss: {"loss": loss, "weight": None},
            "training_step returned a dict whose 'weight' is None (NoneType).", WEIGHT, WEIGHTED,
        ),
        (
            lambda loss: {"loss": loss, "weight": -1}, "training_step returned a dict whose 'weight' is -1 (int).",
            WEIGHT, WEIGHTED,
        ),
        (
            lambda loss: {"loss": loss, "weight": math.nan},
            "training_step returned a dict whose 'weight' is nan (float).", WEIGHT, WEIGHTED,
        ),
        (
            lambda loss: {"loss": loss, "weight": torch.ones(2)},
            "training_step returned a dict whose 'weight' is a tensor of shape (2,).", WEIGHT, WEIGHTED,
        ),
    ],
)  # fmt: skip
def test_a_loss(change, what, expected, fix):
    module = returning(change)
    with refused(WRONG, what, expected, fix):
        trainer().fit(module, loader())
    assert module.steps == 1


@pytest.mark.parametrize("weight", [2, 2.5, True, np.int64(3), torch.tensor(2), torch.tensor([2.0])])
def test_a_weight_that_is_one(weight):
    module = returning(lambda loss: {"loss": loss, "weight": weight})
    trainer().fit(module, loader())
    assert module.steps == 4


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        ("loss", "weight", "a weighted loss after a plain one"),
        ("weight", "loss", "a plain loss after a weighted one"),
    ],
)
def test_weights_for_a_part_of_a_window(first, second, what):
    order = iter([first, second])

    def change(loss):
        return loss if next(order) == "loss" else {"loss": loss, "weight": 2}

    module = returning(change)
    with refused(
        WRONG,
        f"training_step returned {what} within one accumulation window.",
        "every batch of a window with a weight, or none.",
        "return {'loss': sum, 'weight': n} from every step.",
    ):
        trainer(accumulate_grad_batches=2).fit(module, loader())
    assert module.steps == 2


def test_everything_frozen():
    module = Net().requires_grad_(False)
    with refused(*NO_GRADIENT):
        trainer().fit(module, loader())
    assert module.steps == 1


@pytest.mark.parametrize(
    ("change", "what", "expected", "fix"),
    [
        (
            lambda loss: loss.detach(), "manual_backward got a loss without a gradient (requires_grad is False).",
            GRADIENT, LOOK,
        ),
        (
            lambda loss: 1.0, "manual_backward got 1.0 (float).", "a tensor with one element and a gradient.",
            "pass the loss itself, without .item() or float().",
        ),
    ],
)  # fmt: skip
def test_backward_by_hand(change, what, expected, fix):
    def step(self, batch, batch_idx):
        self.manual_backward(change(self.loss(batch)))

    module = with_methods(training_step=step, automatic_optimization=False)
    refuses_fit(module, error=(WRONG, what, expected, fix))


class TestNothingIsTrained:
    """Steps that change nothing cause one warning, after the first epoch."""

    def test_a_forgotten_return(self):
        text = (
            "No optimizer stepped in epoch 0 (4 batches): Given.training_step returned None for every batch, which "
            "skips it.\n  Expected: an optimizer step in every epoch.\n  Fix: write `return loss` at its end."
        )
        with pytest.warns(PossibleUserWarning) as caught:
            trainer(max_epochs=3).fit(returning(lambda loss: None), loader())
        assert [str(one.message) for one in caught] == [text]

    def test_a_forgotten_step(self):
        def step(self, batch, batch_idx):
            self.manual_backward(self.loss(batch))

        text = "No optimizer stepped in epoch 0 (4 batches): Given.training_step never called self.optimizers().step()."
        with pytest.warns(PossibleUserWarning, match=re.escape(text)):
            trainer().fit(with_methods(training_step=step, automatic_optimization=False), loader())

    def test_one_step_is_enough(self):
        some = iter([False, True, False, False])
        trainer().fit(returning(lambda loss: loss if next(some) else None), loader())

    NEVER = "{}. Only max_steps=10 ends this run, so it would never end."
    STEP = "an optimizer step in every epoch, or another kind of limit."

    def test_a_run_that_only_steps_could_end(self):
        what = "No optimizer stepped in epoch 1 (4 batches): Given.training_step returned no loss for any batch, which "
        some = iter([False, True, False, False])
        with refused(
            WRONG, self.NEVER.format(what + "skips it"), self.STEP, "return the loss, or Trainer(max_epochs=…)."
        ):
            trainer(max_epochs=-1, max_steps=10).fit(
                returning(lambda loss: loss if next(some, None) else None), loader()
            )

    def test_a_run_without_optimizers_that_only_steps_could_end(self):
        what = "No optimizer stepped in epoch 0 (4 batches): Given.configure_optimizers returned no optimizer"
        with (
            refused(WRONG, self.NEVER.format(what), self.STEP, "return an optimizer, or Trainer(max_epochs=…)."),
            pytest.warns(UserWarning, match="nothing will be trained"),
        ):
            trainer(max_epochs=-1, max_steps=10).fit(with_methods(configure_optimizers=lambda self: None), loader())

    def test_a_run_that_something_else_may_end(self):
        module = returning(lambda loss: None)
        stops = EarlyStopping("none", check_on_train_epoch_end=True, strict=False, patience=2)
        stops.on_train_epoch_end = lambda trainer, module: setattr(trainer, "should_stop", trainer.current_epoch == 3)
        with pytest.warns(PossibleUserWarning, match="No optimizer stepped in epoch 0"):
            trainer(max_epochs=-1, max_steps=10, callbacks=[stops]).fit(module, loader())
        assert module.steps == 16

    def test_epochs_that_are_skipped_are_not_epochs_without_a_step(self):
        def skip(self, batch, batch_idx):
            return -1 if self.current_epoch < 2 else None

        module = with_methods(on_train_batch_start=skip)
        trainer(max_epochs=-1, max_steps=10).fit(module, loader())
        assert module.steps == 10


def test_a_loss_that_is_nan():
    text = (
        "the loss is nan at epoch 0, batch 0, step 1 (seen when logging). Training continues. To find where it began, "
        "use callbacks.TerminateOnNaN(), or Trainer(detect_anomaly=True)."
    )
    module = returning(lambda loss: loss * math.nan)
    with pytest.warns(UserWarning) as caught:  # noqa: PT030  its text is compared below
        trainer(log_every_n_steps=1).fit(module, loader())
    assert [str(one.message) for one in caught] == [text]
    assert module.steps == 4


class TestALossThatIsNanAndLoggedNowhere:
    WHAT = (
        r"The weights of \w+ are no longer finite in epoch 0, step 4 \(seen at the end of the epoch\), as "
        r"after a loss that is NaN\. Training continues\. To find where it began, use callbacks\.TerminateOnNaN\(\)"
    )

    @pytest.mark.parametrize("log_every_n_steps", [0, 50])
    def test_is_said_once_at_the_end_of_the_epoch(self, log_every_n_steps):
        module = returning(lambda loss: loss * math.nan)
        with pytest.warns(UserWarning, match=self.WHAT) as caught:
            trainer(max_epochs=3, log_every_n_steps=log_every_n_steps).fit(module, loader())
        assert len(caught) == 1
        assert module.steps == 12

    def test_in_manual_optimization_as_well(self):
        def step(self, batch, batch_idx):
            self.manual_backward(self.loss(batch) * math.inf)
            self.optimizers().step()

        with pytest.warns(UserWarning, match=self.WHAT):
            trainer().fit(with_methods(training_step=step, automatic_optimization=False), loader())

    def test_infinite_weights_that_are_not_trained_are_somebodys_wish(self):
        module = Net()
        module.mask = torch.nn.Parameter(torch.tensor([0.0, -math.inf]), requires_grad=False)
        module.none = torch.nn.Parameter(torch.empty(0))
        trainer().fit(module, loader())

    def test_large_weights_of_half_precision_are_finite(self):
        module = Net()
        module.large = torch.nn.Parameter(torch.full((4,), 6e4, dtype=torch.float16))
        trainer().fit(module, loader())
