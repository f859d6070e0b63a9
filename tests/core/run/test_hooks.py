"""The table of hooks: the objects that have each one, their order, and our own six hooks."""

from __future__ import annotations

import inspect
import sys
from functools import partial

import pytest
import torch

from lightlib.callbacks import LambdaCallback, ModelCheckpoint
from lightlib.callbacks.callback import Callback
from lightlib.checkpoint.storage import filesystem
from lightlib.core.module.module import Module
from lightlib.core.run.hooks import HOOKS, in_order, nothing, skip_if_any
from lightlib.errors import MisconfigurationException, UnknownNameError
from tests.runs.bad_input import refused
from tests.runs.plain import (
    Net,
    Rows,
    batches,
    calling,
    quiet_trainer,
    raising,
    same_weights,
    scheduled,
    subclass,
    with_methods,
)
from tests.runs.recorder import DATAMODULE, LOADERS, MODULE, TRANSFER, Data, Evaluates, Recorder


class TestInOrder:
    def test_none_is_nothing(self):
        assert in_order([]) is nothing
        assert not nothing(1, "two")

    def test_one_is_itself(self):
        def only():
            return 1

        assert in_order([only]) is only

    def test_several_are_called_with_the_same_arguments_and_the_last_answer_counts(self):
        calls = []
        both = in_order([lambda *args: calls.append(args), lambda *args: calls.append(args) or "last"])
        assert both(1, 2) == "last"
        assert calls == [(1, 2), (1, 2)]


class TestSkipIfAny:
    @pytest.mark.parametrize("answers", [[-1, None], [None, -1], [0, -1, None]])
    def test_whoever_answers_minus_one_skips_and_all_are_called(self, answers):
        called = []
        joined = skip_if_any([lambda x, answer=answer: called.append(x) or answer for answer in answers])
        assert joined(7) == -1
        assert called == [7] * len(answers)

    def test_other_answers_mean_nothing(self):
        assert skip_if_any([lambda: 0, lambda: "later"])() is None
        assert skip_if_any([]) is nothing


class TestTable:
    def test_printed_it_shows_who_is_called_where(self):
        speaks = with_methods(
            Net,
            on_train_start=lambda self: None,
            on_train_epoch_end=lambda self: None,
            validation_step=lambda self, batch, batch_idx: None,
        )

        class Late(Callback):
            after_module = True

            def on_train_epoch_end(self, trainer, pl_module):
                pass

        early = LambdaCallback(on_train_start=lambda trainer, module: None)
        trainer = quiet_trainer(callbacks=[Late(), early], limit_val_batches=0)
        trainer.fit(speaks, batches(1))
        text = str(trainer.hooks)
        assert text == "on_train_start      LambdaCallback → Given\non_train_epoch_end  Given → Late"
        assert repr(trainer.hooks) == f"<Hooks: {len(text.splitlines())} defined; print(trainer.hooks) lists them>"

    def test_without_any_hook(self):
        trainer = quiet_trainer()
        trainer.fit(Net(), batches(1))
        assert str(trainer.hooks) == "no hook is defined"
        assert trainer.hooks.on_train_batch_start is nothing

    def test_a_function_set_on_the_instance_is_a_hook(self):
        calls, module, callback = [], Net(), Callback()
        module.on_train_start = lambda: calls.append("module")
        callback.on_train_start = lambda trainer, pl_module: calls.append("callback")
        quiet_trainer(callbacks=[callback]).fit(module, batches(1))
        assert calls == ["callback", "module"]

    def test_a_later_patch_is_seen_after_rebuild_hooks(self):
        calls = []

        def on_train_batch_start(self, batch, batch_idx):
            if batch_idx == 0:
                self.on_train_epoch_end = lambda: calls.append(self.rebuilds)
                if self.rebuilds:
                    self.trainer.rebuild_hooks()

        for rebuilds in (False, True):
            module = with_methods(Net, on_train_batch_start, rebuilds=False)
            module.rebuilds = rebuilds
            quiet_trainer().fit(module, batches(2))
        assert calls == [True]

    def test_callbacks_cannot_be_added_during_a_run(self):
        adds = with_methods(Net, on_train_start=lambda self: self.trainer.callbacks.append(Callback()))
        with pytest.raises(MisconfigurationException, match="can no longer be changed; the run has started"):
            quiet_trainer().fit(adds, batches(1))


class TestPriority:
    def test_smaller_numbers_come_first_and_equal_ones_keep_their_order(self):
        called = []

        def tells(name, priority):
            callback = LambdaCallback(on_train_start=lambda trainer, module: called.append(name))
            callback.priority = priority
            return callback

        given = [tells("a", "low"), tells("b", 50), tells("c", "highest"), tells("d", "normal"), tells("e", 49)]
        quiet_trainer(callbacks=given).fit(Net(), batches(1))
        assert called == ["c", "e", "b", "d", "a"]

    def test_checkpoints_come_last_as_in_lightning(self, tmp_path):
        order = []

        class Own(Callback):
            def on_train_start(self, trainer, pl_module):
                order.extend(type(callback).__name__ for callback in trainer.callbacks)

        given = [ModelCheckpoint(tmp_path), Own()]
        quiet_trainer(callbacks=given, enable_checkpointing=True).fit(Net(), batches(1))
        assert order == ["Own", "ModelCheckpoint"]

    @pytest.mark.parametrize(
        ("priority", "error", "text"),
        [("hihg", UnknownNameError, "Did you mean 'high'"), (101, MisconfigurationException, "from 0")],
    )
    def test_wrong(self, priority, error, text):
        callback = Callback()
        callback.priority = priority
        with pytest.raises(error, match=text):
            quiet_trainer(callbacks=[callback])

    def test_after_module_sees_what_the_module_logs_at_the_end_of_the_epoch(self):
        seen = {}

        class Looks(Callback):
            def __init__(self, after_module):
                self.after_module = after_module

            def on_train_epoch_end(self, trainer, pl_module):
                seen[self.after_module] = "late" in trainer.callback_metrics

        late = with_methods(Net, on_train_epoch_end=lambda self: self.log("late", 1.0))
        quiet_trainer(callbacks=[Looks(after_module=True), Looks(after_module=False)]).fit(late, batches(1))
        assert seen == {True: True, False: False}


class TestNewMoments:
    def test_on_fit_epoch_end_when_everything_of_the_epoch_is_done(self):
        seen = []

        def on_train_epoch_end(self):
            seen.append(("train", self.current_epoch, rate(self)))

        def on_fit_epoch_end(self):
            seen.append(("fit", self.current_epoch, rate(self)))

        def rate(module):
            return module.optimizers().param_groups[0]["lr"]

        configure = scheduled(partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5), lr=1.0)
        quiet_trainer(max_epochs=2).fit(with_methods(Net(configure), on_train_epoch_end, on_fit_epoch_end), batches(1))
        assert seen == [("train", 0, 1.0), ("fit", 1, 0.5), ("train", 1, 0.5), ("fit", 2, 0.25)]

    def test_on_fit_epoch_end_is_not_for_an_epoch_that_was_left(self):
        seen = []

        sees = with_methods(Net, on_fit_epoch_end=lambda self: seen.append(self.current_epoch))
        quiet_trainer(max_epochs=-1, max_steps=5).fit(sees, batches(3))
        assert seen == [1]

    def test_on_accumulation_end_after_every_step(self):
        seen = []

        def on_accumulation_end(self):
            seen.append((self.trainer.progress.epoch_batch, self.global_step))

        quiet_trainer(accumulate_grad_batches=3).fit(with_methods(Net, on_accumulation_end), batches(8))
        assert seen == [(3, 1), (6, 2), (8, 3)]

    def test_on_substep_end_after_every_batch_without_a_step(self):
        seen = []

        def on_train_batch_end(self, outputs, batch, batch_idx):
            seen.append(batch_idx)

        def on_substep_end(self):
            self.log("open", 1.0)
            seen.append("open")

        def on_accumulation_end(self):
            seen.append("closed")

        trainer = quiet_trainer(accumulate_grad_batches=3)
        trainer.fit(with_methods(Net, on_train_batch_end, on_substep_end, on_accumulation_end), batches(5))
        assert seen == [0, "open", 1, "open", 2, "closed", 3, "open", 4, "closed"]
        assert "open" in trainer.callback_metrics
        assert "on_substep_end" in str(trainer.hooks)

    def test_on_substep_end_alone_and_in_a_callback(self):
        class Sees(Callback):
            def __init__(self):
                self.seen = []

            def on_substep_end(self, trainer, pl_module):
                self.seen.append((trainer.progress.epoch_batch, trainer.global_step))

        sees = Sees()
        trainer = quiet_trainer(accumulate_grad_batches=2, callbacks=sees)
        trainer.fit(Net(), batches(3))
        assert sees.seen == [(1, 0)]

    def test_on_checkpoint_uploaded_for_a_remote_store_only(self, tmp_path):
        seen = []

        sees = subclass(
            Net,
            on_checkpoint_written=lambda self, path: seen.append(("written", path)),
            on_checkpoint_uploaded=lambda self, uri: seen.append(("uploaded", uri, filesystem.exists(uri))),
        )
        for background in (False, True):
            folder = f"memory://uploads-{background}"
            checkpoint = ModelCheckpoint(folder, every_n_train_steps=2, save_top_k=-1, async_save=background)
            quiet_trainer(callbacks=[checkpoint], enable_checkpointing=True).fit(sees(), batches(2))
            uri = f"{folder}/epoch=0-step=2.ckpt"
            assert seen == [("written", uri), ("uploaded", uri, True)]
            seen.clear()
        checkpoint = ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1)
        quiet_trainer(callbacks=[checkpoint], enable_checkpointing=True).fit(sees(), batches(2))
        assert seen == [("written", str(tmp_path / "epoch=0-step=2.ckpt"))]

    def test_on_log_gets_what_the_loggers_get(self):
        seen, logger = [], Rows()

        def training_step(self, batch, batch_idx):
            self.log("batch", batch_idx, on_step=True, on_epoch=True)

        def on_log(self, metrics):
            seen.append((self.global_step, dict(metrics)))

        quiet_trainer(logger=logger, log_every_n_steps=2).fit(calling(Net, training_step, on_log), batches(5))
        assert seen == logger.rows
        assert [(step, metrics["epoch"]) for step, metrics in seen] == [(2, 0), (4, 0), (5, 0)]
        assert [metrics.get("batch_step", metrics.get("batch_epoch")) for _, metrics in seen] == [1, 3, 2]

    def test_on_checkpoint_written_when_the_file_is_whole(self, tmp_path):
        seen = []

        def on_checkpoint_written(self, path):
            seen.append((path, torch.load(path, weights_only=True)["global_step"]))

        checkpoint = ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1)
        module = with_methods(Net, on_checkpoint_written)
        quiet_trainer(callbacks=[checkpoint], enable_checkpointing=True).fit(module, batches(4))
        assert seen == [(str(tmp_path / f"epoch=0-step={n}.ckpt"), n) for n in (2, 4)]


class TestDepth:
    """The number of calls between `Trainer.fit` and the user's code."""

    def frames(self, **arguments):
        stacks = {}

        class Looks(Net):
            def training_step(self, batch, batch_idx):
                if batch_idx == 0:
                    stacks["step"] = [frame.function for frame in inspect.stack()]
                return super().training_step(batch, batch_idx)

            def on_train_batch_end(self, outputs, batch, batch_idx):
                stacks["hook"] = [frame.function for frame in inspect.stack()]

        quiet_trainer(**arguments).fit(Looks(), batches(1))
        return {name: stack[: stack.index("frames")][::-1] for name, stack in stacks.items()}

    def test_to_training_step(self):
        found = self.frames()["step"]
        names = [
            "fit",
            "fit",
            "train_epoch",
            "train_batch",
            "automatic",
            "forward_backward",
            "in_scope",
            "training_step",
        ]
        assert found == names
        assert len(found) - 1 <= 8

    @pytest.mark.parametrize("arguments", [{"precision": "bf16-mixed"}, {"accumulate_grad_batches": 2}])
    def test_with_more_asked_for(self, arguments):
        assert len(self.frames(**arguments)["step"]) - 1 <= 8

    def test_to_a_hook(self):
        assert self.frames()["hook"] == ["fit", "fit", "train_epoch", "train_batch", "in_scope", "on_train_batch_end"]


def test_hooks_are_found_by_identity_and_not_by_name():

    trainer = quiet_trainer()
    trainer.fit(with_methods(on_train_start=Module.on_train_start), batches(1))
    assert trainer.hooks.on_train_start is nothing


def test_a_callback_that_is_a_part_of_the_module():
    class Part(torch.nn.Module, Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.log("seen", batch_idx)
            attached.append(pl_module is module and self._pl_module is module)

    attached, module = [], with_methods(Net, configure_callbacks=lambda self: [self.part])
    module.part = Part()
    trainer = quiet_trainer()
    trainer.fit(module, batches(2))
    assert attached == [True, True]
    assert trainer.callback_metrics["seen"] == 1
    assert [name for name, _ in module.part.named_modules()] == [""]
    assert module.part._pl_module is None


def test_the_loss_that_hooks_see_is_the_one_returned_and_detached():
    seen = []

    def on_train_batch_end(self, outputs, batch, batch_idx):
        seen.append((outputs["loss"].item(), outputs["loss"].requires_grad))

    data, module = batches(2), with_methods(Net(lambda p: torch.optim.SGD(p, lr=0.0)), on_train_batch_end)
    expected = [Net().training_step(batch, 0).item() for batch in data]
    quiet_trainer(accumulate_grad_batches=2).fit(module, data)
    assert seen == [(loss, False) for loss in expected]


class TestNone:
    """A method that is set to None is not defined."""

    @pytest.mark.parametrize("place", [setattr, lambda module, name, value: setattr(type(module), name, value)])
    def test_a_validation_that_is_switched_off(self, place):
        module = with_methods(Net, validation_step=raising(AssertionError), val_dataloader=raising(AssertionError))
        place(module, "validation_step", None)
        place(module, "val_dataloader", None)
        trainer = quiet_trainer(num_sanity_val_steps=1)
        trainer.fit(module, batches(1))
        assert trainer.num_val_batches == []

    def test_every_hook_of_a_module_a_data_module_and_a_callback(self):
        forward = subclass(Evaluates, forward=lambda self, batch: self.net(batch[0]))
        recorder = Recorder()
        module, data, (callback, _) = recorder.module(forward), recorder.datamodule(), recorder.callbacks()
        own = {"training_step", "configure_optimizers"}
        for name in {*MODULE, *TRANSFER} - own:
            setattr(module, name, None)
        for name in {*DATAMODULE} - {"state_dict", "load_state_dict", *LOADERS}:
            setattr(data, name, None)
        for name in HOOKS:
            setattr(callback, name, None)
        module.validation_step, module.predict_step = Net.training_step.__get__(module), None
        trainer = quiet_trainer(callbacks=[callback], gradient_clip_val=1.0)
        trainer.fit(module, datamodule=data)
        trainer.predict(module, batches(1))
        called = {name.partition("(")[0] for name, _ in recorder.calls}
        assert called <= {"training_step", "configure_optimizers", "train_dataloader", "val_dataloader", "state_dict"}
        assert trainer.global_step == 1

    def test_a_hook_of_none_is_the_default(self):
        modes = []

        module = with_methods(
            Evaluates,
            on_validation_model_eval=raising(AssertionError),
            validation_step=lambda self, batch, batch_idx: modes.append(self.training),
        )
        module.on_validation_model_eval = None
        quiet_trainer().fit(module, batches(1), batches(1))
        assert modes == [False]

    @pytest.mark.parametrize(("name", "arguments"), [("training_step", "self, batch, batch_idx"),
                                                     ("configure_optimizers", "self")])  # fmt: skip
    def test_what_is_needed_is_missing(self, name, arguments):
        module = Net()
        setattr(module, name, None)
        with refused(
            MisconfigurationException, f"Net has no `{name}`, which Trainer.fit calls.",
            f"a method `{name}({arguments})`.", "define it in Net.",
        ):  # fmt: skip
            quiet_trainer().fit(module, batches(1))

    @pytest.mark.parametrize("name", ["train_dataloader", "predict_dataloader"])
    def test_loaders_are_then_looked_for_elsewhere(self, name):
        module, data = Evaluates(), Data(batches=1)
        setattr(module, name, data.loader)
        setattr(data, name, None)
        trainer = quiet_trainer(limit_val_batches=0)
        (trainer.fit if name.startswith("train") else trainer.predict)(module, datamodule=data)
        assert trainer.run.train_data is None or trainer.num_training_batches == 1

    def test_a_module_that_is_loaded(self, tmp_path):
        class Loads(Net):
            def configure_model(self):
                raise AssertionError

            on_load_checkpoint = configure_model

        trainer = quiet_trainer()
        trainer.fit(Net(), batches(1))
        trainer.save_checkpoint(tmp_path / "net.ckpt")
        without = subclass(Loads, configure_model=None, on_load_checkpoint=None)
        assert same_weights(without.load_from_checkpoint(tmp_path / "net.ckpt"), trainer.lightning_module)


def _python_calls(callbacks, num_batches):
    """How many functions of lightlib are called in a fit."""
    trainer, calls = quiet_trainer(callbacks=callbacks), []
    module, data = Net(), batches(num_batches)
    sys.setprofile(lambda frame, event, argument: calls.append(frame.f_code) if event == "call" else None)
    try:
        trainer.fit(module, data)
    finally:
        sys.setprofile(None)
    return sum("/lightlib/" in code.co_filename for code in calls)


def test_ten_callbacks_that_override_nothing_cost_no_call_per_batch():
    class Idle(Callback):
        @property
        def state_key(self):
            return f"idle {id(self)}"

    idle = [Idle() for _ in range(10)]
    trainer = quiet_trainer(callbacks=idle)
    trainer.fit(Net(), batches(1))
    names = [name for name in HOOKS if name not in ("on_save_checkpoint", "on_load_checkpoint")]
    assert [name for name in names if getattr(trainer.hooks, name) is not nothing] == []
    _python_calls([], 2)  # what is imported and cached at the first time
    more = [_python_calls(callbacks, 40) - _python_calls(callbacks, 8) for callbacks in ([], idle)]
    assert more[0] == more[1] > 0
