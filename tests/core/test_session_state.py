"""Copies of a Trainer, by pickle and deepcopy: before, during and after a run, and their abilities."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from lightlib.callbacks import EarlyStopping, ModelCheckpoint
from lightlib.core.trainer import Trainer
from lightlib.errors import MisconfigurationException
from tests.runs.bad_input import refused
from tests.runs.modules import LogsLoss
from tests.runs.plain import QUIET, batches, quiet_trainer, same_weights
from tests.runs.steps import Data, Steps, on


class Plain(LogsLoss, Steps):
    """Logs its loss in every way."""

    def __init__(self):
        super().__init__(on_step=True, on_epoch=True, prog_bar=True)


def pickled(trainer):
    return pickle.loads(pickle.dumps(trainer))


COPIES = pytest.mark.parametrize("copied", [pickled, copy.deepcopy])


@COPIES
def test_before_any_run(copied):
    trainer = copied(quiet_trainer(max_epochs=2, accumulate_grad_batches=2, callbacks=[EarlyStopping("x")]))
    assert (trainer.max_epochs, trainer.accumulate_grad_batches, trainer.model) == (2, 2, None)
    trainer.fit(Plain(), batches(4), batches(1))
    assert trainer.global_step == 4


@COPIES
def test_after_a_fit_it_is_where_the_other_is_and_goes_on_alike(copied):
    trainer, module, data = quiet_trainer(max_epochs=1), Plain(), Data()
    trainer.fit(module, datamodule=data)
    twin = copied(trainer)
    assert (twin.current_epoch, twin.global_step, str(twin.state.status)) == (1, 2, "finished")
    assert twin.callback_metrics == trainer.callback_metrics
    assert twin.callback_metrics.keys() >= {"loss", "loss_epoch", "x"}
    assert twin.progress_bar_metrics == trainer.progress_bar_metrics
    assert twin.model is not module
    assert twin.model.trainer is twin
    assert isinstance(twin.datamodule, Data)
    assert (twin.optimizers, twin.lr_scheduler_configs, twin.num_val_batches) == ([], [], [])
    for one in (trainer, twin):
        one.max_epochs = 2
        one.fit(one.model, datamodule=one.datamodule)
    assert twin.global_step == 4
    assert same_weights(twin.model, module)
    assert twin.test(verbose=False) == trainer.test(verbose=False)


@COPIES
def test_after_other_verbs(copied):
    trainer = quiet_trainer()
    trainer.test(Plain(), batches(2), verbose=False)
    assert copied(trainer).callback_metrics == trainer.callback_metrics
    trainer.predict(trainer.model, batches(2))
    assert same_weights(copied(trainer).model, trainer.model)


def test_within_a_run():
    twins = []
    trainer = quiet_trainer(limit_val_batches=0)
    trainer.callbacks.append(on(on_train_start=lambda trainer, module: twins.append(copy.deepcopy(trainer))))
    trainer.fit(Plain(), batches(2))
    assert twins[0].global_step == 0
    twins[0].callbacks.clear()
    twins[0].fit(twins[0].model, batches(2))
    assert same_weights(twins[0].model, trainer.model)


def test_with_everything_that_a_trainer_has_by_default(tmp_path):
    trainer = Trainer(max_epochs=1, accelerator="cpu", default_root_dir=tmp_path, callbacks=[ModelCheckpoint(tmp_path)])
    trainer.fit(Plain(), batches(2), batches(1))
    twin = pickled(trainer)
    assert twin.checkpoint_callback.best_model_path == trainer.checkpoint_callback.best_model_path
    file = io.BytesIO()
    torch.save(trainer.model, file)
    file.seek(0)
    assert same_weights(torch.load(file, weights_only=False), trainer.model)


def test_a_trainer_can_be_printed():
    trainer = Trainer(**QUIET, max_epochs=1, limit_val_batches=0)
    cpu = trainer.accelerator.describe(torch.device("cpu"))
    assert repr(trainer) == f"<Trainer: 1 × {cpu}, 32-true, single_device; not run yet>"  # noqa: RUF001  a multiplication sign is meant
    trainer.fit(Plain(), batches(2))
    assert repr(trainer).endswith("; fit finished, epoch 1, step 2>")


@COPIES
def test_one_whose_processes_have_met_refuses(copied):
    trainer = quiet_trainer(strategy="ddp", devices=1)
    assert copied(trainer).strategy.describe() == trainer.strategy.describe()
    trainer.strategy._mesh = object()
    with refused(
        MisconfigurationException,
        f"A Trainer with the strategy {trainer.strategy.describe()} cannot be copied or pickled: its processes have "
        "met.",
        "a Trainer that has not run, or one with one device.",
        "copy the module, or trainer.save_checkpoint('run.ckpt') and a new Trainer.",
    ):
        copied(trainer)
