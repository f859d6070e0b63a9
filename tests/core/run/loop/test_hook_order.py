"""The order of calls: literal lists for every way to run, compared with Lightning's order.

A line names the objects that are called one after the other: D the data module, A and B the callbacks, M the module.
The order is that of Lightning 2.6. A comment on the line gives the reason for each difference.
"""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from lightlib.callbacks import LambdaCallback
from lightlib.callbacks.callback import Callback
from tests.runs.modules import LogsLoss, Manual
from tests.runs.plain import Net, batches, by_closure, quiet_trainer, raising, subclass, with_methods
from tests.runs.recorder import TRANSFER, Data, Evaluates, Recorder, lines_of

BEFORE = (*TRANSFER, "prepare_data", "setup", "teardown", "configure_callbacks", "configure_model")
VALIDATION = """
    M on_validation_model_eval
    A B M on_validation_start
    A B M on_validation_epoch_start
    D on_before_batch_transfer
    D transfer_batch_to_device
    D on_after_batch_transfer
    A B M on_validation_batch_start
    M validation_step
    A B M on_validation_batch_end
    A B M on_validation_epoch_end
    A B M on_validation_end
    M on_validation_model_train
"""


class Logs(LogsLoss, Evaluates):
    pass


def two_schedules(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    return [optimizer], [{"scheduler": StepLR(optimizer, 1), "interval": "step"}, StepLR(optimizer, 1)]


def test_fit():
    recorder = Recorder()
    trainer = quiet_trainer(callbacks=recorder.callbacks(), num_sanity_val_steps=1, log_every_n_steps=1)
    trainer.fit(recorder.module(Logs, two_schedules), datamodule=recorder.datamodule())
    assert recorder.lines() == lines_of(f"""
        M configure_callbacks
        D M prepare_data
        D A B M setup(fit)
        M configure_model
        D train_dataloader           # before the optimizers, which may need the number of steps
        D val_dataloader             # called once, also without a sanity check
        M configure_optimizers
        A B M on_fit_start
        A B on_sanity_check_start    # a hook of callbacks alone
        {VALIDATION}
        A B on_sanity_check_end
        A B M on_train_start
        A B M on_train_epoch_start
        D on_before_batch_transfer
        D transfer_batch_to_device
        D on_after_batch_transfer
        A B M on_train_batch_start
        A B M on_before_zero_grad    # before the forward: no old gradients in memory while it runs
        M optimizer_zero_grad
        M training_step
        A B M on_before_backward
        M backward
        A B M on_after_backward
        A B M on_before_optimizer_step
        M configure_gradient_clipping
        M lr_scheduler_step          # the one that steps with the optimizer
        A B M on_train_batch_end
        A B M on_accumulation_end    # ours
        A B M on_log                 # ours
        M on_validation_model_zero_grad
        {VALIDATION}
        A B M on_train_epoch_end
        M lr_scheduler_step          # once per epoch, after its hooks: a plateau may read what they log
        A B M on_fit_epoch_end       # ours
        A B M on_train_end
        A B M on_fit_end
        D A B M teardown(fit)
    """)


@pytest.mark.parametrize(("verb", "stage"), [("validate", "validation"), ("test", "test")])
def test_evaluation(verb, stage):
    recorder = Recorder()
    trainer = quiet_trainer(callbacks=recorder.callbacks())
    getattr(trainer, verb)(recorder.module(Evaluates), datamodule=recorder.datamodule(), verbose=False)
    name = {"validate": "val", "test": "test"}[verb]
    assert recorder.lines() == lines_of(f"""
        M configure_callbacks
        D M prepare_data
        D A B M setup({verb})
        M configure_model
        D {name}_dataloader
        {VALIDATION.replace("validation", stage)}
        D A B M teardown({verb})
    """)


def test_predict():
    recorder = Recorder()
    trainer = quiet_trainer(callbacks=recorder.callbacks())
    trainer.predict(recorder.module(Evaluates), datamodule=recorder.datamodule(2))
    batch = """
        D on_before_batch_transfer
        D transfer_batch_to_device
        D on_after_batch_transfer
        A B M on_predict_batch_start
        M predict_step
        A B M on_predict_batch_end
    """
    assert recorder.lines() == lines_of(f"""
        M configure_callbacks
        D M prepare_data
        D A B M setup(predict)
        M configure_model
        D predict_dataloader
        M on_predict_model_eval
        A B M on_predict_start
        A B M on_predict_epoch_start
        {batch}
        {batch}
        A B M on_predict_epoch_end
        A B M on_predict_end
        D A B M teardown(predict)
    """)


def training(recorder, base, batches, **arguments):
    """Return the lines of one epoch over `batches`, without those before and after every epoch."""
    trainer = quiet_trainer(callbacks=recorder.callbacks(), **arguments)
    trainer.fit(recorder.module(base), Data(batches).loader())
    lines = recorder.lines()
    start, end = lines.index("A B M on_train_epoch_start"), lines.index("A B M on_train_epoch_end")
    return lines[start + 1 : end]


BACKWARD = """
    M training_step
    A B M on_before_backward
    M backward
    A B M on_after_backward
"""
OPENS = """
    A B M on_before_zero_grad
    M optimizer_zero_grad
"""
CLOSES = """
    A B M on_before_optimizer_step
    M configure_gradient_clipping
"""


def test_accumulation():
    found = training(Recorder(BEFORE), Net, 3, accumulate_grad_batches=2)
    assert found == lines_of(f"""
        A B M on_train_batch_start
        {OPENS}
        {BACKWARD}
        A B M on_train_batch_end
        A B M on_substep_end    # ours
        A B M on_train_batch_start
        {BACKWARD}
        {CLOSES}
        A B M on_train_batch_end
        A B M on_accumulation_end
        A B M on_train_batch_start    # the last window holds one batch
        {OPENS}
        {BACKWARD}
        {CLOSES}
        A B M on_train_batch_end
        A B M on_accumulation_end
    """)


def test_overridden_optimizer_step_sees_the_same_order():
    plain = training(Recorder(BEFORE), Net, 3, accumulate_grad_batches=2)
    assert training(Recorder(BEFORE), subclass(optimizer_step=by_closure), 3, accumulate_grad_batches=2) == plain


def test_an_optimizer_that_is_given_a_closure_sees_the_same_order():
    class Own(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    owns = subclass(configure_optimizers=lambda self: Own(self.parameters(), lr=0.1))
    plain = training(Recorder(BEFORE), Net, 3, accumulate_grad_batches=2)
    assert training(Recorder(BEFORE), owns, 3, accumulate_grad_batches=2) == plain


def test_manual_optimization():
    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]

    step = """
        A B M on_before_backward
        M backward
        A B M on_after_backward
        A B M on_before_optimizer_step
    """
    assert training(Recorder(BEFORE), subclass(Manual, configure_optimizers), 1) == lines_of(f"""
        A B M on_train_batch_start
        M training_step
        {step}
        {step}
        A B M on_train_batch_end
        A B M on_accumulation_end
    """)


def test_a_skipped_batch_steps_nothing():
    with pytest.warns(UserWarning, match=r"No optimizer stepped in epoch 0 \(1 batches\)"):
        found = training(Recorder(BEFORE), subclass(training_step=lambda self, batch, batch_idx: None), 1)
    assert found == lines_of(f"""
        A B M on_train_batch_start
        {OPENS}
        M training_step
        A B M on_train_batch_end
        A B M on_substep_end
    """)


def test_minus_one_skips_the_epoch():
    skips = subclass(on_train_batch_start=lambda self, batch, batch_idx: -1 if batch_idx == 1 else None)
    found = training(Recorder(BEFORE), skips, 3)
    assert found[-2:] == ["A B M on_accumulation_end", "A B M on_train_batch_start"]
    assert found.count("M training_step") == 1


@pytest.mark.parametrize("order", [1, -1])
def test_minus_one_of_a_callback_skips_the_epoch_whoever_is_called_after_it(order):
    skips = LambdaCallback(on_train_batch_start=lambda trainer, module, batch, i: -1 if i == 2 else None)
    looks = LambdaCallback(on_train_batch_start=lambda *args: None)
    trainer = quiet_trainer(max_epochs=2, callbacks=[skips, looks][::order])
    trainer.fit(with_methods(on_train_batch_start=lambda self, batch, batch_idx: None), batches(5))
    assert trainer.global_step == 4


class TestException:
    @pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(3)])
    def test_everybody_is_told_and_may_tidy_up(self, error):
        breaks = subclass(Evaluates, training_step=raising(error))
        recorder = Recorder()
        trainer = quiet_trainer(callbacks=recorder.callbacks())
        with pytest.raises(type(error)):
            trainer.fit(recorder.module(breaks), datamodule=recorder.datamodule())
        lines = recorder.lines()
        assert lines[lines.index("M training_step") + 1 :] == lines_of("""
            A B D on_exception
            D A B M teardown(fit)    # Lightning leaves teardown out: what setup opened stays open
        """)
        assert trainer.state.status == "failed"

    def test_before_the_first_hook_nobody_is_called(self):
        recorder = Recorder()
        trainer = quiet_trainer(callbacks=recorder.callbacks())
        with pytest.raises(Exception, match="has no validation_step"):
            trainer.fit(recorder.module(Net), datamodule=recorder.datamodule())
        assert recorder.lines() == ["M configure_callbacks"]

    def test_a_second_error_while_tidying_up_does_not_hide_the_first(self):
        breaks = with_methods(
            training_step=raising(RuntimeError("the first")), teardown=raising(ValueError("the second"))
        )
        with pytest.warns(UserWarning, match="failed as well"), pytest.raises(RuntimeError, match="the first"):
            quiet_trainer().fit(breaks, Data(1).loader())


class Stateful(Callback):
    state_key = property(lambda self: type(self).__name__)

    def state_dict(self):
        return {"calls": 1}


def test_saving_and_resuming_within_an_epoch(tmp_path):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.global_step == 1:
            self.trainer.save_checkpoint(tmp_path / "one.ckpt")

    quiet = ("prepare_data", "configure_callbacks", *TRANSFER)
    recorder = Recorder(quiet)
    trainer = quiet_trainer(callbacks=recorder.callbacks(Stateful))
    trainer.fit(recorder.module(subclass(Evaluates, on_train_batch_end)), datamodule=recorder.datamodule(2))
    lines = recorder.lines()
    saved = lines.index("A B D state_dict")
    assert lines[saved - 1 : saved + 4] == lines_of("""
        A B M on_train_batch_end       # within the module's, which saves
        A B D state_dict
        A B M on_save_checkpoint
        A B M on_checkpoint_written    # ours
        A B M on_accumulation_end
    """)

    again = Recorder(quiet)
    quiet_trainer(callbacks=again.callbacks(Stateful)).fit(
        again.module(Evaluates), datamodule=again.datamodule(2), ckpt_path=tmp_path / "one.ckpt"
    )
    assert again.lines()[:14] == lines_of(f"""
        D A B M setup(fit)
        M configure_model
        D load_state_dict        # before its loaders, which may depend on it
        D train_dataloader
        D val_dataloader
        M A B on_load_checkpoint
        M configure_optimizers
        A B load_state_dict      # when everything else has been found to fit
        A B M on_fit_start
        A B M on_train_start
        A B M on_accumulation_end     # the rest of the batch within which the file was written
        A B M on_train_batch_start    # the epoch has begun in the earlier run
        {OPENS}
    """)
    rest = lines[lines.index("A B M on_checkpoint_written") + 1 :]
    assert again.lines()[10:] == rest


def test_evaluating_a_checkpoint(tmp_path):
    trainer = quiet_trainer(callbacks=[Stateful()])
    recorder = Recorder()
    trainer.fit(Evaluates(), datamodule=recorder.datamodule())
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    recorder = Recorder(TRANSFER)
    quiet_trainer(callbacks=recorder.callbacks(Stateful)).validate(
        recorder.module(Evaluates), datamodule=recorder.datamodule(), ckpt_path=tmp_path / "one.ckpt", verbose=False
    )
    lines = recorder.lines()
    assert lines[3 : lines.index("A B M on_validation_start")] == lines_of("""
        M configure_model
        D load_state_dict
        D val_dataloader
        M A B on_load_checkpoint     # callbacks too: one of them may hold other weights, such as averages
        M on_validation_model_eval
    """)
