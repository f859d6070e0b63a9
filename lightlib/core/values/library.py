"""Objects of the standard library and NumPy: their state, and how it is saved and restored."""

from __future__ import annotations

import array
import ast
import decimal
import fractions
import functools
import io
import itertools
import operator
import sys
import uuid
import warnings
from collections.abc import Iterator
from types import GeneratorType, ModuleType
from typing import Any

from lightlib.core.values.attributes import ABSENT, Unsaveable, dict_of
from lightlib.core.values.class_source import LIBRARIES, root_of

_TEXTS: dict[str, Any] = {kind.__name__: kind for kind in (decimal.Decimal, fractions.Fraction, uuid.UUID)}
_BUFFERS: dict[str, Any] = {kind.__name__: kind for kind in (io.BytesIO, io.StringIO)}
_RANGES: dict[str, Any] = {kind.__name__: kind for kind in (range, slice)}
# Objects of these packages belong to the process: locks, threads, files, connections, bars on the screen.
_PROCESS = frozenset(
    ("logging", "threading", "concurrent", "multiprocessing", "asyncio", "socket", "ssl", "subprocess", "io",
     "tempfile", "weakref", "contextlib", "contextvars", "selectors", "signal", "http", "urllib", "ctypes", "unittest",
     "importlib", "inspect", "traceback", "warnings", "sqlite3", "zipfile", "tarfile", "gzip", "mmap", "abc", "typing",
     "types", "tqdm", "rich", "lightlib", "jsonargparse", "torchdata", "torchmetrics")
)  # fmt: skip
_OF_TORCH = ("torch.distributions", "torch.utils.data", "torch.optim")


def state_of_library(value: Any) -> tuple[Any, ...] | None:
    """Return the state of an object, a change of which is saved or reported; None if it has no known state."""
    kind = type(value)
    if issubclass(kind, bytearray):
        return (bytes(value),)
    if issubclass(kind, array.array):
        return value.typecode, array.array.tobytes(value)
    if kind in _RANGES.values():
        return value.start, value.stop, value.step
    if kind in _TEXTS.values():
        return (str(value),)
    if kind in _BUFFERS.values():
        return (None,) if value.closed else (value.getvalue(), value.tell())
    if issubclass(kind, functools.partial):
        return value.func, value.args, value.keywords, dict_of(value)
    if _is_seed_sequence(value):
        return value.entropy, tuple(value.spawn_key), value.pool_size, value.n_children_spawned
    if issubclass(kind, io.IOBase):
        return None
    return position(value) if is_iterator(kind) else None


def is_iterator(kind: type) -> bool:
    """Whether a class is that of iterators; a mock has all methods, and is none."""
    return issubclass(kind, Iterator) and root_of(kind).lstrip("_") not in _PROCESS


def _is_seed_sequence(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.random.SeedSequence


def position(value: Any) -> tuple[Any, ...] | None:
    """Return the position of an iterator; None if it cannot be known."""
    kind: type = type(value)
    if kind is GeneratorType:
        frame = value.gi_frame
        return ("ended",) if frame is None else (frame.f_lasti, dict(frame.f_locals))
    if kind is itertools.count:
        return (repr(value),)
    if "_num_yielded" in dict_of(value) and root_of(kind) == "torch":  # of a DataLoader
        return (dict_of(value)["_num_yielded"],)
    if root_of(kind) not in LIBRARIES:
        return None
    left = operator.length_hint(value, -1) if kind.__module__ == "builtins" and hasattr(kind, "__length_hint__") else -1
    if left >= 0:
        return (left,)
    state = reduced(value) if kind.__module__ in ("builtins", "itertools") else None
    return None if state is None else tuple(state.values())


def place_in_file(value: Any) -> int | None:
    """Return how far an open file was written, None if that cannot be known; reading does not count."""
    try:
        return int(value.tell()) if not value.closed and value.writable() else None
    except (OSError, ValueError):  # a pipe
        return None


def is_compared(kind: type) -> bool:
    """Whether objects of a library's class are compared by their attributes; those of the process are not."""
    if issubclass(kind, (type, ModuleType, io.IOBase, BaseException)):
        return False
    module, root = kind.__module__, root_of(kind).lstrip("_")
    return module.startswith(_OF_TORCH) if root == "torch" else root in LIBRARIES and root not in _PROCESS


def reduced(value: Any) -> dict[str, Any] | None:
    """Return the parts that pickle would store of an object; None if it cannot be pickled."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of itertools, from Python 3.12 on
            parts = value.__reduce_ex__(2)
    except Exception:  # noqa: BLE001  it cannot be pickled
        return None
    return None if isinstance(parts, str) else {str(number): part for number, part in enumerate(parts)}


def encoded_library(value: Any) -> dict[str, Any] | None:
    """Return an object of a library as plain values, which `restored_library` reverses; None for any other."""
    kind = type(value)
    if kind is bytearray:
        return {"bytearray": bytes(value)}
    if kind is array.array:
        return {"numbers": value.tobytes(), "typecode": value.typecode}
    if kind in _RANGES.values():
        return {kind.__name__: [value.start, value.stop, value.step]}
    if kind in _TEXTS.values():
        return {kind.__name__: str(value)}
    if kind in _BUFFERS.values() and not value.closed:
        return {kind.__name__: value.getvalue(), "at": value.tell()}
    if _is_seed_sequence(value):
        seeds = {"entropy": value.entropy, "spawn_key": list(value.spawn_key), "pool_size": value.pool_size}
        return {"seeds": {**seeds, "n_children_spawned": value.n_children_spawned}}
    if kind is itertools.count:
        try:
            return {"count": list(ast.literal_eval(repr(value).removeprefix("count").replace(")", ",)")))}
        except (SyntaxError, ValueError):
            raise Unsaveable("it counts what is no plain number") from None
    return None


LIBRARY = ("bytearray", "numbers", "seeds", "count", *_RANGES, *_TEXTS, *_BUFFERS)


def restored_library(encoded: dict[str, Any], current: Any, same: bool) -> Any:
    """Return the object that `encoded_library` encoded, in place where it can be."""
    (kind, saved), *more = encoded.items()
    if kind == "bytearray":
        return _filled(current, saved, same) if type(current) is bytearray else bytearray(saved)
    if kind == "numbers":
        new = array.array(encoded["typecode"], saved)
        fits = type(current) is array.array and current.typecode == new.typecode
        return _filled(current, new, same) if fits else new
    if kind in _BUFFERS:
        in_place = same and type(current) is _BUFFERS[kind] and not current.closed
        target = current if in_place else _BUFFERS[kind]()
        target.seek(0)
        target.truncate()
        target.write(saved)
        target.seek(more[0][1])
        return target
    if kind == "seeds":
        return _seed_sequence(saved, current if same else ABSENT)
    if kind == "count":
        return itertools.count(*saved)
    return _RANGES[kind](*saved) if kind in _RANGES else _TEXTS[kind](saved)


def _filled(current: Any, new: Any, same: bool) -> Any:
    if not same:
        return type(current)(new) if type(current) is bytearray else new
    current[:] = new
    return current


def _seed_sequence(saved: dict[str, Any], current: Any) -> Any:
    import numpy  # optional: numpy

    if _is_seed_sequence(current) and current.entropy == saved["entropy"]:
        more = saved["n_children_spawned"] - current.n_children_spawned
        if more >= 0 and tuple(current.spawn_key) == tuple(saved["spawn_key"]):
            current.spawn(more)
            return current
    return numpy.random.SeedSequence(**saved)
