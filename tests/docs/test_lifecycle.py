"""The trees of docs/lifecycle.md, compared with recorded runs."""

from __future__ import annotations

import contextlib
import pathlib
import re
import signal

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from lightlib import DataModule, Module
from lightlib.callbacks import ModelCheckpoint
from lightlib.callbacks.callback import Callback
from tests.runs.modules import LogsLoss, Manual
from tests.runs.plain import Net, batches, by_closure, quiet_trainer, raising, same_weights, subclass, with_methods
from tests.runs.recorder import CALLBACK, TRANSFER, Evaluates, Recorder

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "lifecycle.md"
TREES = {
    block.splitlines()[0]: block.splitlines()[1:]
    for block in re.findall(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
}
CALL = re.compile(r"[│├└─ ]*((?:[DCM] )+[a-z_]+(?:\([a-z]+\))?)(?:  |$)")
OTHER_TREE = re.compile(r"[│├└─ ]*→ (\w+)$")


def tree(name, sanity=False):
    """The calls of a tree, other trees put in where an arrow names them."""
    calls = []
    for line in TREES[name]:
        call, other = CALL.match(line), OTHER_TREE.match(line)
        if other:
            calls += tree(other[1], sanity=bool(calls) and calls[-1] == "C on_sanity_check_start")
        elif call and not (sanity and "not in the sanity check" in line):
            calls.append(call[1])
    return calls


class Stateful(Callback):
    def state_dict(self):
        return {"calls": 1}


class Logs(LogsLoss, Evaluates):
    def validation_step(self, batch, batch_idx):
        self.log("val", 1.0)

    def test_step(self, batch, batch_idx):
        self.log("test", 1.0)


def schedules(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    return [optimizer], [{"scheduler": StepLR(optimizer, 1), "interval": "step"}, StepLR(optimizer, 1)]


def record(verb="fit", base=Logs, batches=1, ignored=(), configure=schedules, ckpt_path=None, **arguments):
    """The calls of a run with one callback, a module and a data module."""
    recorder = Recorder(ignored)
    callback = recorder.subclass(Stateful, "C", CALLBACK)()
    trainer = quiet_trainer(
        callbacks=[callback, ModelCheckpoint("saved")], enable_checkpointing=None, log_every_n_steps=1, **arguments
    )
    module, data = recorder.module(base, configure), recorder.datamodule(batches)
    with contextlib.suppress(ZeroDivisionError, SystemExit):
        getattr(trainer, verb)(module, datamodule=data, ckpt_path=ckpt_path)
    return recorder.lines()


def test_fit():
    assert record(num_sanity_val_steps=1) == tree("fit")


def test_validate():
    assert record("validate") == tree("validate")


def test_test_is_as_validate():
    expected = [call.replace("validat", "test").replace("testion", "test") for call in tree("validate")]
    assert record("test") == [call.replace("(teste)", "(test)").replace("val_", "test_") for call in expected]


def test_predict():
    assert record("predict") == tree("predict")


def test_resume():
    record(max_epochs=1)
    calls = record(max_epochs=2, ckpt_path="saved/epoch=0-step=1.ckpt")
    assert calls[: calls.index("C M on_train_start") + 1] == tree("resume")


def test_a_resume_within_an_epoch_leaves_on_train_epoch_start_out():
    record(batches=2, configure=None, max_steps=1)
    calls = record(batches=2, configure=None, max_epochs=1, ckpt_path="saved/epoch=0-step=1.ckpt")
    assert "C M on_train_epoch_start" not in calls
    assert calls.count("M training_step") == 1


def test_an_epoch_that_is_cut_has_no_on_fit_epoch_end():
    calls = record(batches=2, configure=None, max_steps=1)
    assert "C M on_train_epoch_end" in calls
    assert "C M on_fit_epoch_end" not in calls


def batch_part(calls, first="C M on_train_batch_start", last="C M on_accumulation_end"):
    return calls[calls.index(first) : calls.index(last) + 1]


def test_a_window():
    calls = record(
        base=Net, batches=2, ignored=TRANSFER, configure=None, accumulate_grad_batches=2, limit_val_batches=0
    )
    assert batch_part(calls) == tree("window")


def test_a_window_inside_of_optimizer_step():
    base = subclass(optimizer_step=by_closure)
    calls = record(
        base=base, batches=2, ignored=TRANSFER, configure=None, accumulate_grad_batches=2, limit_val_batches=0
    )
    assert batch_part(calls) == tree("window")


def test_manual_optimization():
    calls = record(base=Manual, limit_val_batches=0)
    assert batch_part(calls) == tree("manual")
    assert "M lr_scheduler_step" not in calls


def test_an_exception():
    calls = record(base=subclass(training_step=raising(ZeroDivisionError)), limit_val_batches=0)
    assert calls[calls.index("M training_step") :] == tree("exception")


def test_a_signal_saves_and_then_goes_the_way_of_an_exception():
    def training_step(self, batch, batch_idx):
        signal.raise_signal(signal.SIGTERM)
        return Net.training_step(self, batch, batch_idx)

    calls = record(base=subclass(Net, training_step), batches=3, limit_val_batches=0)
    assert calls.count("M training_step") == 1
    assert calls[calls.index("C D state_dict") :] == [
        *tree("save"),
        *tree("exception")[1:],
    ]


def test_a_signal_within_a_validation_waits_for_the_end_of_an_accumulation_window():
    def validation_step(self, batch, batch_idx):
        if self.armed and self.trainer.progress.batch == 3:
            signal.raise_signal(signal.SIGTERM)

    def fit(armed, **arguments):
        module = with_methods(Logs, validation_step, armed=True)
        module.armed = armed
        trainer = quiet_trainer(
            callbacks=[ModelCheckpoint("saved")],
            enable_checkpointing=None,
            accumulate_grad_batches=2,
            val_check_interval=1,
        )
        trainer.fit(module, batches(8), batches(3), **arguments)
        return module

    uninterrupted = fit(armed=False)
    with pytest.raises(SystemExit):
        fit(armed=True)
    assert same_weights(fit(armed=False, ckpt_path="saved/interrupted.ckpt"), uninterrupted)


def test_the_page_names_hooks_that_exist():
    for hook in {call.split()[-1].split("(")[0] for name in TREES for call in tree(name)}:
        assert any(hasattr(owner, hook) for owner in (Callback, Module, DataModule)), hook
