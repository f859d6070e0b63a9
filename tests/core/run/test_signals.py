"""Ctrl-C and SIGTERM: recorded once, obeyed at an optimizer step; earlier handlers are restored."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest
import torch

from lightlib.callbacks import Callback, ModelCheckpoint
from lightlib.core import spawned
from lightlib.core.run.signals import Signals
from lightlib.errors import SIGTERMException
from tests.runs.plain import Net, batches, quiet_trainer, same_weights, subclass
from tests.runs.steps import Data, Keeps, Steps, on

INT, TERM = signal.SIGINT, signal.SIGTERM
CODES = {INT: 130, TERM: 143}


@pytest.fixture(autouse=True)
def pythons_own_handlers():
    """Run each test with Python's default handlers."""
    before = {number: signal.getsignal(number) for number in (INT, TERM)}
    signal.signal(INT, signal.default_int_handler)
    signal.signal(TERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class TestNoted:
    @pytest.mark.parametrize(("number", "error"), [(INT, KeyboardInterrupt), (TERM, SIGTERMException)])
    def test_the_first_one_is_kept_for_later(self, number, error):
        signals = Signals()
        with signals.noted():
            assert signals.received is None
            signal.raise_signal(number)
            assert isinstance(signals.received, error)

    def test_a_second_interrupt_is_obeyed_at_once(self):
        signals = Signals()
        with signals.noted():
            signal.raise_signal(INT)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(INT)

    def test_ones_own_interrupt_after_that_of_another_process_is_not_the_second(self):
        """Ctrl-C in a terminal reaches all processes, and a notice from another rank may arrive first."""
        signals = Signals()
        with signals.noted():
            signals.receive("interrupt")
            heard = signals.received
            signal.raise_signal(INT)
            assert signals.received is heard
            assert isinstance(heard, KeyboardInterrupt)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(INT)

    def test_an_interrupt_after_anothers_wish_to_end_is_obeyed_at_once(self):
        signals = Signals()
        with signals.noted():
            signals.receive("terminate")
            assert isinstance(signals.received, SIGTERMException)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(INT)

    def test_an_interrupt_after_a_wish_to_end_is_obeyed_at_once(self):
        signals = Signals()
        with signals.noted():
            signal.raise_signal(TERM)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(INT)
            assert isinstance(signals.received, SIGTERMException)

    def test_a_second_wish_to_end_changes_nothing(self):
        signals = Signals()
        with signals.noted():
            signal.raise_signal(INT)
            first = signals.received
            signal.raise_signal(TERM)
            signal.raise_signal(TERM)
            assert signals.received is first

    def test_says_what_happens_next(self, caplog):
        with caplog.at_level("INFO", logger="lightlib"), Signals().noted():
            signal.raise_signal(INT)
        assert "Stopping after this step; press Ctrl-C again to stop at once." in caplog.text

    def test_the_handlers_of_before_come_back(self):
        with Signals().noted():
            assert signal.getsignal(INT) is not signal.default_int_handler
        assert (signal.getsignal(INT), signal.getsignal(TERM)) == (signal.default_int_handler, signal.SIG_DFL)
        with pytest.raises(ZeroDivisionError), Signals().noted():
            raise ZeroDivisionError
        assert (signal.getsignal(INT), signal.getsignal(TERM)) == (signal.default_int_handler, signal.SIG_DFL)

    @pytest.mark.parametrize("number", [INT, TERM])
    def test_a_handler_of_the_users_own_is_called_as_well(self, number):
        got = []
        signal.signal(number, lambda *_: got.append(number))
        signals = Signals()
        with signals.noted():
            signal.raise_signal(number)
        assert got == [number]
        assert signals.received is not None
        assert signal.getsignal(number) not in (signal.default_int_handler, signal.SIG_DFL)

    def test_a_signal_that_is_ignored_stays_ignored(self):
        signal.signal(TERM, signal.SIG_IGN)
        signals = Signals()
        with signals.noted():
            signal.raise_signal(TERM)
        assert signals.received is None

    def test_another_thread_changes_no_handler(self):
        found, signals = [], Signals()

        def note():
            with signals.noted():
                found.append(signal.getsignal(INT))

        thread = threading.Thread(target=note)
        thread.start()
        thread.join()
        assert found == [signal.default_int_handler]

    def test_a_new_run_starts_without_the_last_ones_signal(self):
        signals = Signals()
        with signals.noted():
            signal.raise_signal(TERM)
        with signals.noted():
            assert signals.received is None


def sends(number, hook="on_train_batch_end", when=lambda trainer: trainer.progress.batch == 3):
    """A callback that sends a signal in one of its hooks, once."""
    sent = []

    def send(trainer, module, *_):
        if not sent and when(trainer):
            sent.append(True)
            signal.raise_signal(number)

    return on(**{hook: send})


class TestInARun:
    @pytest.mark.parametrize("number", [INT, TERM])
    @pytest.mark.parametrize(("accumulate", "batch"), [(1, 3), (2, 4), (5, 5)])
    def test_ends_at_the_next_optimizer_step(self, number, accumulate, batch):
        told = []
        watch = on(
            on_exception=lambda t, m, error: told.append(type(error)), teardown=lambda *_: told.append("teardown")
        )
        trainer = quiet_trainer(accumulate_grad_batches=accumulate, callbacks=[sends(number), watch])
        with pytest.raises(SystemExit) as caught:
            trainer.fit(Net(), batches(10))
        assert caught.value.code == CODES[number]
        assert trainer.progress.batch == batch
        assert (trainer.interrupted, trainer.state.status) == (True, "interrupted")
        assert trainer.received_sigterm == (number == TERM)
        assert told == [{INT: KeyboardInterrupt, TERM: SIGTERMException}[number], "teardown"]
        assert (signal.getsignal(INT), signal.getsignal(TERM)) == (signal.default_int_handler, signal.SIG_DFL)

    def test_a_second_interrupt_ends_within_the_window(self, tmp_path):
        both = [sends(INT), sends(INT, "on_train_batch_start", lambda t: t.progress.batch == 3)]
        checkpoint = ModelCheckpoint(tmp_path)
        trainer = quiet_trainer(accumulate_grad_batches=8, enable_checkpointing=True, callbacks=[*both, checkpoint])
        with pytest.raises(SystemExit) as caught:
            trainer.fit(Net(), batches(10))
        assert caught.value.code == 130
        assert trainer.progress.batch == 3
        assert os.listdir(tmp_path) == []  # the state within a window cannot be saved

    def test_what_was_saved_goes_on_as_if_nothing_had_happened(self, tmp_path, caplog):
        checkpoint = ModelCheckpoint(tmp_path, save_top_k=0)
        trainer = quiet_trainer(
            accumulate_grad_batches=2, enable_checkpointing=True, callbacks=[sends(TERM), checkpoint]
        )
        with caplog.at_level("INFO", logger="lightlib"), pytest.raises(SystemExit):
            trainer.fit(Net(), batches(10))
        path = tmp_path / "interrupted.ckpt"
        assert (
            f'after 4 of its batches (global_step=2). To resume from there: trainer.fit(module, …, ckpt_path="{path}")'
            in caplog.text
        )
        resumed, whole = Net(), Net()
        quiet_trainer(accumulate_grad_batches=2, enable_checkpointing=True, callbacks=[ModelCheckpoint(tmp_path)]).fit(
            resumed, batches(10), ckpt_path=path
        )
        quiet_trainer(accumulate_grad_batches=2).fit(whole, batches(10))
        assert same_weights(resumed, whole)

    def test_without_a_checkpoint_callback_nothing_is_written(self, tmp_path, caplog):
        trainer = quiet_trainer(default_root_dir=tmp_path, callbacks=[sends(INT)])
        with caplog.at_level("INFO", logger="lightlib"), pytest.raises(SystemExit):
            trainer.fit(Net(), batches(10))
        assert "No checkpoint was written, so a new run starts from nothing" in caplog.text
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize(("interval", "batch"), [(2, 2), (3, 4)])  # between two windows, and within one
    def test_in_a_validation_as_soon_as_nothing_is_lost(self, tmp_path, interval, batch):
        seen = []

        sees = subclass(Steps, validation_step=lambda self, batch, batch_idx: seen.append(batch_idx))
        arguments = {"accumulate_grad_batches": 2, "val_check_interval": interval, "enable_checkpointing": True}
        sender = sends(INT, "on_validation_batch_start", lambda trainer: trainer.progress.batch == interval)
        trainer = quiet_trainer(**arguments, callbacks=[sender, ModelCheckpoint(tmp_path, save_top_k=0)])
        with pytest.raises(SystemExit):
            trainer.fit(sees(), batches(8), batches(4))
        assert trainer.progress.batch == batch
        assert seen == ([0] if interval == 2 else [0, 1, 2, 3])
        resumed, whole = sees(), sees()
        quiet_trainer(**arguments, callbacks=[ModelCheckpoint(tmp_path, save_top_k=0)]).fit(
            resumed, batches(8), batches(4), ckpt_path=tmp_path / "interrupted.ckpt"
        )
        quiet_trainer(**{**arguments, "enable_checkpointing": False}).fit(whole, batches(8), batches(4))
        assert same_weights(resumed, whole)

    def test_in_the_sanity_check_there_is_nothing_to_save_yet(self, tmp_path):
        sender = sends(INT, "on_validation_batch_end", lambda trainer: trainer.sanity_checking)
        arguments = {"num_sanity_val_steps": 2, "enable_checkpointing": True}
        trainer = quiet_trainer(**arguments, callbacks=[sender, ModelCheckpoint(tmp_path)])
        with pytest.raises(SystemExit) as caught:
            trainer.fit(Steps(), batches(4), batches(4))
        assert caught.value.code == CODES[INT]
        assert os.listdir(tmp_path) == []

    def test_a_callback_with_a_state_that_counts_validation_batches_has_the_validation_end_first(self, tmp_path):
        class Counts(Callback):
            seen = 0

            def on_validation_batch_end(self, *args):
                self.seen += 1

            def state_dict(self):
                return {"seen": self.seen}

            def load_state_dict(self, state):
                self.seen = state["seen"]

        arguments = {"val_check_interval": 2, "enable_checkpointing": True}
        sender = sends(INT, "on_validation_batch_start", lambda trainer: trainer.progress.batch == 4)
        first, then, whole = Counts(), Counts(), Counts()
        trainer = quiet_trainer(**arguments, callbacks=[sender, first, ModelCheckpoint(tmp_path, save_top_k=0)])
        with pytest.raises(SystemExit):
            trainer.fit(Steps(), batches(8), batches(3))
        assert first.seen == 6
        again = quiet_trainer(**arguments, callbacks=[then, ModelCheckpoint(tmp_path, save_top_k=0)])
        again.fit(Steps(), batches(8), batches(3), ckpt_path="auto")
        quiet_trainer(**{**arguments, "enable_checkpointing": False}, callbacks=[whole]).fit(
            Steps(), batches(8), batches(3)
        )
        assert then.seen == whole.seen == 12

    def test_weights_that_are_swapped_in_for_a_validation_are_not_saved(self, tmp_path):
        class Averages(Callback):
            def on_validation_start(self, trainer, module):
                self.kept = [p.detach().clone() for p in module.parameters()]
                for p in module.parameters():
                    p.data.zero_()

            def on_validation_end(self, trainer, module):
                for p, kept in zip(module.parameters(), self.kept, strict=True):
                    p.data.copy_(kept)

        arguments = {"val_check_interval": 2, "enable_checkpointing": True}
        sender = sends(INT, "on_validation_batch_start", lambda trainer: trainer.progress.batch == 4)
        callbacks = [sender, Averages(), ModelCheckpoint(tmp_path, save_top_k=0)]
        with pytest.raises(SystemExit):
            quiet_trainer(**arguments, callbacks=callbacks).fit(Steps(), batches(8), batches(3))
        saved = torch.load(tmp_path / "interrupted.ckpt")["state_dict"]
        assert any(value.abs().sum() > 0 for value in saved.values())

    @pytest.mark.parametrize("verb", ["validate", "test", "predict"])
    def test_outside_of_training_between_two_batches(self, verb):
        stage = {"validate": "validation"}.get(verb, verb)
        trainer = quiet_trainer(callbacks=[sends(INT, f"on_{stage}_batch_start", lambda trainer: True)])
        with pytest.raises(SystemExit) as caught:
            getattr(trainer, verb)(Steps(), batches(4))
        assert caught.value.code == 130
        assert torch.is_grad_enabled()

    @pytest.mark.parametrize("number", [INT, TERM])
    def test_a_signal_as_the_run_ends_ends_the_program_after_it(self, number, tmp_path, caplog):
        callbacks = [sends(number, "on_fit_end", lambda trainer: True), ModelCheckpoint(tmp_path, save_last=True)]
        trainer = quiet_trainer(enable_checkpointing=True, callbacks=callbacks)
        with caplog.at_level("INFO", logger="lightlib"), pytest.raises(SystemExit) as caught:
            trainer.fit(Net(), batches(4))
        assert caught.value.code == CODES[number]
        assert (trainer.state.status, trainer.progress.batch) == ("finished", 4)
        last = tmp_path / "last.ckpt"
        assert f'To resume from the last checkpoint: trainer.fit(module, …, ckpt_path="{last}")' in caplog.text
        assert sorted(os.listdir(tmp_path)) == ["epoch=0-step=4.ckpt", "last.ckpt"]

    def test_a_second_interrupt_as_the_run_ends_is_obeyed_at_once(self):
        told = []
        both = [sends(INT, "on_fit_end", lambda trainer: True) for _ in range(2)]
        trainer = quiet_trainer(callbacks=[*both, on(on_exception=lambda t, m, error: told.append(type(error)))])
        with pytest.raises(SystemExit) as caught:
            trainer.fit(Net(), batches(4))
        assert (caught.value.code, told) == (130, [KeyboardInterrupt])

    @pytest.mark.parametrize("verb", ["validate", "test", "predict"])
    def test_a_signal_as_another_call_ends(self, verb):
        stage = {"validate": "validation"}.get(verb, verb)
        trainer = quiet_trainer(callbacks=[sends(TERM, f"on_{stage}_end", lambda trainer: True)])
        with pytest.raises(SystemExit) as caught:
            getattr(trainer, verb)(Steps(), batches(4))
        assert caught.value.code == 143

    def test_the_loggers_hear_of_it(self):
        class Hears(Keeps):
            def finalize(self, status):
                statuses.append(status)

        statuses = []
        with pytest.raises(SystemExit):
            quiet_trainer(logger=Hears(), callbacks=[sends(TERM)]).fit(Net(), batches(10))
        assert statuses == ["interrupted"]

    def test_the_data_module_hears_of_it(self):
        class Hears(Data):
            def on_exception(self, exception):
                heard.append(type(exception))

            def teardown(self, stage):
                heard.append(stage)

        heard = []
        with pytest.raises(SystemExit):
            quiet_trainer(callbacks=[sends(INT, when=lambda t: True)]).fit(Steps(), datamodule=Hears())
        assert heard == [KeyboardInterrupt, "fit"]

    def test_the_trainer_can_be_used_again(self):
        module, whole = Net(), Net()
        trainer = quiet_trainer(callbacks=[sends(INT)])
        with pytest.raises(SystemExit):
            trainer.fit(module, batches(10))
        trainer.fit(module, batches(10))
        quiet_trainer().fit(whole, batches(10))
        assert same_weights(module, whole)
        assert not trainer.interrupted

    def test_a_handler_of_the_users_own_is_called_and_the_run_stops(self):
        got = []
        signal.signal(INT, lambda *_: got.append(True))
        trainer = quiet_trainer(callbacks=[sends(INT)])
        with pytest.raises(SystemExit):
            trainer.fit(Net(), batches(5))
        assert got == [True]
        assert trainer.interrupted

    def test_an_interrupt_while_the_run_is_built(self):
        class Interrupts(Callback):
            def setup(self, trainer, pl_module, stage):
                raise KeyboardInterrupt

        trainer = quiet_trainer(callbacks=[Interrupts()])
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(Net(), batches(1))
        assert trainer.interrupted


class TestInANotebook:
    @pytest.fixture(autouse=True)
    def notebook(self, monkeypatch):
        monkeypatch.setattr(sys, "ps1", "In : ", raising=False)

    def test_an_interrupted_fit_returns_with_what_was_trained(self, tmp_path, caplog):
        module, whole = Net(), Net()
        checkpoint = ModelCheckpoint(tmp_path, save_top_k=0)
        trainer = quiet_trainer(callbacks=[sends(INT), checkpoint], enable_checkpointing=True)
        with caplog.at_level("INFO", logger="lightlib"):
            trainer.fit(module, batches(10))
        assert (trainer.interrupted, trainer.state.status, trainer.global_step) == (True, "interrupted", 3)
        assert "interrupted.ckpt" in caplog.text
        quiet_trainer().fit(whole, batches(10)[:3])
        assert same_weights(module, whole)
        assert os.listdir(tmp_path) == ["interrupted.ckpt"]

    def test_one_that_came_too_late_to_stop_anything_is_noted(self):
        trainer = quiet_trainer(callbacks=[sends(INT, "on_fit_end", lambda t: True)])
        trainer.fit(Net(), batches(2))
        assert (trainer.interrupted, trainer.state.status) == (True, "finished")

    def test_a_second_interrupt_raises(self):
        both = [sends(INT), sends(INT, "on_train_batch_start", lambda t: t.progress.batch == 3)]
        trainer = quiet_trainer(accumulate_grad_batches=8, callbacks=both)
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(Net(), batches(10))
        assert trainer.interrupted

    def test_calls_that_return_something_raise(self):
        trainer = quiet_trainer(callbacks=[sends(INT, "on_test_batch_end", lambda t: True)])
        with pytest.raises(KeyboardInterrupt):
            trainer.test(Steps(), batches(4), verbose=False)

    def test_a_launcher_that_ends_the_process_ends_it(self):
        trainer = quiet_trainer(callbacks=[sends(TERM)])
        with pytest.raises(SystemExit) as caught:
            trainer.fit(Net(), batches(10))
        assert caught.value.code == 143

    def test_processes_that_hold_what_was_trained_raise(self, monkeypatch):
        def interrupted(*_):
            raise SystemExit(130)

        monkeypatch.setattr(spawned, "launch_function", interrupted)
        trainer = quiet_trainer(devices=2, strategy="ddp_notebook")
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(Net(), batches(2))
        assert (trainer.interrupted, trainer.state.status) == (True, "interrupted")
        monkeypatch.delattr(sys, "ps1")
        with pytest.raises(SystemExit):
            trainer.fit(Net(), batches(2))
        assert (trainer.interrupted, trainer.state.status) == (True, "interrupted")

    def test_under_a_launcher_with_one_process_it_returns_as_well(self, monkeypatch):
        for name in ("RANK", "LOCAL_RANK"):
            monkeypatch.setenv(name, "0")
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            monkeypatch.setenv(name, "1")
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", "29500")
        trainer = quiet_trainer(callbacks=[sends(INT)])
        trainer.fit(Net(), batches(10))
        assert trainer.interrupted
