"""Profilers: how long what takes. Every name is imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightlib.profilers.advanced import AdvancedProfiler
    from lightlib.profilers.profiler import PassThroughProfiler, Profiler
    from lightlib.profilers.pytorch import PyTorchProfiler
    from lightlib.profilers.simple import SimpleProfiler

__all__ = ["AdvancedProfiler", "PassThroughProfiler", "Profiler", "PyTorchProfiler", "SimpleProfiler"]

_MODULES = {
    "AdvancedProfiler": "advanced",
    "PassThroughProfiler": "profiler",
    "Profiler": "profiler",
    "PyTorchProfiler": "pytorch",
    "SimpleProfiler": "simple",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
