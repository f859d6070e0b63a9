"""`lightlib doctor --profile SCRIPT`: runs a program and shows where the time of its training goes."""

from __future__ import annotations

import logging
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lightlib import report
from lightlib.errors import MisconfigurationException

_MARK = "Where the time of training went"


def profile(words: Sequence[str], steps: int | None) -> int:
    """Run a script with the simple profiler, and return its exit status.

    Args:
        words: The script and its arguments.
        steps: The optimizer steps after which each of its runs ends. Default: those that the script sets.

    Raises:
        MisconfigurationException: There is no such script, `steps` is below 1, or no Trainer trained in it.
    """
    script, *arguments = words
    if not os.path.isfile(script):
        raise MisconfigurationException(
            f"lightlib doctor --profile {script}: there is no such file.",
            expected="a Python script that calls trainer.fit, with its arguments.",
            fix=f"give its path from {os.getcwd()}.",
        )
    if steps is not None and steps < 1:
        raise MisconfigurationException(
            f"lightlib doctor --steps {steps}.", expected="a number of optimizer steps, 1 or more.", fix="--steps 100"
        )
    defaults = {"LIGHTLIB_PROFILER": "simple", **({} if steps is None else {"LIGHTLIB_MAX_STEPS": str(steps)})}
    table, status = _TableHandler(), 0
    with _as_program(script, arguments, defaults), table.listening():
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
            if isinstance(error.code, str):
                report.warn(error.code)
    if not table and not status:
        raise MisconfigurationException(
            f"{script} ended without a table of a training run.",
            expected="a script that trains a batch with lightlib's Trainer, without a `profiler` of its own.",
            fix="Trainer(profiler='simple') in the program prints the same table.",
        )
    return status


@contextmanager
def _as_program(script: str, arguments: Sequence[str], variables: dict[str, str]) -> Iterator[None]:
    """Set the arguments, the path of imports and variables as if Python had been started with the script."""
    argv, path, before = sys.argv, list(sys.path), {name: os.environ.get(name) for name in variables}
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    os.environ.update(variables)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _TableHandler(logging.Handler):
    """Notes whether a table was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = False

    def __bool__(self) -> bool:
        return self.shown

    def emit(self, record: logging.LogRecord) -> None:
        self.shown |= _MARK in record.getMessage()

    @contextmanager
    def listening(self) -> Iterator[None]:
        logger = logging.getLogger("lightlib")
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)
