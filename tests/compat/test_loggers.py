"""Lightning's loggers under compat: levels silence lightlib, and handlers receive its messages."""

from __future__ import annotations

import io
import logging

import pytest

from lightlib import compat, report
from lightlib_lightning import loggers

NAMES = ["lightning", "lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric"]


@pytest.fixture(autouse=True)
def as_lightning():
    """Install compat, with the levels that loggers have in a new process."""
    loggers_used = [report.log, *map(logging.getLogger, NAMES)]
    before = [logger.level for logger in loggers_used]
    for logger in loggers_used:
        logger.setLevel(logging.INFO if logger is report.log else logging.NOTSET)
    compat.install()
    yield
    compat.uninstall()
    for logger, level in zip(loggers_used, before, strict=True):
        logger.setLevel(level)


@pytest.fixture
def shown():
    """Return a stream that receives the messages of lightlib."""
    stream, handler = io.StringIO(), None
    handler = logging.StreamHandler(stream)
    before = report.log.level
    report.log.setLevel(logging.INFO)
    report.log.addHandler(handler)
    yield stream
    report.log.removeHandler(handler)
    report.log.setLevel(before)


def at(name, level):
    """Set a level for one test; return the function that restores it."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    return lambda: logger.setLevel(before)


def test_lightlib_reports_without_a_level(shown):
    report.info("a message")
    assert shown.getvalue() == "a message\n"


@pytest.mark.parametrize(
    "name", [*NAMES, "lightning.pytorch.utilities.rank_zero", "pytorch_lightning.utilities.rank_zero"]
)
def test_a_level_of_any_logger_of_lightnings_silences_lightlib(shown, name):
    restore = at(name, logging.ERROR)
    try:
        report.info("a message")
        assert shown.getvalue() == ""
        report.log.error("an error")
        assert shown.getvalue() == "an error\n"
    finally:
        restore()


def test_a_disabled_logger_silences_lightlib(shown):
    logger = logging.getLogger("lightning.pytorch")
    logger.disabled = True
    try:
        report.info("a message")
        assert shown.getvalue() == ""
    finally:
        logger.disabled = False


def test_without_compat_the_levels_do_not_hold(shown):
    compat.uninstall()
    restore = at("lightning.pytorch", logging.ERROR)
    try:
        report.info("a message")
        assert shown.getvalue() == "a message\n"
    finally:
        restore()


def test_a_handler_of_the_program_receives_what_lightlib_logs_once():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    added = [logging.getLogger(name) for name in ("lightning.pytorch", "pytorch_lightning")]
    for logger in added:
        logger.addHandler(handler)
    try:
        report.log.warning("a message")
        assert stream.getvalue() == "a message\n"
        handler.setLevel(logging.ERROR)
        report.log.warning("another")
        assert stream.getvalue() == "a message\n"
    finally:
        for logger in added:
            logger.removeHandler(handler)


def test_a_handler_that_is_lightlibs_too_receives_a_message_once(shown):
    handler = report.log.handlers[-1]
    logger = logging.getLogger("lightning.pytorch")
    logger.addHandler(handler)
    try:
        report.info("a message")
        assert shown.getvalue() == "a message\n"
    finally:
        logger.removeHandler(handler)


def test_what_a_program_reports_by_lightnings_functions_is_logged():
    from lightning.pytorch.utilities.rank_zero import rank_zero_info

    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("lightning.pytorch")
    logger.addHandler(handler)
    try:
        rank_zero_info("from the program")
        assert stream.getvalue() == "from the program\n"
    finally:
        logger.removeHandler(handler)


def test_all_is_as_before_afterwards():
    compat.uninstall()
    before = [(logger.level, logger.propagate, list(logger.handlers)) for logger in map(logging.getLogger, NAMES)]
    filters, handlers = list(report.log.filters), list(report.log.handlers)
    compat.install()
    assert all(logging.getLogger(name).level == logging.INFO for name in NAMES)
    compat.uninstall()
    assert before == [
        (logger.level, logger.propagate, list(logger.handlers)) for logger in map(logging.getLogger, NAMES)
    ]
    assert (filters, handlers) == (report.log.filters, report.log.handlers)


def test_without_handlers_of_the_program_messages_go_to_stderr(monkeypatch, capsys):
    compat.uninstall()
    monkeypatch.setattr(logging.root, "handlers", [])
    loggers.connect()
    try:
        logging.getLogger("lightning.pytorch.callbacks.timer").info("from a callback")
        logging.getLogger("pytorch_lightning").info("by the old name")
    finally:
        loggers.disconnect()
    assert capsys.readouterr().err == "from a callback\nby the old name\n"
