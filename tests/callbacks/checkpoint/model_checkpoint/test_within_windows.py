"""Validations within an accumulation window: the weights that were validated are saved."""

from __future__ import annotations

import pytest
import torch

from lightlib.callbacks import ModelCheckpoint
from tests.runs.modules import Validated
from tests.runs.plain import batches, momentum, quiet_trainer, same_weights

DATA = batches(12)


def trainer_of(folder, *, every, callbacks=(), **arguments):
    saver = ModelCheckpoint(
        folder, filename="{step}", monitor="val_loss", mode="max", save_top_k=-1, enable_version_counter=False
    )
    return saver, quiet_trainer(
        accumulate_grad_batches=3,
        val_check_interval=every,
        callbacks=[saver, *callbacks],
        enable_checkpointing=True,
        **{"max_epochs": 2, **arguments},
    )


@pytest.mark.parametrize("every", [1, 2, 4])
def test_the_score_is_that_of_the_saved_weights(tmp_path, every):
    saver, trainer = trainer_of(tmp_path, every=every)
    trainer.fit(Validated(momentum), DATA, DATA)
    assert (
        sorted(torch.load(path)["global_step"] for path in saver.best_k_models)
        == {
            1: [1, 2, 3, 4, 5, 6, 7, 8],
            2: [1, 2, 3, 4, 5, 6, 7, 8],
            4: [1, 2, 4, 5, 6, 8],
        }[every]
    )
    for path, score in saver.best_k_models.items():
        (metrics,) = quiet_trainer().validate(Validated(momentum), DATA, ckpt_path=path, verbose=False)
        assert metrics["val_loss"] == pytest.approx(float(score), abs=1e-7)


def test_a_run_that_is_resumed_there_is_the_same(tmp_path):
    saver, trainer = trainer_of(tmp_path / "whole", every=4)
    whole = Validated(momentum)
    trainer.fit(whole, DATA, DATA)
    for path in list(saver.best_k_models):
        resumed = Validated(momentum)
        again, trainer = trainer_of(tmp_path / "resumed", every=4)
        trainer.fit(resumed, DATA, DATA, ckpt_path=path)
        assert same_weights(resumed, whole)
        scores = [set(map(float, each.best_k_models.values())) for each in (again, saver)]
        assert scores[0] <= scores[1]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_save_by_steps_is_not_lost_to_the_last_file_of_a_validation(tmp_path, accumulate):
    """Both are due at one step; the files are those of Lightning 2.6.6."""
    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2, save_last=True, save_top_k=-1)
    arguments = {"max_epochs": 1, "accumulate_grad_batches": accumulate, "val_check_interval": 2 * accumulate}
    trainer = quiet_trainer(callbacks=[saver], enable_checkpointing=True, **arguments)
    trainer.fit(Validated(momentum), DATA, DATA)
    steps = range(2, 12 // accumulate + 1, 2)
    assert {path.name for path in tmp_path.iterdir()} == {"last.ckpt", *(f"step={step}.ckpt" for step in steps)}
