"""Warnings of choices that a run makes for the user: weights, schedules, loggers, values of a search."""

from __future__ import annotations

import re
import warnings
from functools import partial

import pytest
import torch

import lightlib
from lightlib.callbacks import BaseFinetuning, StochasticWeightAveraging
from lightlib.demos.boring_classes import BoringModel
from lightlib.report import LightlibWarning, PossibleUserWarning
from lightlib.tuner import Tuner
from tests.runs.modules import Manual
from tests.runs.plain import Net, batches, calling, scheduled

QUIET = {"accelerator": "cpu", "devices": 1, "limit_train_batches": 2, "limit_val_batches": 1, "limit_test_batches": 1}
QUIET |= {"limit_predict_batches": 1, "logger": False, "enable_progress_bar": False, "enable_model_summary": False}


STEP_LR = partial(torch.optim.lr_scheduler.StepLR, step_size=1)


def logs(**arguments):
    """A module that logs one value with the given arguments."""
    return calling(BoringModel, training_step=lambda self, batch, batch_idx: self.log("loss", 1.0, **arguments))


@pytest.mark.parametrize("verb", ["test", "validate", "predict"])
def test_the_best_weights_are_taken_without_a_request(verb):
    trainer = lightlib.Trainer(**QUIET, max_epochs=1)
    module = BoringModel()
    trainer.fit(module)
    path = trainer.checkpoint_callback.best_model_path
    saved = module.layer.weight.detach().clone()
    torch.nn.init.zeros_(module.layer.weight)
    with pytest.warns(PossibleUserWarning, match=rf"trainer\.{verb}\(\) got neither .*{re.escape(repr(path))}"):
        getattr(trainer, verb)()
    assert torch.equal(module.layer.weight, saved)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        getattr(trainer, verb)(ckpt_path="best")
        getattr(trainer, verb)(module)


def test_a_value_for_loggers_without_a_logger():
    with pytest.warns(PossibleUserWarning, match=r"self\.log\('loss', …, logger=True\) is called") as found:
        lightlib.Trainer(**QUIET, max_epochs=2).fit(logs(logger=True))
    assert len(found) == 1


@pytest.mark.parametrize("arguments", [{}, {"logger": False}])
def test_no_logger_is_no_mistake_without_a_request(arguments):
    lightlib.Trainer(**QUIET, max_epochs=1).fit(logs(**arguments))


def test_a_value_for_loggers_in_a_search():
    trainer = lightlib.Trainer(**{**QUIET, "logger": True}, max_epochs=1)
    module = logs(logger=True)
    module.batch_size = 2
    Tuner(trainer).scale_batch_size(module, max_trials=1, steps_per_trial=1)


@pytest.mark.parametrize("settings", [{"interval": "step"}, {"frequency": 2}])
def test_averaging_replaces_a_schedule_that_steps_otherwise(settings):
    average = StochasticWeightAveraging(0.1, swa_epoch_start=1)
    with pytest.warns(PossibleUserWarning, match="StochasticWeightAveraging replaces StepLR"):
        lightlib.Trainer(**QUIET, max_epochs=3, callbacks=average).fit(Net(scheduled(STEP_LR, **settings)), batches(2))


def test_averaging_replaces_a_schedule_of_epochs():
    average = StochasticWeightAveraging(0.1, swa_epoch_start=1)
    lightlib.Trainer(**QUIET, max_epochs=3, callbacks=average).fit(Net(scheduled(STEP_LR)), batches(2))


def test_settings_of_a_schedule_in_manual_optimization():
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    module = Manual(scheduled(plateau, monitor="x", strict=False, interval="step"))
    with pytest.warns(PossibleUserWarning, match="ReduceLROnPlateau has 'monitor', 'strict', which nothing reads"):
        lightlib.Trainer(**QUIET, max_epochs=1).fit(module, batches(2))
    module = Manual(scheduled(STEP_LR, interval="step", frequency=1, name="a"))
    lightlib.Trainer(**QUIET, max_epochs=1).fit(module, batches(2))


@pytest.mark.parametrize("freezes", [True, False])
def test_parameters_that_the_optimizer_has_already(freezes):
    class Later(BaseFinetuning):
        def freeze_before_training(self, module):
            if freezes:
                self.freeze(module.other)

        def finetune_function(self, module, epoch, optimizer):
            if epoch == 0:
                self.unfreeze_and_add_param_group(module.other, optimizer)

    module = BoringModel()
    module.other = torch.nn.Linear(2, 2)
    with pytest.warns(LightlibWarning, match="2 parameters to unfreeze are in a group of SGD already"):
        lightlib.Trainer(**QUIET, max_epochs=1, callbacks=Later()).fit(module)


@pytest.mark.parametrize(("attribute", "warns"), [(4, True), (2, False)])
def test_a_batch_size_with_two_values(attribute, warns):
    class Both(BoringModel):
        def __init__(self, batch_size=2):
            super().__init__()
            self.save_hyperparameters()
            self.batch_size = attribute

        def train_dataloader(self):
            return torch.utils.data.DataLoader(torch.randn(8, 32), batch_size=self.batch_size)

    trainer = lightlib.Trainer(**QUIET, max_epochs=1)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        Tuner(trainer).scale_batch_size(Both(), max_trials=1, steps_per_trial=1)
    texts = [str(one.message) for one in found if "`batch_size` has several values: 4, 2," in str(one.message)]
    assert len(texts) == warns
