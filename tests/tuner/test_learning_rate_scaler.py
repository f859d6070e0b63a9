"""Learning rates scaled to the batch size, compared with larger rates; a resume scales once."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LambdaLR, OneCycleLR, SequentialLR, StepLR

from lightlib.callbacks import Callback, LearningRateScaler
from lightlib.cli import LightningCLI
from lightlib.core.module.datamodule import DataModule
from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.optim import Scaling
from lightlib.schedulers import CosineAnnealingWarmupLR
from tests.runs.plain import Net, Unsized, batches, loader, quiet_trainer, same_weights


def test_the_numbers_of_detectron2():
    scaling = Scaling.of_processes(16, reference=8)
    assert (scaling.batch_size(16), scaling.lr(0.1), scaling.steps(5000), scaling.steps(1000)) == (32, 0.2, 2500, 500)
    assert scaling.steps((4000, 4500)) == [2000, 2250]
    back = Scaling.of_processes(8, reference=16)
    assert (back.batch_size(32), back.lr(0.2), back.steps(2500)) == (16, 0.1, 5000)


def test_rules():
    assert Scaling.of_batch(64, base=16).factor == 4
    assert Scaling.of_batch(64, base=16, rule="sqrt").factor == 2
    assert Scaling.of_batch(1, base=16).batch_size(4) == 1
    assert Scaling.of_batch(1000, base=1).steps(10) == 1


SCHEDULES = {
    "none": None,
    "cosine": partial(CosineAnnealingLR, T_max=8),
    "step": partial(StepLR, step_size=2, gamma=0.5),
    "lambda": partial(LambdaLR, lr_lambda=lambda step: 0.9**step),
    "warm-up": partial(CosineAnnealingWarmupLR, total_steps=8, warmup_steps=3),
    "sequence": lambda o: SequentialLR(o, [ConstantLR(o, 0.5, 2), StepLR(o, 2, 0.5)], milestones=[3]),
    "one cycle": None,
}


def configured(lr, name):
    def configure(parameters):
        optimizer = torch.optim.SGD([{"params": list(parameters), "lr": lr}], lr=1.0, momentum=0.9)
        if name == "one cycle":
            schedule = OneCycleLR(optimizer, max_lr=lr, total_steps=8)
        elif SCHEDULES[name] is None:
            return optimizer
        else:
            schedule = SCHEDULES[name](optimizer)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    return configure


class Rates(Callback):
    not_in_checkpoint = ("rates", "folder")

    def __init__(self, folder=None):
        self.rates, self.folder = [], folder

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])
        if self.folder is not None:
            trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt")


def fit(lr, name, *callbacks, folder=None, ckpt_path=None, **arguments):
    module, rates = Net(configured(lr, name)), Rates(folder)
    trainer = quiet_trainer(max_epochs=2, limit_val_batches=0, callbacks=[*callbacks, rates], **arguments)
    trainer.fit(module, loader(16, 4), ckpt_path=ckpt_path)
    return module, rates.rates


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_run_equals_one_with_larger_rates_and_resumes(tmp_path, name):
    expected, rates = fit(0.4, name)
    module, scaled = fit(0.1, name, LearningRateScaler(1), folder=tmp_path)
    assert scaled == rates
    assert same_weights(module, expected)
    for step in (1, 4, 6):
        module, rest = fit(0.1, name, LearningRateScaler(1), ckpt_path=tmp_path / f"{step}.ckpt")
        assert rest == rates[step:]
        assert same_weights(module, expected)


def test_accumulated_batches_count():
    _, rates = fit(0.1, "none", LearningRateScaler(2), accumulate_grad_batches=2)
    assert rates == [0.4] * 8
    _, rates = fit(0.1, "none", LearningRateScaler(1, "sqrt"))
    assert rates == [0.2] * 8


def test_a_resume_with_another_batch_size_warns_and_keeps_the_rates(tmp_path):
    fit(0.1, "none", LearningRateScaler(1), folder=tmp_path)
    with pytest.warns(UserWarning, match="the learning rates were scaled by 4 .* a batch size of 4 would be 2"):
        _, rates = fit(0.1, "none", LearningRateScaler(2), ckpt_path=tmp_path / "4.ckpt")
    assert rates == [0.4] * 4


def test_weights_alone_are_loaded_into_a_run_that_scales(tmp_path):
    fit(0.1, "none", LearningRateScaler(1), folder=tmp_path)
    module, rates = Net(configured(0.1, "none")), Rates()
    trainer = quiet_trainer(max_epochs=1, limit_val_batches=0, callbacks=[LearningRateScaler(1), rates])
    trainer.fit(module, loader(16, 4), ckpt_path=tmp_path / "4.ckpt", resume="weights")
    assert rates.rates == [0.4] * 4


class Numbers(DataModule):
    def train_dataloader(self):
        return loader(8, 4)


def test_in_yaml(tmp_path, monkeypatch):
    path = tmp_path / "config.yaml"
    path.write_text(
        "trainer:\n  max_epochs: 1\n  logger: false\n  enable_checkpointing: false\n  enable_progress_bar: false\n"
        "  limit_val_batches: 0\n  callbacks:\n    - class_path: LearningRateScaler\n      init_args:\n"
        "        base_batch_size: 2\n        rule: linear\n"
    )
    monkeypatch.setattr("sys.argv", ["main.py", "fit", "--config", str(path)])
    cli = LightningCLI(Net, Numbers)
    assert cli.trainer.optimizers[0].param_groups[0]["lr"] == 0.2


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: LearningRateScaler(0), MisconfigurationException, r"LearningRateScaler\(base_batch_size=0"),
        (lambda: LearningRateScaler("16"), ArgumentTypeError, r"base_batch_size='16'"),
        (lambda: LearningRateScaler(16, "log"), UnknownNameError, r"rule of LearningRateScaler 'log'"),
        (lambda: Scaling(-1.0), MisconfigurationException, r"Scaling\(ratio=-1.0"),
        (lambda: Scaling.of_batch(8, base=0), MisconfigurationException, r"Scaling.of_batch\(base=0"),
        (lambda: Scaling.of_processes(None, 8), ArgumentTypeError, r"processes=None"),
    ],
)
def test_errors(make, kind, text):
    with pytest.raises(kind, match=text):
        make()


def test_data_without_a_batch_size():
    with pytest.raises(MisconfigurationException, match="the training data have no known batch size"):
        quiet_trainer(limit_val_batches=0, max_epochs=1, callbacks=[LearningRateScaler(2)]).fit(
            Net(), Unsized(batches(2))
        )
