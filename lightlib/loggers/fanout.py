"""Fanout: hands everything to all loggers, and keeps what one of them raises away from the training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightlib.report import rank_zero_only, warn

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

    def state_dict(self) -> list[dict[str, Any]]:
        """Return where each logger is, as plain values for a checkpoint; an empty list off rank zero.

        Call `save` before: what is on disk then is what the state speaks of.
        """
        if rank_zero_only.rank != 0:
            return []
        states = []
        for logger in self.loggers:
            state: Any = {}
            try:
                state = logger.state_dict()
            except Exception as error:  # noqa: BLE001 - likewise
                self._report(logger, "state_dict", error)
            states.append({"logger": type(logger).__name__, "state": state})
        return states

    def load_state_dict(self, states: Any) -> None:
        """Let each logger go on where it was; call it on all processes, before `Logger.prepare`.

        Args:
            states: What `state_dict` returned; None when the checkpoint holds nothing of the kind. Each logger gets the
                state of one of the same class, the second of a class that of the second.
        """
        if rank_zero_only.rank != 0:
            return
        left = [one for one in states or [] if isinstance(one, Mapping)]
        for logger in self.loggers:
            found = next((one for one in left if one.get("logger") == type(logger).__name__), None)
            if found is None:
                continue
            left.remove(found)
            if not found.get("state"):
                continue
            try:
                logger.load_state_dict(found["state"])
            except Exception as error:  # noqa: BLE001 - likewise
                self._report(logger, "load_state_dict", error)

    def start_anew(self) -> None:
        """Let all loggers put aside what an earlier start of this run left; call it before `Logger.prepare`."""
        if rank_zero_only.rank == 0:
            self._call("start_anew")

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
