"""Fanout: hands everything to all loggers, and keeps what one of them raises away from the training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightlib.report import warn

if TYPE_CHECKING:
    from torch import nn

    from lightlib.loggers.logger import Logger

__all__ = ["Fanout"]


class Fanout:
    """All loggers of a run as one. False when there is none.

    A logger that raises is reported once for each of its methods; the others still get the call, the training goes on,
    and the logger is called again next time. How often it failed is said at the end.

    Example:
        >>> from lightlib.loggers.logger import DummyLogger
        >>> fanout = Fanout([DummyLogger()])
        >>> fanout.log_metrics({"loss": 0.5}, 0)
        >>> bool(fanout), bool(Fanout([]))
        (True, False)
    """

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self.loggers = tuple(loggers)
        self._failures: Counter[tuple[int, str]] = Counter()

    def __bool__(self) -> bool:
        return bool(self.loggers)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None) -> None:
        """Hand `metrics` to all loggers."""
        for logger in self.loggers:
            try:
                logger.log_metrics(metrics, step)
            except Exception as error:  # noqa: BLE001 - a logger may raise anything
                self._report(logger, "log_metrics", error)

    def log_hyperparams(self, params: Any) -> None:
        """Hand `params` to all loggers."""
        self._call("log_hyperparams", params)

    def log_graph(self, model: nn.Module, input_array: Any = None) -> None:
        """Hand `model` to all loggers."""
        self._call("log_graph", model, input_array)

    def save(self) -> None:
        """Let all loggers write what they still hold."""
        self._call("save")

    def finalize(self, status: str) -> None:
        """Tell all loggers that the run ends, and say how often each has failed."""
        self._call("finalize", status)
        for (index, method), failures in self._failures.items():
            if failures > 1:
                warn(f"{type(self.loggers[index]).__name__}.{method} failed {failures} times in this run.")
        self._failures.clear()

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Tell all loggers that a checkpoint has been written."""
        self._call("after_save_checkpoint", checkpoint_callback)

    def _call(self, method: str, *arguments: Any) -> None:
        for logger in self.loggers:
            try:
                getattr(logger, method)(*arguments)
            except Exception as error:  # noqa: BLE001 - likewise
                self._report(logger, method, error)

    def _report(self, logger: Logger, method: str, error: Exception) -> None:
        key = (self.loggers.index(logger), method)
        self._failures[key] += 1
        if self._failures[key] == 1:
            warn(
                f"{type(logger).__name__}.{method} raised {type(error).__name__}: {error}\n"
                "  The training goes on, without what this call would have logged, and this logger is called again "
                "next time. Further failures of this kind are counted, and told at the end of the run."
            )
