"""LogHandlers: handlers of `logging` made before a bar write above it while it is shown."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any


class LogHandlers:
    """Redirects the output of handlers to another stream for a while.

    A handler keeps hold of the stream that it was made with, so it does not see that a bar has replaced `sys.stderr`.
    It would write into the line of the bar, which is then drawn over.

    Example:
        >>> import io
        >>> terminal, above = io.StringIO(), io.StringIO()
        >>> handler, handlers = logging.StreamHandler(terminal), LogHandlers()
        >>> logging.getLogger("example").addHandler(handler)
        >>> handlers.redirect(terminal, above)
        >>> handler.stream is above
        True
        >>> handlers.restore()
        >>> handler.stream is terminal
        True
    """

    def __init__(self) -> None:
        self._moved: list[tuple[Any, Any, Any]] = []

    def redirect(self, old: Any, new: Any) -> None:
        """Let all handlers that write to `old` write to `new`."""
        for handler in _handlers():
            if handler.stream is old:
                handler.setStream(new)
                self._moved.append((handler, old, new))

    def restore(self) -> None:
        """Let them write where they wrote before, unless that has been changed since."""
        while self._moved:
            handler, old, new = self._moved.pop()
            if handler.stream is new:
                handler.setStream(old)


def _handlers() -> Iterator[Any]:
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):  # a name that only its children have made has none
            if isinstance(handler, logging.StreamHandler):
                yield handler
