"""Calls a function as a trial: ``python -m lightlib.experiment.trial.function module:name``."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from lightlib.experiment.current import current


def call(name: str) -> None:
    """Call a function with the trial of this process, and report the value that it returns.

    Args:
        name: ``"module:name"``; the module is found on ``sys.path``.
    """
    module, _, qualified = name.partition(":")
    function: Any = importlib.import_module(module)
    for part in qualified.split("."):
        function = getattr(function, part)
    trial = current()
    value = function(trial)
    if value is not None and not trial.should_stop:
        trial.report_result(value)


if __name__ == "__main__":
    call(sys.argv[1])
