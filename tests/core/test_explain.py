"""Trainer.explain: a page on a fit, which trains nothing."""

from __future__ import annotations

import pytest
import torch

from lightlib.callbacks import EarlyStopping, ModelCheckpoint
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.loggers import CSVLogger
from tests.runs import plain
from tests.runs.modules import Manual, Validated
from tests.runs.plain import Net, quiet_trainer, same_weights


def scheduled(parameters):
    optimizer = torch.optim.AdamW(parameters, lr=0.1)
    return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


def rows(page):
    """The texts of a page by their names."""
    return {line[:13].strip(): line[13:] for line in page.splitlines() if line[:13].strip()}


def test_the_page_of_a_fit(tmp_path):
    module = Validated(scheduled, net=plain.network())
    trainer = quiet_trainer(
        max_epochs=3, accumulate_grad_batches=3, gradient_clip_val=1.0, num_sanity_val_steps=1, log_every_n_steps=5,
        logger=CSVLogger(tmp_path, "csv", 0), enable_checkpointing=True,
        callbacks=[EarlyStopping("val_loss"), ModelCheckpoint(tmp_path / "files")],
    )  # fmt: skip
    page = trainer.explain(module, plain.loader(40), plain.loader(8))
    found = rows(page)
    device = found.pop("Devices")
    assert device.startswith("1 x cpu")
    assert found == {
        "Module": "Validated: 83 parameters, 83 trained",
        "Strategy": "single_device",
        "Precision": "32-true",
        "Memory": "per process: parameters 332 B, gradients 332 B, optimizer state 664 B; activations come on top",
        "Training": "10 batches of 4 samples per epoch and process; 12 samples per optimizer step (3 batches per step)",
        "Validation": "2 batches, at the end of each epoch",
        "Length": "3 epochs: 12 optimizer steps in all",
        "Optimizer": "AdamW, lr 0.1: 4 tensors in 1 group",
        "Schedule": "StepLR: every epoch = 4 optimizer steps",
        "Clipping": "gradients by norm to 1",
        "Callbacks": "EarlyStopping, ModelCheckpoint",
        "Loggers": f"CSVLogger in {tmp_path / 'csv' / 'version_0'}, every 5 optimizer steps",
        "Checkpoints": f"ModelCheckpoint in {tmp_path / 'files'}",
    }
    assert "before training 1 batch of each loader" in page


def test_nothing_is_trained_and_the_fit_is_the_same():
    explained, plainly = Net(), Net()
    before = {name: tensor.clone() for name, tensor in explained.state_dict().items()}
    trainer = quiet_trainer(max_epochs=2)
    trainer.explain(explained, plain.loader(16))
    assert all(tensor.equal(before[name]) for name, tensor in explained.state_dict().items())
    assert trainer.global_step == 0
    assert "run_training" not in vars(trainer)
    trainer.fit(explained, plain.loader(16))
    quiet_trainer(max_epochs=2).fit(plainly, plain.loader(16))
    assert same_weights(explained, plainly)


def test_a_resumed_fit(tmp_path):
    trainer = quiet_trainer(max_steps=3, max_epochs=-1)
    trainer.fit(Net(), plain.loader(16))
    trainer.save_checkpoint(tmp_path / "3.ckpt")
    page = quiet_trainer(max_steps=9, max_epochs=-1).explain(Net(), plain.loader(16), ckpt_path=tmp_path / "3.ckpt")
    found = rows(page)
    assert found["Begins at"] == "epoch 0, batch 3, optimizer step 3"
    assert found["Resumes from"].endswith("3.ckpt")
    assert found["Length"] == "9 optimizer steps: 9 optimizer steps in all"


@pytest.mark.parametrize(
    ("arguments", "name", "text"),
    [
        ({"max_time": "2h"}, "Length", "7200 s"),
        ({"max_duration": "1e6sp"}, "Length", "1000000sp"),
        ({"val_check_interval": "1e6sp"}, "Validation", "2 batches, every 1000000sp"),
        ({"val_check_interval": "30min"}, "Validation", "2 batches, every 1800 s"),
        ({"val_check_interval": 0.5}, "Validation", "2 batches, every 2 batches of each epoch"),
        ({"val_check_interval": "3ba"}, "Validation", "2 batches, every 3 batches of the run"),
        ({"check_val_every_n_epoch": 2}, "Validation", "2 batches, at the end of every 2 epochs"),
        ({"limit_val_batches": 0}, "Validation", "none"),
    ],
)
def test_lengths_and_intervals(arguments, name, text):
    page = quiet_trainer(
        **{"max_epochs": None if "max_time" in arguments or "max_duration" in arguments else 2, **arguments}
    ).explain(Validated(net=plain.network()), plain.loader(16), plain.loader(8))
    assert rows(page)[name] == text


def test_manual_optimization():
    assert rows(quiet_trainer().explain(Manual(), plain.loader(2)))["Steps"].startswith("by the module")


def test_errors_are_those_of_a_fit():
    with pytest.raises(ArgumentTypeError, match=r"`model` is a torch\.nn\.Module"):
        quiet_trainer().explain(torch.nn.Linear(1, 1), plain.loader(2))
    with pytest.raises(MisconfigurationException, match="spawns its processes"):
        quiet_trainer(devices=2, strategy="ddp_spawn").explain(Net(), plain.loader(2))
