"""check_logger: the tests that every logger has to pass."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from lightlib.core.trainer import Trainer
from lightlib.loggers.logger import Logger
from lightlib.testing.kit import check_class, failure, through_file
from lightlib.testing.module import QUIET, BoringModule


def check_logger(make_logger: Callable[[Path], Logger]) -> None:
    """Fail unless a logger meets the expectations of the Trainer.

    The checks, by name, each with a new logger and an empty folder:

    - ``"members"``: `name`, `version` and `save_dir` have the right types and the same value at each reading.
    - ``"metrics"``: `log_metrics` takes steps from 0 on, a step of None, metrics that appear later, and NaN and
      infinite values, and leaves the mapping unchanged.
    - ``"hyperparameters"``: `log_hyperparams` takes nested mappings, Namespaces, dataclasses and values that are
      neither numbers nor text, and leaves them unchanged.
    - ``"finalizes"``: `finalize` takes each status, twice, with and without metrics; the logger can be used again.
    - ``"state"``: `state_dict` is plain enough for a checkpoint, and a new logger takes it.
    - ``"fits"``: no method fails during a `Trainer.fit` that logs each step, validates and saves checkpoints.

    Args:
        make_logger: Returns a new logger that writes below the folder it gets, or to a test server.

    Raises:
        AssertionError: It names the check and the difference, what was expected, and how to fix it.

    Example:
        >>> from lightlib.loggers import CSVLogger
        >>> check_logger(CSVLogger)
    """
    for name, check in LOGGER_CHECKS.items():
        with tempfile.TemporaryDirectory(prefix="lightlib-", ignore_cleanup_errors=True) as folder:
            kit = _Kit(name, make_logger, Path(folder))
            try:
                check(kit)
            finally:
                kit.close()


@dataclasses.dataclass(frozen=True)
class _Kit:
    """Makes loggers for one check, and reports its failures."""

    check: str
    make_logger: Callable[[Path], Logger]
    folder: Path
    loggers: list[Logger] = dataclasses.field(default_factory=list)

    def close(self) -> None:
        """Close the loggers."""
        for logger in self.loggers:
            with contextlib.suppress(Exception):  # the check "finalizes" reports it
                logger.finalize("success")

    def new(self) -> Logger:
        """Return a new logger."""
        logger = self.make_logger(self.folder)
        check_class("logger", self.check, logger, Logger)
        self.loggers.append(logger)
        return logger

    def ready(self) -> Logger:
        """Return a new logger that was prepared, as before a run."""
        logger = self.new()
        self.call(logger, "prepare")
        return logger

    def call(self, logger: Logger, method: str, *arguments: Any) -> Any:
        """Call a method of the logger; an exception is a failure of the check."""
        try:
            return getattr(logger, method)(*arguments)
        except Exception as error:
            shown = ", ".join(map(repr, arguments))
            raise self.failure(
                f"{type(logger).__name__}.{method}({shown}) raised {type(error).__name__}: {error}",
                "the call to succeed; during training its exception would be a warning, and the values would be lost.",
                f"handle these arguments in {method}.",
            ) from error

    def check_unchanged(self, logger: Logger, method: str, given: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        """Fail if a method changed the mapping it was given."""
        if list(given.items()) != list(before.items()):
            raise self.failure(
                f"{type(logger).__name__}.{method} changed its argument from {before!r} to {given!r}.",
                "an unchanged mapping: every logger of a Trainer gets the same one.",
                "copy the mapping before you change it.",
            )

    def failure(self, what: str, expected: str, fix: str) -> AssertionError:
        """Return the error of a failed check, in three parts."""
        return failure("logger", self.check, what, expected, fix)


_MEMBERS: dict[str, tuple[type, ...]] = {
    "name": (str, type(None)),
    "version": (int, str, type(None)),
    "save_dir": (str, type(None)),
}


def _members(kit: _Kit) -> None:
    logger = kit.ready()
    kit.call(logger, "log_metrics", {"loss": 1.0}, 0)
    for member, types in _MEMBERS.items():
        value = getattr(logger, member)
        names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in types)
        if not isinstance(value, types) or isinstance(value, bool):
            raise kit.failure(
                f"{type(logger).__name__}.{member} is {value!r}, a {type(value).__name__}.",
                f"{names}.",
                f"let the property `{member}` return {names}; is it decorated with @property?",
            )
        again = getattr(logger, member)
        if again != value:
            raise kit.failure(
                f"{type(logger).__name__}.{member} was {value!r} and is now {again!r}.",
                "the same value at each reading: checkpoints are saved below it.",
                f"compute `{member}` once and store it.",
            )


def _metrics(kit: _Kit) -> None:
    logger = kit.ready()
    calls: list[tuple[dict[str, float], int | None]] = [
        ({"loss": 0.5}, 0),
        ({"loss": 0.25, "val/accuracy": 1.0}, 1),
        ({"val/accuracy": math.nan, "loss": math.inf}, 50),
        ({"epoch": 1}, 50),
        ({"loss": -math.inf}, None),
        ({}, 51),
    ]
    for metrics, step in calls:
        given = dict(metrics)
        kit.call(logger, "log_metrics", given, step)
        kit.check_unchanged(logger, "log_metrics", given, metrics)
    kit.call(logger, "log_metrics", MappingProxyType({"loss": 0.125}), 52)
    kit.call(logger, "save")
    kit.call(logger, "save")


@dataclasses.dataclass
class _Options:
    width: int = 3


def _hyperparameters(kit: _Kit) -> None:
    logger = kit.ready()
    nested = {"lr": 0.1, "layers": [1, 2], "model": {"width": 3, "activation": torch.relu}, "nothing": None}
    before = copy.deepcopy(nested)
    kit.call(logger, "log_hyperparams", nested)
    kit.check_unchanged(logger, "log_hyperparams", nested, before)
    for params in (Namespace(lr=0.1, path=Path("data")), _Options(), {}, {"tensor": torch.zeros(2)}):
        kit.call(logger, "log_hyperparams", params)
    kit.call(logger, "save")


def _finalizes(kit: _Kit) -> None:
    for status in ("success", "failed"):
        kit.call(kit.ready(), "finalize", status)
        logger = kit.ready()
        for step in range(2):
            kit.call(logger, "log_metrics", {"loss": 1.0}, step)
            kit.call(logger, "finalize", status)
        kit.call(logger, "finalize", status)


def _state(kit: _Kit) -> None:
    logger = kit.ready()
    kit.call(logger, "log_metrics", {"loss": 1.0}, 0)
    kit.call(logger, "save")
    state = kit.call(logger, "state_dict")
    try:
        loaded = through_file(state)
    except Exception as error:
        raise kit.failure(
            f"{type(logger).__name__}.state_dict() returned {state!r}, which a checkpoint cannot hold: {error}",
            "a dictionary of numbers, strings, lists and dictionaries.",
            "return plain values from which load_state_dict restores the rest.",
        ) from error
    if not isinstance(state, dict):
        raise kit.failure(
            f"{type(logger).__name__}.state_dict() returned {state!r}.",
            "a dictionary.",
            "return {} if there is no state.",
        )
    resumed = kit.new()
    if loaded:
        kit.call(resumed, "load_state_dict", loaded)
    kit.call(resumed, "prepare")
    kit.call(resumed, "log_metrics", {"loss": 0.5}, 1)
    kit.call(resumed, "finalize", "success")


def _fits(kit: _Kit) -> None:
    logger = kit.new()
    options = {**QUIET, "accelerator": "cpu", "devices": 1, "default_root_dir": str(kit.folder)}
    options |= {"max_epochs": 2, "log_every_n_steps": 1, "enable_checkpointing": True}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Trainer(**{**options, "logger": logger}).fit(BoringModule())
    for warning in caught:
        text = str(warning.message).partition("\n")[0]
        if text.startswith(f"{type(logger).__name__}."):
            raise kit.failure(
                text,
                "no exception in any call of the logger during Trainer.fit.",
                "handle the call that the first line names.",
            )


LOGGER_CHECKS: dict[str, Callable[[_Kit], None]] = {
    "members": _members,
    "metrics": _metrics,
    "hyperparameters": _hyperparameters,
    "finalizes": _finalizes,
    "state": _state,
    "fits": _fits,
}
