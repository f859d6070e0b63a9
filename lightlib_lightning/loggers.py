"""Lightning's loggers under compat: their levels and handlers hold for messages of lightlib."""

from __future__ import annotations

import logging
import sys
from typing import Any

from lightlib import report

__all__ = ["connect", "disconnect", "formatter", "log"]

formatter = logging.Formatter("%(levelname)s: %(message)s")
log = logging.getLogger("lightning")  # that of a module has its name, such as lightning.pytorch.callbacks.timer
_ROOTS = ("lightning", "lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric")
_LOGGERS = [logging.getLogger(name) for name in _ROOTS]
# Those by which Lightning reports; programs set their levels, too.
_REPORTING = [logging.getLogger(f"{name}.utilities.rank_zero") for name in _ROOTS[1:]]
_THEIRS = "lightning_utilities.core.rank_zero"  # rank_zero_info and the like, for Lightning and for programs
_added: list[logging.Handler] = []
_leveled: list[logging.Logger] = []


class _Levels(logging.Filter):
    """Drops messages below the level of any logger of Lightning's."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a message of lightlib's is shown."""
        return not any(
            logger.disabled or logger.level > max(record.levelno, logging.INFO) for logger in (*_LOGGERS, *_REPORTING)
        )


class _ToHandlers(logging.Handler):
    """Hands messages of lightlib's to the handlers that the program has added to Lightning's loggers."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one message on."""
        handlers = [*_added, *report.log.handlers, *(logging.getLogger().handlers if report.log.propagate else ())]
        for handler in dict.fromkeys(each for logger in (*_LOGGERS, *_REPORTING) for each in logger.handlers):
            if handler not in handlers and record.levelno >= handler.level:
                handler.handle(record)


_levels, _to_handlers = _Levels(), _ToHandlers()


def connect() -> None:
    """Show messages of Lightning's loggers, as Lightning does, and apply their levels to those of lightlib."""
    report.log.addFilter(_levels)
    report.log.addHandler(_to_handlers)
    for logger in _LOGGERS:
        if logger.level == logging.NOTSET:  # the program has not chosen one
            logger.setLevel(logging.INFO)
            _leveled.append(logger)
        if logger.parent is logging.root and not logging.root.handlers and not logger.handlers:
            _added.append(report.ToStderr())
            logger.addHandler(_added[-1])
            logger.propagate = False
    _log_by("lightning.pytorch.utilities.rank_zero")


def disconnect() -> None:
    """Undo :func:`connect`; settings of the program stay."""
    report.log.removeFilter(_levels)
    report.log.removeHandler(_to_handlers)
    for logger in _LOGGERS:
        if logger in _leveled and logger.level == logging.INFO:
            logger.setLevel(logging.NOTSET)
        for handler in [handler for handler in logger.handlers if handler in _added]:
            logger.removeHandler(handler)
            logger.propagate = True
    _added.clear()
    _leveled.clear()
    _log_by(_THEIRS)


def _log_by(name: str) -> None:
    rank_zero: Any = sys.modules.get(_THEIRS)
    if rank_zero is not None:
        rank_zero.log = logging.getLogger(name)
