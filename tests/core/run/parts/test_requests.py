"""Requests of callbacks: a stop with its reason, a validation, the end of an epoch, and custom events."""

from __future__ import annotations

import copy
import random
import re
from contextlib import nullcontext, suppress

import numpy
import pytest
import torch
from torch.nn.functional import cross_entropy

from lightlib.callbacks import EarlyStopping, ModelCheckpoint
from lightlib.callbacks.callback import Callback
from lightlib.conventions import following
from lightlib.core.progress.states import TrainerStatus
from lightlib.errors import MisconfigurationException, StopTraining
from lightlib.report import PossibleUserWarning
from lightlib_lightning.order import LIGHTNING
from tests.runs.plain import Net, Rows, batches, calling, network, quiet_trainer, raising, same_weights, with_methods
from tests.runs.resumable import Everything, Noisy
from tests.runs.steps import Steps


class At(Callback):
    """Calls `act(trainer)` after `step` steps, and notes its hooks."""

    def __init__(self, act, step=2):
        self.act, self.step, self.seen = act, step, []

    def on_train_batch_end(self, trainer, *args):
        self.seen.append(f"batch {trainer.current_epoch}.{args[-1]}")
        if trainer.global_step == self.step:
            self.act(trainer)

    def on_validation_start(self, trainer, module):
        self.seen.append(f"validation {trainer.global_step}")

    def on_train_epoch_end(self, trainer, module):
        self.seen.append("epoch end")

    def on_train_end(self, trainer, module):
        self.seen.append("train end")

    def on_fit_end(self, trainer, module):
        self.seen.append("fit end")

    def on_exception(self, trainer, module, error):
        self.seen.append(repr(error))

    def teardown(self, trainer, module, stage):
        self.seen.append("teardown")


def enough(trainer):
    raise StopTraining("enough")


def by_hand(n, of, accumulate=1, epochs=1):
    """Train `network()` on the first `n` of `of` batches in each epoch."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(epochs):
        for i, (x, y) in enumerate(batches(of)[:n]):
            (cross_entropy(net(x), y) / accumulate).backward()
            if (i + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    return net


class TestAStopWithAReason:
    def test_it_ends_the_run_with_all_hooks_and_keeps_the_reason(self):
        at, module = At(enough), Steps()
        trainer = quiet_trainer(max_epochs=3, callbacks=at)
        trainer.fit(module, batches(5), batches(1))
        assert at.seen == [
            "batch 0.0", "batch 0.1", "validation 2", "epoch end", "train end", "fit end", "teardown"
        ]  # fmt: skip
        assert trainer.state.status is TrainerStatus.FINISHED
        assert trainer.stop_reason == "enough"
        assert same_weights(module.net, by_hand(2, 5))

    def test_it_is_printed(self, caplog):
        with caplog.at_level("INFO", logger="lightlib"):
            quiet_trainer(max_epochs=3, callbacks=At(enough)).fit(Net(), batches(5))
        assert "Training stopped after 0 epochs and 2 steps: enough" in caplog.text

    def test_the_accumulation_window_and_the_hooks_of_others_are_completed(self):
        class Raises(Callback):
            def on_train_batch_start(self, trainer, module, batch, i):
                if i == 2:
                    raise StopTraining("in a window")

        at, module = At(lambda trainer: None), Net()
        trainer = quiet_trainer(max_epochs=3, accumulate_grad_batches=2, callbacks=[Raises(), at])
        trainer.fit(module, batches(6))
        assert at.seen[:5] == ["batch 0.0", "batch 0.1", "batch 0.2", "batch 0.3", "epoch end"]
        assert same_weights(module.net, by_hand(4, 6, accumulate=2))

    @pytest.mark.parametrize(
        "hook", ["setup", "on_fit_start", "on_sanity_check_start", "on_train_start", "on_train_epoch_start"]
    )
    def test_before_the_first_batch_nothing_is_trained(self, hook):
        class Raises(Callback):
            pass

        def raises(self, *args):
            raise StopTraining(hook)

        setattr(Raises, hook, raises)
        trainer, module = quiet_trainer(max_epochs=2, num_sanity_val_steps=1, callbacks=Raises()), Steps()
        trainer.fit(module, batches(3), batches(1))
        assert (trainer.global_step, trainer.stop_reason) == (0, hook)
        assert same_weights(module.net, network())

    def test_a_step_may_raise_it_and_its_batch_has_no_loss(self):
        def training_step(self, batch, batch_idx):
            if batch_idx == 2:
                raise StopTraining("no more")

        module = calling(Net, training_step)
        trainer = quiet_trainer(max_epochs=3)
        trainer.fit(module, batches(5))
        assert (trainer.global_step, trainer.stop_reason) == (2, "no more")
        assert same_weights(module.net, by_hand(2, 5))

    def test_within_a_validation_it_runs_to_its_end(self):
        def on_validation_batch_end(self, output, batch, i):
            self.validated += 1
            raise StopTraining("validated")

        module = with_methods(Steps, on_validation_batch_end, validated=0)
        trainer = quiet_trainer(max_epochs=5)
        trainer.fit(module, batches(2), batches(3))
        assert (module.validated, trainer.current_epoch, trainer.stop_reason) == (3, 1, "validated")

    def test_min_epochs_is_completed_first(self):
        trainer = quiet_trainer(max_epochs=5, min_epochs=2, callbacks=At(enough, 1))
        trainer.fit(Net(), batches(2))
        assert (trainer.current_epoch, trainer.stop_reason) == (5, None)

    def test_outside_of_fit_it_is_an_exception(self):
        raises = with_methods(Steps, on_test_start=raising(StopTraining("not here")))
        with pytest.raises(StopTraining, match="not here"):
            quiet_trainer().test(raises, batches(1), verbose=False)

    def test_the_next_fit_has_no_reason(self):
        at = At(enough)
        trainer, module = quiet_trainer(max_epochs=1, callbacks=at), Net()
        trainer.fit(module, batches(3))
        trainer.fit(module, batches(3))
        assert trainer.stop_reason is None
        assert trainer.current_epoch == 1

    def test_early_stopping_gives_no_reason(self):
        trainer = quiet_trainer(max_epochs=9, callbacks=EarlyStopping("x", patience=0))
        trainer.fit(Steps(), batches(1), batches(1))
        assert (trainer.current_epoch, trainer.stop_reason) == (2, None)


class TestTheStatusOfAFailedRun:
    def failing(self):
        def fails(trainer):
            raise ValueError("a mistake")

        at = At(fails)
        trainer = quiet_trainer(callbacks=at)
        with pytest.raises(ValueError, match="a mistake"):
            trainer.fit(Net(), batches(5))
        assert at.seen[2:4] == ["ValueError('a mistake')", "teardown"][: len(at.seen) - 2]
        return trainer

    def test_it_is_failed(self):
        trainer = self.failing()
        assert trainer.state.status is TrainerStatus.FAILED
        assert trainer.state.status == "failed"
        assert trainer.state.stopped
        assert not trainer.state.finished
        assert not trainer.interrupted

    def test_with_lightnings_conventions_it_is_interrupted(self):
        with following(LIGHTNING):
            assert self.failing().state.status is TrainerStatus.INTERRUPTED

    def test_an_error_in_teardown_is_a_failure_too(self):
        trainer = quiet_trainer()
        with pytest.raises(ValueError, match="at the end"):
            trainer.fit(with_methods(teardown=raising(ValueError("at the end"))), batches(1))
        assert trainer.state.status is TrainerStatus.FAILED


class TestARequestForAValidation:
    @pytest.mark.parametrize("interval", [{}, {"check_val_every_n_epoch": 2}, {"val_check_interval": 2}])
    def test_it_acts_once(self, interval):
        at = At(lambda trainer: [trainer.request_validation() for _ in range(3)], step=3)
        quiet_trainer(max_epochs=2, callbacks=at, **interval).fit(Steps(), batches(4), batches(1))
        expected = {"": [3, 4, 8], "check_val_every_n_epoch": [3, 8], "val_check_interval": [2, 3, 4, 6, 8]}
        validated = [int(seen.split()[1]) for seen in at.seen if seen.startswith("validation")]
        assert validated == expected["".join(interval)]

    def test_where_one_is_due_there_is_only_one(self):
        at = At(lambda trainer: trainer.request_validation(), step=4)
        quiet_trainer(max_epochs=2, callbacks=at).fit(Steps(), batches(4), batches(1))
        assert [seen for seen in at.seen if "validation" in seen] == ["validation 4", "validation 8"]

    def test_within_a_validation_it_does_nothing(self):
        class Asks(Callback):
            def on_validation_end(self, trainer, module):
                trainer.request_validation()

        at = At(lambda trainer: None)
        quiet_trainer(max_epochs=2, callbacks=[Asks(), at]).fit(Steps(), batches(3), batches(1))
        assert [seen for seen in at.seen if "validation" in seen] == ["validation 3", "validation 6"]

    def test_without_validation_data_it_is_an_error(self):
        with pytest.raises(MisconfigurationException, match=r"(?s)does not validate.*fit\(module, train_loader, val_"):
            quiet_trainer(callbacks=At(lambda trainer: trainer.request_validation())).fit(Net(), batches(3))

    def test_its_metrics_reach_the_loggers(self):
        rows, at = Rows(), At(lambda trainer: trainer.request_validation())
        quiet_trainer(logger=rows, callbacks=at).fit(Steps(), batches(4), batches(1))
        assert [step for step, values in rows.rows if "x" in values] == [2, 4]


class TestARequestForTheEndOfTheEpoch:
    def test_it_acts_once(self):
        at, module = At(lambda trainer: trainer.request_epoch_end(), step=2), Steps()
        trainer = quiet_trainer(max_epochs=2, callbacks=at)
        trainer.fit(module, batches(4), batches(1))
        assert [seen for seen in at.seen if "batch" not in seen][:4] == [
            "validation 2", "epoch end", "validation 6", "epoch end"
        ]  # fmt: skip
        assert (trainer.current_epoch, trainer.global_step) == (2, 6)

    def test_the_weights_are_those_of_shorter_epochs(self):
        class Ends(Callback):
            def on_before_optimizer_step(self, trainer, *args):
                if trainer.progress.epoch_batch == 2:
                    trainer.request_epoch_end()

        module = Net()
        quiet_trainer(max_epochs=3, callbacks=Ends()).fit(module, batches(6))
        assert same_weights(module.net, by_hand(3, 6, epochs=3))

    def test_the_accumulation_window_is_completed(self):
        class Ends(Callback):
            def on_train_batch_end(self, trainer, module, output, batch, i):
                if i == 2:
                    trainer.request_epoch_end()

        module = Net()
        trainer = quiet_trainer(accumulate_grad_batches=2, callbacks=Ends())
        trainer.fit(module, batches(6))
        assert trainer.global_step == 2
        assert same_weights(module.net, by_hand(4, 6, accumulate=2))

    def test_at_the_last_batch_it_does_nothing(self):
        at = At(lambda trainer: trainer.request_epoch_end(), step=4)
        trainer = quiet_trainer(max_epochs=2, callbacks=at)
        trainer.fit(Net(), batches(4))
        assert trainer.global_step == 8

    @pytest.mark.parametrize("name", ["request_validation", "request_epoch_end"])
    def test_outside_of_a_fit_it_is_an_error(self, name):
        with pytest.raises(MisconfigurationException, match=rf"trainer.{name}\(\) was called, but no fit runs"):
            getattr(quiet_trainer(), name)()


class Asks(Callback):
    """Ends each epoch and validates early, and remembers nothing."""

    def on_train_batch_end(self, trainer, module, output, batch, i):
        if i == 1:
            trainer.request_validation()
        if i == 3:
            trainer.request_epoch_end()

    def on_train_epoch_end(self, trainer, module):
        trainer.request_validation()  # it runs before the next epoch


class Leaves(Callback):
    """Ends the program, as a kill does, at the n-th of all moments."""

    def __init__(self, moment):
        self.moment, self.at = moment, 0

    def leave(self, *args):
        self.at += 1
        if self.at == self.moment:
            raise RuntimeError("killed")

    on_train_batch_end = on_validation_batch_end = on_train_epoch_end = on_train_epoch_start = leave


def test_a_run_with_requests_resumes_bit_for_bit(tmp_path):
    def run(folder, moment, path=None):
        for seed in (torch.manual_seed, random.seed, numpy.random.seed):
            seed(7)
        module = Everything()
        saves = ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=-1, save_last=True)
        trainer = quiet_trainer(
            max_epochs=2, enable_checkpointing=True, callbacks=[Asks(), saves, Leaves(moment)], log_every_n_steps=1
        )
        loader = torch.utils.data.DataLoader(Noisy(24), batch_size=4, shuffle=True)
        val = torch.utils.data.DataLoader(Noisy(8), batch_size=4)
        with nullcontext() if moment is None else suppress(RuntimeError):
            trainer.fit(module, loader, val, ckpt_path=path)
        return copy.deepcopy(module.state_dict()), trainer.global_step, trainer.current_epoch

    expected = run(tmp_path / "unbroken", None)
    assert expected[1:] == (8, 2)
    moments = 0
    for moment in range(1, 22):
        folder = tmp_path / str(moment)
        run(folder, moment)
        if not list(folder.glob("*.ckpt")):
            continue
        moments += 1
        state, *where = run(folder, None, "auto")
        assert tuple(where) == expected[1:], moment
        assert all(state[name].equal(value) for name, value in expected[0].items()), moment
    assert moments > 10


class TestEvents:
    class Counts(Callback):
        def __init__(self, calls, name):
            self.calls, self.name = calls, name

        def on_beep(self, trainer, module, pitch, loud=False):
            self.calls.append((self.name, pitch, loud))

    class First(Counts):
        priority = "high"

    class Deaf(Callback):
        pass

    def test_it_reaches_those_that_define_it_by_priority_and_then_the_module(self):
        calls = []

        def on_beep(self, pitch, loud=False):
            calls.append(("module", pitch, loud))
            self.log("pitch", float(pitch), on_step=False, on_epoch=True)

        def on_train_batch_end(self, output, batch, i):
            self.trainer.call_event("on_beep", pitch=i, loud=True)
            self.trainer.call_event("on_silence", pitch=i)

        trainer = quiet_trainer(callbacks=[self.Deaf(), self.Counts(calls, "second"), self.First(calls, "first")])
        trainer.fit(with_methods(Net, on_beep, on_train_batch_end), batches(2))
        each = ["first", "second", "module"]
        assert calls == [(name, i, True) for i in range(2) for name in each]
        assert trainer.callback_metrics["pitch"] == 0.5

    def test_a_callback_may_stop_the_run_in_an_event(self):
        class Stops(Callback):
            def on_beep(self, trainer, module):
                raise StopTraining("beep")

        trainer = quiet_trainer(callbacks=[Stops(), At(lambda trainer: trainer.call_event("on_beep"))])
        trainer.fit(Net(), batches(5))
        assert (trainer.global_step, trainer.stop_reason) == (2, "beep")

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("on_train_end", "lightlib calls this method itself"),
            ("training_step", "lightlib calls this method itself"),
            ("state_dict", "lightlib calls this method itself"),
            ("on my event", "The event 'on my event' cannot be called"),
            ("_private", "The event '_private' cannot be called"),
            (3, "The event 3 cannot be called"),
        ],
    )
    def test_what_is_no_event_is_refused(self, name, message):
        with pytest.raises(MisconfigurationException, match=re.escape(message)):
            quiet_trainer(callbacks=At(lambda trainer: trainer.call_event(name))).fit(Net(), batches(3))

    @pytest.mark.parametrize("by", ["callback", "module"])
    def test_a_misspelt_name_is_reported_once(self, by):
        heard = []
        receiver = type("Receiver", (Callback if by == "callback" else Net,), {"on_beep": lambda *a: heard.append(1)})

        class Calls(Callback):
            def on_train_batch_start(self, trainer, module, batch, i):
                trainer.call_event("on_beeep")
                trainer.call_event("on_nothing_like_it")

        own = [receiver()] if by == "callback" else []
        with pytest.warns(PossibleUserWarning) as seen:
            quiet_trainer(callbacks=[*own, Calls()]).fit(Net() if own else receiver(), batches(3))
        (warning,) = seen
        assert str(warning.message) == (
            "trainer.call_event('on_beeep'): no callback and no method of the module has this name. Did you mean "
            "'on_beep' of Receiver?\n  Expected: one name in the call and in the methods.\n"
            "  Fix: trainer.call_event('on_beep', …)"
        )
        assert not heard

    def test_before_a_run_it_is_refused(self):
        with pytest.raises(MisconfigurationException, match="was called before a run"):
            quiet_trainer().call_event("on_beep")
