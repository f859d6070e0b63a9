"""Presets: callbacks by name, which `Trainer(callbacks=…)` takes as a word."""

from __future__ import annotations

from typing import Any

from lightlib.errors import UnknownNameError

__all__ = ["preset"]

_PRESETS = ("minimal", "job")


def preset(name: str) -> dict[str, Any]:
    """Return the callbacks of a preset by their names: new objects with each call, to change or to pass.

    - ``"minimal"``: modules of callbacks on the device, an end at a loss that is not finite, lines for epochs, a
      progress bar, and lines of metrics; no summary and no checkpoints. These are the five that pytorch-accelerated
      has by default, in its order.
    - ``"job"``: for a program without a terminal: the environment, lines of metrics, an end at a loss that is not
      finite, and no progress bar.

    Args:
        name: One of these.

    Raises:
        UnknownNameError: There is no such preset.

    Example:
        >>> list(preset("minimal"))
        ['summary', 'checkpoint', 'modules', 'finite', 'epochs', 'progress', 'metrics']
    """
    from lightlib import callbacks as known  # optional: rich, only when a bar is made

    if name == "minimal":
        return {
            "summary": None,
            "checkpoint": None,
            "modules": known.MoveModulesToDevice(),
            "finite": known.TerminateOnNaN(),
            "epochs": known.PrintProgress(),
            "progress": known.default_progress_bar(),
            "metrics": known.MetricPrinter(),
        }
    if name == "job":
        return {
            "progress": None,
            "environment": known.EnvironmentRecord(),
            "metrics": known.MetricPrinter(),
            "finite": known.TerminateOnNaN(),
        }
    raise UnknownNameError("preset of callbacks", name, _PRESETS, fix="Trainer(callbacks='minimal')")
