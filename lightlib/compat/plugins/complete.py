"""Completes a strategy that was written from scratch by lightlib's part of one device or of DDP."""

from __future__ import annotations

import functools
from typing import Any

from lightlib import strategies as ours

__all__ = ["complete"]


@functools.cache
def complete(kind: type) -> type:
    """Return a subclass of a strategy that was written from scratch, with lightlib's part of one device or of DDP."""
    if kind.__module__.partition(".")[0] == "lightlib":
        raise TypeError(f"{kind.__name__} is abstract: make an object of a subclass, such as DDPStrategy")
    base = ours.DDPStrategy if hasattr(kind, "is_parallel") else ours.SingleDeviceStrategy
    members: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    members["from_scratch"] = True
    return type(kind.__name__, (kind, base), {**members, "__reduce__": lambda self: _pickled(self, kind)})


def _pickled(strategy: Any, kind: type) -> tuple[Any, ...]:
    return _empty, (kind,), strategy.__getstate__()


def _empty(kind: type) -> Any:
    return object.__new__(complete(kind))
