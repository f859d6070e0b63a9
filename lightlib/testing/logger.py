"""check_logger: the tests that every logger has to pass."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from lightlib.core.trainer import Trainer
from lightlib.loggers.logger import Logger
from lightlib.testing.kit import Kit
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
    LoggerKit.run(make_logger)


@dataclasses.dataclass
class _Options:
    width: int = 3


def _close(logger: Logger) -> None:
    with contextlib.suppress(Exception):  # the check "finalizes" reports it
        logger.finalize("success")


class LoggerKit(Kit):
    """The checks of `check_logger`."""

    kind, base, documentation = "logger", Logger, check_logger.__doc__

    def new(self) -> Logger:
        """Return a new logger, which is closed after the check."""
        logger: Logger = self.made(self.folder)
        self.stack.callback(_close, logger)
        return logger

    def ready(self) -> Logger:
        """Return a new logger that was prepared, as before a run."""
        logger = self.new()
        self.call(logger, "prepare")
        return logger

    def call_with(self, logger: Logger, method: str, values: Mapping[str, Any], *arguments: Any) -> None:
        """Call a method with a mapping, which it must leave unchanged."""
        passed = copy.deepcopy(values)
        self.call(logger, method, passed, *arguments)
        problem = f"{type(logger).__name__}.{method} changed its argument from {values!r} to {passed!r}."
        fix = "copy the mapping before you change it: every logger of a Trainer gets the same one."
        assert list(passed.items()) == list(values.items()), self.unmet(problem, fix)

    def test_members(self) -> None:
        logger = self.ready()
        self.call(logger, "log_metrics", {"loss": 1.0}, 0)
        texts = (str, type(None))
        for member, types in {"name": texts, "version": (int, *texts), "save_dir": texts}.items():
            member_name, value = f"{type(logger).__name__}.{member}", getattr(logger, member)
            self.typed(
                member_name, value, *types, fix="let the property `{}` return {}; is it decorated with @property?"
            )
            self.constant(member_name, value, getattr(logger, member))

    def test_metrics(self) -> None:
        logger = self.ready()
        calls: tuple[tuple[dict[str, float], int | None], ...] = (
            ({"loss": 0.5}, 0),
            ({"loss": 0.25, "val/accuracy": 1.0}, 1),
            ({"val/accuracy": math.nan, "loss": math.inf}, 50),
            ({"epoch": 1}, 50),
            ({"loss": -math.inf}, None),
            ({}, 51),
        )
        for metrics, step in calls:
            self.call_with(logger, "log_metrics", metrics, step)
        self.call(logger, "log_metrics", MappingProxyType({"loss": 0.125}), 52)
        self.call(logger, "save")
        self.call(logger, "save")

    def test_hyperparameters(self) -> None:
        logger = self.ready()
        nested = {"lr": 0.1, "layers": [1, 2], "model": {"width": 3, "activation": torch.relu}, "nothing": None}
        self.call_with(logger, "log_hyperparams", nested)
        for params in (Namespace(lr=0.1, path=Path("data")), _Options(), {}, {"tensor": torch.zeros(2)}):
            self.call(logger, "log_hyperparams", params)
        self.call(logger, "save")

    def test_finalizes(self) -> None:
        for status in ("success", "failed"):
            self.call(self.ready(), "finalize", status)
            logger = self.ready()
            for step in range(2):
                self.call(logger, "log_metrics", {"loss": 1.0}, step)
                self.call(logger, "finalize", status)
            self.call(logger, "finalize", status)

    def test_state(self) -> None:
        logger = self.ready()
        self.call(logger, "log_metrics", {"loss": 1.0}, 0)
        self.call(logger, "save")
        state, call = self.call(logger, "state_dict"), f"{type(logger).__name__}.state_dict()"
        loaded = self.through_file(call, state, "return plain values from which load_state_dict restores the rest.")
        self.typed(call, state, dict, fix="return {{}} if there is no state.")
        resumed = self.new()
        if loaded:
            self.call(resumed, "load_state_dict", loaded)
        self.call(resumed, "prepare")
        self.call(resumed, "log_metrics", {"loss": 0.5}, 1)
        self.call(resumed, "finalize", "success")

    def test_fits(self) -> None:
        logger = self.new()
        options = {**QUIET, "accelerator": "cpu", "devices": 1, "default_root_dir": str(self.folder)}
        options |= {"max_epochs": 2, "log_every_n_steps": 1, "enable_checkpointing": True}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Trainer(**{**options, "logger": logger}).fit(BoringModule())
        for text in (str(warning.message).partition("\n")[0] for warning in caught):
            failed = text.startswith(f"{type(logger).__name__}.")
            assert not failed, self.unmet(text, "handle the call that the first line names.")
