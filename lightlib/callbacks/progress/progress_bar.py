"""The progress bars, and the choice of one for the terminal, notebook or file at hand."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from lightlib import lazy
from lightlib.callbacks.progress.base import ProgressBar
from lightlib.callbacks.progress.plain import PlainProgressBar
from lightlib.callbacks.progress.rich import RichProgressBar, RichProgressBarTheme
from lightlib.callbacks.progress.timed import TimedProgressBar
from lightlib.callbacks.progress.tqdm import TQDMProgressBar

__all__ = [
    "PlainProgressBar",
    "ProgressBar",
    "RichProgressBar",
    "RichProgressBarTheme",
    "TQDMProgressBar",
    "TimedProgressBar",
    "default_progress_bar",
]


def default_progress_bar() -> ProgressBar:
    """Return the bar that suits the place: rich in a terminal, tqdm in a notebook, otherwise plain lines.

    Plain lines are for pipes, for CI (the variable ``CI`` is set), for ``NO_COLOR`` and for ``TERM=dumb``.

    Example:
        >>> isinstance(default_progress_bar(), ProgressBar)
        True
    """
    if _in_notebook():
        return TQDMProgressBar() if find_spec("tqdm") else PlainProgressBar()
    if not _on_terminal():
        return PlainProgressBar()
    if find_spec("rich"):
        return RichProgressBar()
    return TQDMProgressBar() if find_spec("tqdm") else PlainProgressBar()


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = getattr(ipython, "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _on_terminal() -> bool:
    plain = os.environ.get("NO_COLOR") or os.environ.get("CI") or os.environ.get("TERM") in ("dumb", "unknown")
    return not plain and sys.stdout is not None and sys.stdout.isatty()


if not TYPE_CHECKING:
    __getattr__ = lazy.translated_names(__name__)
