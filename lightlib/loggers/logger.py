"""Logger: base of the Trainer's loggers, which adds folders, checkpoints and resuming to FabricLogger."""

from __future__ import annotations

import contextlib
import functools
from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from lightlib import lazy, optional
from lightlib.errors import ArgumentTypeError
from lightlib.loggers.fabric_logger import FabricLogger
from lightlib.loggers.log_files import below
from lightlib.loggers.media.items import Media
from lightlib.report import rank_zero_only

L = TypeVar("L")
T = TypeVar("T")

ANOTHER_LOGGER = "use another logger, for example Trainer(logger=CSVLogger('logs'))"


class Logger(FabricLogger, ABC):
    """Base of all loggers. A logger of your own defines `name`, `version`, `log_metrics` and `log_hyperparams`.

    The Trainer calls `prepare` before training starts, `log_hyperparams` and `log_graph` once, `log_metrics` every
    ``log_every_n_steps`` optimizer steps and at the end of every epoch, `save` and `state_dict` with every checkpoint,
    and `finalize` at the end; `load_state_dict` before all of these when a run is resumed. An exception in any of these
    except `prepare` is reported and does not end the training.

    Example:
        >>> class Print(Logger):
        ...     name, version = "print", 0
        ...     def log_metrics(self, metrics, step=None):
        ...         print(step, dict(metrics))
        ...     def log_hyperparams(self, params, *args, **kwargs):
        ...         print(params)
        >>> Print().log_metrics({"loss": 0.5}, step=3)
        3 {'loss': 0.5}
    """

    @property
    def save_dir(self) -> str | None:
        """The directory under which this logger writes; None when it writes no files."""
        return None

    @property
    def earlier_log_dirs(self) -> list[str]:
        """The values of `log_dir` of earlier runs that a resumed run may continue; none if the user chose the run."""
        return []

    def run_dir(self, root: str) -> str | None:
        """Return the folder of this run's files, such as its checkpoints; None while it is unknown.

        It is `log_dir`; for a logger without one, it is made of `save_dir`, `name` and `version`, which may be methods.

        Args:
            root: Used instead of `save_dir`, when there is none.
        """
        if self.log_dir is not None:
            return self.log_dir
        parts: tuple[Any, ...] = self.name, self.version
        name, version = (value() if callable(value) else value for value in parts)
        if version in (None, ""):
            return None
        return below(self.save_dir or root, name, f"version_{version}" if isinstance(version, int) else version)

    def earlier_run_dirs(self, root: str) -> list[str]:
        """Return the values of `run_dir` of earlier runs that a resumed run may continue."""
        return self.earlier_log_dirs

    def prepare(self) -> None:
        """Make sure that this logger can write. Called on every process, before training starts.

        Raises:
            MisconfigurationException: It cannot: no permission, a missing package, no connection.
        """

    def share(self, broadcast: Callable[[Any], Any]) -> None:
        """Receive the values that only rank zero could choose, for example the version.

        Called on every process, after `prepare`; `broadcast(value)` returns rank zero's value everywhere.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this logger, as plain values for a checkpoint; called on rank zero, after `save`.

        A resumed run uses it to continue the same log, and to drop values that were logged after the checkpoint.
        """
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the position of a logger of this class; called on rank zero, before `prepare`.

        Drop the values that were logged after the checkpoint: the resumed run logs them again.
        """

    def start_anew(self) -> None:
        """Move the logs of an earlier start of this run out of the way: it left no checkpoint to resume from.

        Called on rank zero, before `prepare`.
        """

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Called after a `ModelCheckpoint` wrote a file; the logger may upload it."""


class DummyExperiment:
    """Accepts every call and does nothing; replaces `experiment` on all processes except rank zero."""

    def nop(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.nop

    def __getitem__(self, index: int) -> DummyExperiment:
        return self

    def __setitem__(self, *args: Any) -> None:
        """Do nothing."""


class DummyLogger(Logger):
    """A logger that accepts everything and records nothing; replaces the loggers in ``fast_dev_run``."""

    def __init__(self) -> None:
        super().__init__()
        self._experiment = DummyExperiment()

    @property
    def name(self) -> str:
        """``"DummyLogger"``."""
        return "DummyLogger"

    @property
    def version(self) -> str:
        """An empty string."""
        return ""

    @property
    def experiment(self) -> DummyExperiment:
        """An object that accepts every call."""
        return self._experiment

    def log_metrics(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    @property
    def media_kinds(self) -> tuple[type[Media], ...]:
        """All of them."""
        return (Media,)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._experiment.nop

    def __getitem__(self, index: int) -> DummyLogger:
        return self

    def __iter__(self) -> Iterator[None]:
        return iter(())


def rank_zero_experiment(fn: Callable[[L], T]) -> Callable[[L], T]:
    """Decorator of `experiment`: processes other than rank zero get an object that does nothing.

    Example:
        >>> class Board(DummyLogger):
        ...     @property
        ...     @rank_zero_experiment
        ...     def experiment(self):
        ...         return "the connection"
        >>> Board().experiment
        'the connection'
    """

    @functools.wraps(fn)
    def experiment(self: L) -> T:
        return fn(self) if rank_zero_only.rank == 0 else cast(T, DummyExperiment())

    return experiment


def prefixed(metrics: Mapping[str, Any], prefix: str) -> Mapping[str, Any]:
    """Return `metrics` with ``prefix-`` before every name.

    Example:
        >>> prefixed({"loss": 1.0}, "run")
        {'run-loss': 1.0}
    """
    return {f"{prefix}-{name}": value for name, value in metrics.items()} if prefix else metrics


def number(name: str, value: Any) -> float:
    """Return `value`, a number or something that holds exactly one, as a float; an int as it is.

    Raises:
        ArgumentTypeError: It is neither.

    Example:
        >>> number("epoch", 2), number("loss", True)
        (2, 1.0)
    """
    if type(value) is int:
        return value
    if not isinstance(value, (str, bytes)):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            return float(value)
    raise ArgumentTypeError(
        f"The metric {name!r} is {value!r}.",
        expected="a number, or a tensor with one element.",
        fix="log its mean or another single number; for images, text or tables use `logger.experiment`.",
    )


def load_client(module: str, logger: str) -> Any:
    """Import and return the client of a `logger`.

    Raises:
        MisconfigurationException: It cannot be imported.
    """
    return optional.load(module, logger, otherwise=ANOTHER_LOGGER)


if not TYPE_CHECKING:
    __getattr__ = lazy.translated_names(__name__)
