"""Profilers: measure the time, memory and throughput of a run. Each is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.profilers.advanced import AdvancedProfiler
    from lightlib.profilers.memory import MemoryProfiler
    from lightlib.profilers.profiler import PassThroughProfiler, Profiler, RunFacts
    from lightlib.profilers.pytorch import PyTorchProfiler
    from lightlib.profilers.simple import SimpleProfiler
    from lightlib.profilers.throughput import Throughput

__all__ = [
    "AdvancedProfiler", "MemoryProfiler", "PassThroughProfiler", "Profiler", "PyTorchProfiler", "RunFacts",
    "SimpleProfiler", "Throughput",
]  # fmt: skip

_get, _names = lazy.attributes(
    __name__,
    {
        "AdvancedProfiler": "advanced",
        "MemoryProfiler": "memory",
        "PassThroughProfiler": "profiler",
        "Profiler": "profiler",
        "PyTorchProfiler": "pytorch",
        "RunFacts": "profiler",
        "SimpleProfiler": "simple",
        "Throughput": "throughput",
    },
)

if not TYPE_CHECKING:  # type checkers see only the names above
    __getattr__, __dir__ = _get, _names
