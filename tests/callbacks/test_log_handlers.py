"""Log handlers that were made before a bar: their complete lines appear above it."""

from __future__ import annotations

import copy
import io
import logging
import pickle
import sys
import types

import pytest

from lightlib import report
from lightlib.callbacks.log_handlers import LogHandlers
from lightlib.callbacks.progress.progress_bar import RichProgressBar, TQDMProgressBar
from lightlib.errors import MisconfigurationException
from tests.callbacks.progress.test_progress_bar import MODULE, Clock, FakeTrainer, Terminal, clock, screen

__all__ = ["clock"]


@pytest.fixture
def open_terminal(monkeypatch):
    """Make one terminal for both streams, and its log handler before any bar."""
    logger = logging.getLogger("a.library")

    def make():
        shared = Terminal()
        monkeypatch.setattr(sys, "stdout", shared)
        monkeypatch.setattr(sys, "stderr", shared)
        logger.addHandler(logging.StreamHandler())
        return shared

    yield make
    logger.handlers.clear()


def rich():
    return RichProgressBar(console_kwargs={"force_terminal": True, "width": 100, "color_system": None})


@pytest.mark.parametrize("make", [rich, TQDMProgressBar])
def test_a_record_stands_above_the_bar_and_the_handler_is_given_back(clock: Clock, open_terminal, make) -> None:
    terminal = open_terminal()
    (handler,) = logging.getLogger("a.library").handlers
    bar, trainer = make(), FakeTrainer(clock)
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    for _ in range(3):
        trainer.batch(bar)
    logging.getLogger("a.library").warning("disk almost full")
    trainer.batch(bar)
    shown = [line for line in screen(terminal.getvalue()) if line]
    assert shown[0] == "disk almost full"
    assert [line[:9] for line in shown[1:]] == ["Epoch 1/3"]
    bar.teardown(trainer, MODULE, "fit")
    assert handler.stream is terminal


def test_the_messages_of_lightlib_stand_above_a_bar_of_tqdm(clock: Clock, open_terminal, monkeypatch, caplog) -> None:
    terminal, own = open_terminal(), report.ToStderr()
    monkeypatch.setattr(report.log, "handlers", [own])
    monkeypatch.setattr(report.log, "propagate", False)
    caplog.set_level(logging.INFO, logger="lightlib")
    bar, trainer = TQDMProgressBar(), FakeTrainer(clock)
    bar.setup(trainer, MODULE, "fit")
    bar.on_train_start(trainer, MODULE)
    trainer.batch(bar)
    trainer.batch(bar)
    report.info("a message")
    assert screen(terminal.getvalue())[0] == "a message"
    bar.teardown(trainer, MODULE, "fit")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert own.stream is sys.stderr  # it follows what stderr is at the moment, as before


def test_a_handler_that_got_another_stream_meanwhile_keeps_it():
    terminal, file = io.StringIO(), io.StringIO()
    handler, handlers = logging.StreamHandler(terminal), LogHandlers()
    logging.getLogger("a.library").addHandler(handler)
    try:
        handlers.redirect(terminal, io.StringIO())
        handler.setStream(file)
        handlers.restore()
        assert handler.stream is file
    finally:
        logging.getLogger("a.library").removeHandler(handler)


@pytest.mark.parametrize("make", [rich, TQDMProgressBar])
def test_a_bar_that_was_used_can_be_copied_and_pickled(clock: Clock, open_terminal, make) -> None:
    open_terminal()
    bar = make()
    FakeTrainer(clock).fit(bar)
    bar._trainer = None
    assert pickle.loads(pickle.dumps(bar)).leave is bar.leave
    FakeTrainer(clock).fit(copy.deepcopy(bar))


def test_bars_of_tqdm_can_be_read_after_the_run(clock: Clock, open_terminal) -> None:
    open_terminal()
    bar, trainer = TQDMProgressBar(), FakeTrainer(clock)
    trainer.sanity_checking = True
    bar.setup(trainer, MODULE, "fit")
    trainer.validate(bar, batches=2, seconds=0.001)
    assert (bar.val_progress_bar.n, bar.val_progress_bar.total) == (2, 2)
    trainer.sanity_checking = False
    trainer.fit(bar, validate=True)
    trainer.test(bar)
    assert (bar.train_progress_bar.n, bar.train_progress_bar.total) == (10, 10)
    assert (bar.val_progress_bar.n, bar.val_progress_bar.total) == (4, 4)
    assert bar.test_progress_bar.n == 6
    with pytest.raises(MisconfigurationException, match="The predict bar of TQDMProgressBar was read"):
        _ = bar.predict_progress_bar


def test_the_environment_can_make_tqdm_slower(monkeypatch):
    monkeypatch.setenv("TQDM_MINITERS", "5")
    assert [TQDMProgressBar(refresh_rate=n).refresh_rate for n in (1, 9, 0)] == [5, 9, 0]
    monkeypatch.setenv("TQDM_MINITERS", "often")
    with pytest.raises(MisconfigurationException, match=r"TQDM_MINITERS='often'(.|\n)*Fix: unset TQDM_MINITERS"):
        TQDMProgressBar()


def test_a_stream_that_does_not_know_whether_it_is_a_terminal_is_none(clock: Clock, monkeypatch) -> None:
    written: list[str] = []
    stream = types.SimpleNamespace(write=written.append, flush=lambda: None)
    monkeypatch.setattr(sys, "stdout", stream)
    FakeTrainer(clock).fit(TQDMProgressBar())
    assert "Epoch 3/3" in written[-2]
