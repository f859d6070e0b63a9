"""Fanout: calls all loggers, and reports their exceptions without ending the training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lightlib.report import rank_zero_only, warn

if TYPE_CHECKING:
    from torch import nn

    from lightlib.loggers.logger import Logger
    from lightlib.loggers.media.items import Media


class Fanout:
    """All loggers of a run as one. False when there are none.

    The first exception of each method of a logger is reported. The remaining loggers are still called, training
    continues, and the logger is called again next time. The number of failures is reported at the end.

    Example:
        >>> from lightlib.loggers.logger import DummyLogger
        >>> fanout = Fanout([DummyLogger()])
        >>> fanout.log_metrics({"loss": 0.5}, 0)
        >>> bool(fanout), bool(Fanout([]))
        (True, False)
    """

    def __init__(self, loggers: Sequence[Logger]) -> None:
        super().__init__()
        self.loggers = tuple(loggers)
        self._failures: Counter[tuple[int, str]] = Counter()
        self._unrecorded: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self.loggers)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None) -> None:
        """Pass the metrics of a step to each logger."""
        self._call("log_metrics", metrics, step)

    def log_hyperparams(self, params: Any) -> None:
        """Pass the hyperparameters to each logger."""
        self._call("log_hyperparams", params)

    def log_graph(self, model: nn.Module, input_array: Any = None) -> None:
        """Pass the module to each logger, to draw its graph."""
        self._call("log_graph", model, input_array)

    def log_media(self, name: str, media: Media, step: int | None) -> None:
        """Pass an item to each logger that records its kind; warn once for a kind that none of them records."""
        takers = [logger for logger in self.loggers if isinstance(media, logger.media_kinds)]
        for logger in takers:
            self._try(logger, "log_media", name, media, step)
        kind = type(media).__name__
        if self.loggers and not takers and kind not in self._unrecorded:
            self._unrecorded.add(kind)
            loggers = ", ".join(type(logger).__name__ for logger in self.loggers)
            warn(
                f"The {kind} {name!r} is not recorded, nor is any other {kind}: {loggers} cannot.\n"
                "  Fix: add a logger that can, for example TensorBoardLogger or CSVLogger."
            )

    def save(self) -> None:
        """Let each logger write its buffered values."""
        self._call("save")

    def finalize(self, status: str) -> None:
        """Finalize all loggers with the status of the run, and report how often each has failed."""
        self._call("finalize", status)
        for (index, method), failures in self._failures.items():
            if failures > 1:
                warn(f"{type(self.loggers[index]).__name__}.{method} failed {failures} times in this run.")
        self._failures.clear()

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Notify each logger that `checkpoint_callback` has saved a checkpoint."""
        self._call("after_save_checkpoint", checkpoint_callback)

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the position of each logger, as plain values for a checkpoint; an empty list off rank zero.

        Call `save` first: the state describes the files on disk.
        """
        if rank_zero_only.rank != 0:
            return []
        states = [(logger, self._try(logger, "state_dict")) for logger in self.loggers]
        return [{"logger": type(logger).__name__, "state": {} if state is None else state} for logger, state in states]

    def load_state_dict(self, states: Any) -> None:
        """Restore the position of each logger; call it on all processes, before `Logger.prepare`.

        Args:
            states: What `state_dict` returned; None when the checkpoint has no such states. Loggers and states are
                matched by class, in order.
        """
        if rank_zero_only.rank != 0:
            return
        unused = [state for state in states or [] if isinstance(state, Mapping)]
        for logger in self.loggers:
            saved = next((state for state in unused if state.get("logger") == type(logger).__name__), None)
            if saved is None:
                continue
            unused.remove(saved)
            if saved.get("state"):
                self._try(logger, "load_state_dict", saved["state"])

    def start_anew(self) -> None:
        """Let all loggers move the logs of an earlier start out of the way; call it before `Logger.prepare`."""
        if rank_zero_only.rank == 0:
            self._call("start_anew")

    def targets(self, method: str) -> list[tuple[Callable[..., Any], Callable[[Exception], None]]]:
        """Return `method` of each logger, and the call that reports an exception of it."""
        return [(getattr(logger, method), partial(self._report, logger, method)) for logger in self.loggers]

    def _call(self, method: str, *arguments: Any) -> None:
        for logger in self.loggers:
            self._try(logger, method, *arguments)

    def _try(self, logger: Logger, method: str, *arguments: Any) -> Any:
        try:
            return getattr(logger, method)(*arguments)
        except Exception as error:  # noqa: BLE001 - a logger may raise anything
            self._report(logger, method, error)

    def _report(self, logger: Logger, method: str, error: Exception) -> None:
        key = (self.loggers.index(logger), method)
        self._failures[key] += 1
        if self._failures[key] == 1:
            warn(
                f"{type(logger).__name__}.{method} raised {type(error).__name__}: {error}\n"
                "  Training continues without these values, and this logger is called again next time. Further "
                "failures of this kind are counted, and reported at the end of the run."
            )
