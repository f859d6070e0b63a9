"""With compat, validation loaders that are requested in a later epoch count from the start."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

import lightlib
from lightlib.callbacks import EarlyStopping, ModelCheckpoint
from lightlib.conventions import LIGHTLIB, following
from lightlib.errors import MisconfigurationException
from lightlib_lightning.order import LIGHTNING
from tests.runs.quiet import QUIET

DATA = torch.arange(8.0).reshape(-1, 1)


class Net(lightlib.Module):
    """Logs the metric of a validation; notes whether the fit validates."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.log("loss", self.layer(batch).pow(2).mean())
        return self.layer(batch).pow(2).mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layer(batch).pow(2).mean())

    def on_train_epoch_start(self):
        self.seen.append(self.trainer.enable_validation)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def fitted(*callbacks, **arguments):
    loader = DataLoader(DATA, batch_size=4)
    trainer = lightlib.Trainer(**{
        **QUIET, "max_epochs": 4, "num_sanity_val_steps": 0, "check_val_every_n_epoch": 2,
        "enable_checkpointing": any(isinstance(one, ModelCheckpoint) for one in callbacks),
        "callbacks": list(callbacks), **arguments,
    })  # fmt: skip
    module = Net()
    trainer.fit(module, loader, loader)
    return trainer, module


@pytest.mark.parametrize("conventions", [LIGHTLIB, LIGHTNING])
def test_files_are_saved_after_validations_only(conventions, tmp_path):  # the names are those of Lightning 2.6.6
    with following(conventions):
        fitted(ModelCheckpoint(tmp_path, "{epoch}-{step}", monitor="val_loss", save_top_k=-1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch=1-step=4.ckpt", "epoch=3-step=8.ckpt"]


class Two(Net):
    """Has two validation loaders with names."""

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("val_loss", self.layer(batch).pow(2).mean())

    def val_dataloader(self):
        return {"clean": DataLoader(DATA, batch_size=4), 1: DataLoader(DATA, batch_size=8)}


def test_a_dict_of_loaders_is_numbered_as_a_list():
    with following(LIGHTNING):
        trainer = lightlib.Trainer(**{**QUIET, "max_epochs": 2, "limit_val_batches": {"clean": 1}})
        trainer.fit(Two(), DataLoader(DATA, batch_size=4))
        names = {name for name in trainer.callback_metrics if name != "loss"}
        assert names == {"val_loss/dataloader_idx_0", "val_loss/dataloader_idx_1"}


@pytest.mark.parametrize("monitor", ["val_loss", "loss"])
def test_the_metric_is_compared_after_validations_only(monitor):
    stopper, compared = EarlyStopping(monitor), []
    evaluate = stopper._evaluate_stopping_criteria
    stopper._evaluate_stopping_criteria = lambda current: compared.append(stopper.wait_count) or evaluate(current)
    with following(LIGHTNING):
        fitted(stopper)
    assert len(compared) == 2


def test_a_schedule_of_the_metric_and_the_fit_know_of_the_validation():
    with following(LIGHTNING):
        assert fitted()[1].seen == [True] * 4
        assert fitted(limit_val_batches=0)[1].seen == [False] * 4


def test_a_metric_that_no_validation_logs_is_still_an_error(tmp_path):
    with following(LIGHTNING), pytest.raises(MisconfigurationException, match="this metric was never logged"):
        fitted(ModelCheckpoint(tmp_path, monitor="nothing"))


@pytest.mark.parametrize(("conventions", "interrupted"), [(LIGHTNING, True), (LIGHTLIB, False)])
def test_an_error_interrupts_a_run_with_compat(conventions, interrupted):
    class Fails(lightlib.Callback):
        def on_train_batch_end(self, *_):
            raise ValueError("no more")

    trainer = lightlib.Trainer(**QUIET, max_epochs=1, limit_val_batches=0, callbacks=[Fails()])
    with following(conventions), pytest.raises(ValueError, match="no more"):
        trainer.fit(Net(), DataLoader(DATA, batch_size=4))
    assert trainer.interrupted is interrupted
    assert trainer.state.status == ("interrupted" if interrupted else "failed")
