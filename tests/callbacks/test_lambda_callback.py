"""LambdaCallback: hooks given as functions."""

from __future__ import annotations

from collections import Counter

import pytest

from lightlib.callbacks import Callback, LambdaCallback, ModelCheckpoint
from lightlib.core.module.overrides import overrides
from lightlib.core.run.hooks import HOOKS
from lightlib.core.trainer import Trainer
from lightlib.errors import ArgumentTypeError
from tests.runs.modules import LogsLoss
from tests.runs.plain import QUIET, Rows, batches, raising, with_methods
from tests.runs.steps import Steps

STAGES = ("validation", "test", "predict")
MOMENTS = ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
# How often each hook is called in the runs below: a fit of 2 epochs with 4 batches, of which 2 make a step, with a
# sanity check of 1 batch, and a validation of 3 batches in each epoch; a test of 2 batches; a prediction of 1; a
# resumed fit of one more epoch; a fit that fails.
CALLS = {
    **{f"on_{stage}_{moment}": 1 for stage in STAGES for moment in MOMENTS},
    **{f"on_validation_{moment}": 4 for moment in MOMENTS},  # with the sanity check, and in the resumed fit
    "on_validation_batch_start": 1 + 3 * 3, "on_validation_batch_end": 1 + 3 * 3,
    "on_test_batch_start": 2, "on_test_batch_end": 2,
    "setup": 5, "teardown": 5, "on_fit_start": 3, "on_fit_end": 2,
    "on_sanity_check_start": 1, "on_sanity_check_end": 1,
    "on_train_start": 3, "on_train_end": 2, "on_train_epoch_start": 4, "on_train_epoch_end": 3, "on_fit_epoch_end": 3,
    "on_train_batch_start": 4 * 3 + 1, "on_train_batch_end": 4 * 3,
    "on_before_backward": 4 * 3, "on_after_backward": 4 * 3,
    "on_before_zero_grad": 2 * 3 + 1, "on_before_optimizer_step": 2 * 3, "on_accumulation_end": 2 * 3,
    "on_substep_end": 2 * 3,
    "on_log": 2 * 3 + 3 + 1,  # a row of each step, of each validation, and of the test
    "on_save_checkpoint": 3, "on_checkpoint_written": 3, "on_checkpoint_uploaded": 3, "state_dict": 3,
    "on_load_checkpoint": 1, "load_state_dict": 1,
    "on_exception": 1,
}  # fmt: skip


class Logs(LogsLoss, Steps):
    pass


def test_every_hook_is_called_in_runs():
    calls = Counter()
    given = {}

    def noted(name):
        def note(*arguments):
            calls[name] += 1
            given[name] = arguments
            return {"a": 1} if name == "state_dict" else None

        return note

    def trainer(**options):
        callback = LambdaCallback(**{name: noted(name) for name in [*HOOKS, "state_dict", "load_state_dict"]})
        saves = ModelCheckpoint("memory://every-hook", filename="{epoch}", save_top_k=-1)
        return Trainer(
            **{**QUIET, "enable_checkpointing": True, "num_sanity_val_steps": 1, "logger": Rows()},
            accumulate_grad_batches=2, log_every_n_steps=1, callbacks=[callback, saves], **options,
        )  # fmt: skip

    module, train, validate = Logs(), batches(4), batches(3)
    first = trainer(max_epochs=2)
    first.fit(module, train, validate)
    first.test(module, batches(2))
    first.predict(module, batches(1))
    trainer(max_epochs=3).fit(Logs(), train, validate, ckpt_path="memory://every-hook/epoch=1.ckpt")
    fails = with_methods(Steps, training_step=raising(RuntimeError("on purpose")))
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer(max_epochs=1, limit_val_batches=0).fit(fails, train)
    assert calls == CALLS
    assert set(calls) == {*HOOKS, "state_dict", "load_state_dict"}
    for name, arguments in given.items():
        if name not in ("state_dict", "load_state_dict"):
            assert isinstance(arguments[0], Trainer), name
            assert isinstance(arguments[1], Steps), name
    assert given["load_state_dict"] == ({"a": 1},)
    assert str(given["on_exception"][2]) == "on purpose"


@pytest.mark.parametrize("name", [*HOOKS, "state_dict", "load_state_dict"])
def test_every_hook(name):
    got = []
    callback = LambdaCallback(**{name: lambda *arguments: got.append(arguments)})
    getattr(callback, name)("trainer", "module")
    assert got == [("trainer", "module")]
    assert overrides(callback, Callback, name)


def test_the_others_are_not_defined():
    callback = LambdaCallback(on_fit_start=lambda trainer, pl_module: None)
    assert [name for name in HOOKS if overrides(callback, Callback, name)] == ["on_fit_start"]


def test_unknown_name():
    with pytest.raises(ArgumentTypeError, match=r"no hook has this name. Did you mean 'on_train_start'") as caught:
        LambdaCallback(on_trian_start=print)
    assert isinstance(caught.value, TypeError)


def test_not_callable():
    with pytest.raises(ArgumentTypeError, match=r"LambdaCallback\(on_fit_start=3 \(int\)\)"):
        LambdaCallback(on_fit_start=3)
