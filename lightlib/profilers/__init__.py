"""Profilers: measure the time of hooks and steps. Each is imported when its name is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.profilers.advanced import AdvancedProfiler
    from lightlib.profilers.profiler import PassThroughProfiler, Profiler
    from lightlib.profilers.pytorch import PyTorchProfiler
    from lightlib.profilers.simple import SimpleProfiler

__all__ = ["AdvancedProfiler", "PassThroughProfiler", "Profiler", "PyTorchProfiler", "SimpleProfiler"]

_get, _names = lazy.attributes(
    __name__,
    {
        "AdvancedProfiler": "advanced",
        "PassThroughProfiler": "profiler",
        "Profiler": "profiler",
        "PyTorchProfiler": "pytorch",
        "SimpleProfiler": "simple",
    },
)

if not TYPE_CHECKING:  # type checkers see only the names above
    __getattr__, __dir__ = _get, _names
