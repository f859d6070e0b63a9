"""trainer.run_config: the resolved numbers of a run, on one process; two are in tests/distributed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from lightlib.callbacks import RunConfigRecord
from lightlib.errors import MisconfigurationException
from lightlib.loggers import CSVLogger
from tests.runs.plain import Net, Unsized, batches, loader, quiet_trainer

LOADER = {
    "num_workers": 0,
    "pin_memory": False,
    "drop_last": False,
    "timeout": 0,
    "prefetch_factor": None,
    "persistent_workers": False,
    "collate_fn": "default_collate",
}


class Validated(Net):
    def validation_step(self, batch, batch_idx):
        pass


def test_every_field_on_one_process():
    trainer = quiet_trainer(max_epochs=2, accumulate_grad_batches=3, gradient_clip_val=0.5, precision="bf16-mixed")
    trainer.fit(Validated(), loader(40, size=4, shuffle=True), loader(10, size=5, drop_last=True))
    assert trainer.run_config.to_dict() == {
        "num_epochs": 2,
        "train_per_device_batch_size": 4,
        "train_dl_kwargs": {"batch_size": 4, "shuffle": True, **LOADER},
        "eval_per_device_batch_size": 5,
        "eval_dl_kwargs": {"batch_size": 5, "shuffle": False, **LOADER, "drop_last": True},
        "gradient_accumulation_steps": 3,
        "train_total_batch_size": 12,
        "eval_total_batch_size": 5,
        "num_update_steps_per_epoch": 4,
        "max_num_train_steps": None,
        "is_local_process_zero": True,
        "is_world_process_zero": True,
        "is_distributed": False,
        "mixed_precision": "bf16-mixed",
        "gradient_clip_value": 0.5,
        "num_processes": 1,
    }
    assert json.loads(json.dumps(trainer.run_config.to_dict())) == trainer.run_config.to_dict()


def test_limits_and_other_loaders():
    trainer = quiet_trainer(max_epochs=-1, max_steps=5)
    trainer.fit(Net(), batches(3))
    config = trainer.run_config
    assert (config.num_epochs, config.max_num_train_steps, config.num_update_steps_per_epoch) == (2, 5, 3)
    assert (config.train_per_device_batch_size, config.train_total_batch_size, config.train_dl_kwargs) == (None,) * 3
    assert (config.eval_per_device_batch_size, config.eval_dl_kwargs) == (None, None)
    trainer = quiet_trainer(max_epochs=-1, max_steps=2)
    trainer.fit(Net(), Unsized(batches(3)))
    assert (trainer.run_config.num_epochs, trainer.run_config.num_update_steps_per_epoch) == (None, None)


def test_the_global_batch_size():
    trainer = quiet_trainer(global_batch_size=8)
    trainer.fit(Net(), loader(40, size=4))
    assert trainer.run_config.gradient_accumulation_steps == 2
    assert trainer.run_config.train_total_batch_size == 8


def test_an_evaluation_alone():
    trainer = quiet_trainer()
    trainer.validate(Validated(), loader(10, size=5), verbose=False)
    config = trainer.run_config
    assert (config.num_epochs, config.train_per_device_batch_size, config.eval_total_batch_size) == (None, None, 5)


def test_it_is_frozen_and_needs_a_run():
    trainer = quiet_trainer()
    with pytest.raises(MisconfigurationException, match=r"trainer\.run_config was read before a run"):
        trainer.run_config  # noqa: B018  the property raises
    trainer.fit(Net(), loader(8))
    with pytest.raises(dataclasses.FrozenInstanceError):
        trainer.run_config.num_epochs = 3


def test_it_is_logged_once():
    class Counted(CSVLogger):
        def log_hyperparams(self, params=None):
            logged.append(params)
            super().log_hyperparams(params)

    class Remembers(Validated):
        def __init__(self, width=3):
            super().__init__()
            self.save_hyperparameters()

    logged = []
    trainer = quiet_trainer(max_epochs=2, logger=Counted("."), callbacks=[RunConfigRecord()])
    trainer.fit(Remembers(), loader(8), loader(8))
    assert [params for params in logged if "run_config" in params] == [{"run_config": trainer.run_config.to_dict()}]
    saved = yaml.safe_load(Path(trainer.log_dir, "hparams.yaml").read_text())
    assert saved["width"] == 3
    assert saved["run_config"]["train_total_batch_size"] == 4


def test_it_needs_no_logger():
    trainer = quiet_trainer(callbacks=[RunConfigRecord()])
    trainer.fit(Net(), loader(8))
    assert trainer.run_config.num_epochs == 1
