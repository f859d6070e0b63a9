"""Digests of user values, which show whether a value has changed."""

from __future__ import annotations

import datetime
import enum
import marshal
import pathlib
from collections import deque
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from lightlib.core.metrics.torchmetric import is_metric
from lightlib.core.values.attributes import (
    SCALARS,
    TIMES,
    Known,
    Unsaveable,
    attributes_of,
    has_protocol,
    is_runs,
    is_users_object,
    state_of,
)
from lightlib.data.generators import fingerprint, is_generator
from lightlib.torch_private import version_of

_PLAIN = 200_000  # a container of up to so many plain values is compared in full
_EXACT = 10_000  # so many items of any other container are compared, evenly spaced if it has more
_CONTENT = 2**20  # a tensor or array of up to so many bytes is compared in full
_DEEPEST = 12


def digest(value: Any, known: Known, path: str = "", depth: int = 0) -> Any:
    """Return a small value that differs if `value` has changed.

    Containers of up to 200,000 plain values (10,000 of any other kind), and tensors and arrays of up to 1 MiB, are
    compared in full. Longer containers are compared by length and evenly spaced items, larger tensors by torch's count
    of writes (``Tensor._version``).
    Objects that can only be restored in place are noted in ``known.types``.
    """
    kind = type(value)
    if id(value) in known.names:
        return "part", known.names[id(value)]
    if kind in SCALARS or isinstance(value, (enum.Enum, pathlib.PurePath, datetime.timedelta, *TIMES)):
        if isinstance(value, enum.Enum):
            known.types[path] = kind
        return kind.__name__, value if value == value else repr(value)
    if isinstance(value, Tensor):
        return _digest_of_tensor(value)
    if kind.__module__ == "numpy" and hasattr(value, "tobytes"):
        return _digest_of_array(value)
    if not known.count_value():
        return kind.__name__
    if id(value) in known.seen or depth > _DEEPEST:
        return "seen", known.seen.get(id(value)), id(value) in known.ids
    known.seen[id(value)] = len(known.seen)
    if isinstance(value, (list, tuple, deque, set, frozenset, Mapping)):
        known.types[path] = kind
        if kind in (list, tuple, dict) and len(value) <= _PLAIN and (plain := _digest_of_plain(value)) is not None:
            return kind.__name__, plain
        return kind.__name__, *_digest_of_items(value, known, path, depth)
    return _digest_of_object(value, known, path, depth)


def _digest_of_tensor(value: Tensor) -> Any:
    if value.device.type == "cpu" and value.layout is torch.strided and value.nbytes <= _CONTENT:
        flat = value.detach().resolve_conj().resolve_neg().contiguous().view(-1)
        content = blake2b(flat.view(torch.uint8).numpy().tobytes(), digest_size=16).digest() if value.numel() else b""
        return "tensor", tuple(value.shape), str(value.dtype), content
    version = None if value.is_inference() else version_of(value)
    return "tensor", tuple(value.shape), id(value), version


def _digest_of_array(value: Any) -> Any:
    if value.nbytes > _CONTENT:
        value = value.reshape(-1)[:: max(1, value.size * value.itemsize // _CONTENT)]
    return "array", getattr(value, "shape", ()), str(value.dtype), blake2b(value.tobytes(), digest_size=16).digest()


def _digest_of_plain(value: Any) -> bytes | None:
    try:
        return blake2b(marshal.dumps(value, 2), digest_size=16).digest()  # later versions than 2 write references
    except ValueError:
        return None


def _digest_of_items(value: Any, known: Known, path: str, depth: int) -> tuple[int, Any]:
    try:
        size = len(value)
        step = max(1, -(-size // _EXACT))
        numbered = enumerate(value.items() if isinstance(value, Mapping) else value)
        chosen = [(number, item) for number, item in numbered if number % step == 0 or number == size - 1]
    except Exception:  # noqa: BLE001  the user's container, whose methods may raise
        return id(value), None
    if isinstance(value, Mapping):
        return size, [(_key(k), digest(v, known, f"{path}[{k!r}]", depth + 1)) for _, (k, v) in chosen]
    digests = [digest(item, known, f"{path}[{number}]", depth + 1) for number, item in chosen]
    return size, frozenset(map(repr, digests)) if isinstance(value, (set, frozenset)) else digests


def _key(key: Any) -> Any:
    return key if type(key) in SCALARS else repr(key)


def _digest_of_object(value: Any, known: Known, path: str, depth: int) -> Any:
    kind = type(value)
    if is_runs(value, known):
        return kind.__name__, id(value)
    if is_generator(value):
        known.types[path] = kind
        return "generator", fingerprint(value)
    if is_metric(value):
        known.types[path] = kind
        known.kept.append(dict(value.metric_state))
        state = {name: digest(part, known, f"{path}()", depth + 1) for name, part in known.kept[-1].items()}
        return kind.__name__, value.update_count, state
    if isinstance(value, nn.Module) or has_protocol(value):
        known.types[path] = kind
        try:
            state = state_of(value)
            known.kept.append(state)
            return kind.__name__, digest(state, known, f"{path}()", depth + 1)
        except Unsaveable:
            return kind.__name__, id(value)
    if is_users_object(value):
        known.types[path] = kind
        attributes = attributes_of(value).items()
        return kind.__name__, [(name, digest(item, known, f"{path}.{name}", depth + 1)) for name, item in attributes]
    return kind.__name__, id(value)
