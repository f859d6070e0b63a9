"""ServiceLogger: base of loggers that open and call their client in the background."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from lightlib.loggers.background_calls import PATIENCE, BackgroundCalls
from lightlib.loggers.hyperparameters import flatten
from lightlib.loggers.logger import Logger, number, prefixed, rank_zero_experiment
from lightlib.loggers.media.items import Media
from lightlib.report import rank_zero_only


class ServiceLogger(Logger, ABC):
    """A logger of a service.

    A subclass opens the client in `_open` and calls it in the methods with an underscore. They run in a thread of their
    own, one after the other. So no method of the logger waits longer than a second: if the service is slow or cannot be
    reached, training continues. An exception is reported by the next call, once. When the program ends, calls that have
    not been made get ten seconds more.

    Args:
        prefix: Put before every metric's name, with a ``-``.
    """

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix
        self._client: Any = None
        self._calls = BackgroundCalls(type(self).__name__)

    @abstractmethod
    def _check(self) -> None:
        """Import the package of the client, or raise the error that names it."""

    @abstractmethod
    def _open(self) -> Any:
        """Return the client, with a new run or the one to continue."""

    @abstractmethod
    def _metrics(self, client: Any, metrics: dict[str, float], step: int | None) -> None:
        """Record numbers."""

    @abstractmethod
    def _hyperparameters(self, client: Any, params: dict[str, Any]) -> None:
        """Record flat hyperparameters, without secrets."""

    @abstractmethod
    def _close(self, client: Any, status: str) -> None:
        """End the run; it may be continued."""

    def _media(self, client: Any, name: str, media: Media, step: int | None) -> None:
        """Record one of `media_kinds`."""

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The client's object. Its first use waits for the service, without a limit."""
        if self._client is None:
            self._calls.add(self._opened)
            self._calls.wait(None)
            self._calls.check()
        return self._client

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the service has all values, at most so many seconds, and return whether it has."""
        return self._calls.wait(seconds)

    @rank_zero_only
    def prepare(self) -> None:
        """Check that the package is installed, and begin to open the client."""
        self._check()
        self._calls.add(self._opened)
        self._calls.wait(PATIENCE)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record numbers; the service gets them in the background."""
        values = {name: number(name, value) for name, value in prefixed(metrics, self._prefix).items()}
        self._calls.add(lambda: self._metrics(self._opened(), values, step))

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Record `params`, flattened, with secrets masked."""
        values = dict(flatten(params))
        self._calls.add(lambda: self._hyperparameters(self._opened(), values))

    @rank_zero_only
    def log_media(self, name: str, media: Media, step: int | None = None) -> None:
        """Record one of `media_kinds`."""
        self._calls.add(lambda: self._media(self._opened(), name, media, step))

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run, and wait a second for the service. Used again, the logger continues the run."""
        if self._client is not None or self._calls.num_waiting:
            self._calls.add(lambda: self._closed(status))
            self._calls.finish()

    def _opened(self) -> Any:
        if self._client is None:
            self._client = self._open()
        return self._client

    def _closed(self, status: str) -> None:
        client, self._client = self._client, None
        if client is not None:
            self._close(client, status)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}
