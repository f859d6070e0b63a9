"""Digests of user values, which show whether a value has changed."""

from __future__ import annotations

import datetime
import enum
import io
import pathlib
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import chain, islice
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from lightlib.core.metrics.torchmetric import is_metric
from lightlib.core.values.attributes import (
    DEEPEST,
    SCALARS,
    TIMES,
    SnapshotContext,
    Unsaveable,
    attributes_of,
    dict_of,
    full_name,
    has_protocol,
    is_data,
    is_runs,
    is_users_object,
    state_of,
)
from lightlib.core.values.contents import content_of_array, content_of_plain, content_of_tensor, is_plain_tensor
from lightlib.core.values.library import is_compared, place_in_file, reduced, state_of_library
from lightlib.core.values.packing import content_of_many
from lightlib.data.generators import fingerprint, is_generator
from lightlib.loggers.hyperparameters import is_config, unresolved

_CHUNK = 10_000
_BASES = (OrderedDict, dict, list, tuple, deque, set, frozenset)


def digest(value: Any, context: SnapshotContext, path: str = "", depth: int = 0) -> Any:
    """Return a small value that differs if `value` has changed.

    Containers are compared in full, tensors and arrays up to 64 MiB each and 256 MiB together; larger ones by samples
    and by torch's count of writes (``Tensor._version``). The user's code is not called, except for `state_dict`.
    Objects that can only be restored in place are noted in ``context.types``, those that cannot be saved in
    ``context.fixed``.
    """
    kind = type(value)
    if id(value) in context.names:
        return "part", context.names[id(value)]
    if kind in SCALARS:
        return kind.__name__, value if value == value else repr(value)
    if issubclass(kind, enum.Enum):
        context.types[path] = kind
        member = dict_of(value)
        return "enum", full_name(kind), member.get("_name_"), repr(member.get("_value_"))
    if issubclass(kind, (pathlib.PurePath, datetime.timedelta, *TIMES)):
        return kind.__name__, value
    if issubclass(kind, Tensor):
        content = content_of_tensor(value, context)
        if not is_plain_tensor(value):
            context.fixed[path] = content
        return content
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, (numpy.ndarray, numpy.generic)):
        return _digest_of_array(value, context, path, depth)
    if id(value) in context.seen:
        return "seen", context.seen[id(value)], not context.ids or id(value) in context.ids
    context.seen[id(value)] = path
    if depth > DEEPEST:
        return _digest_of_deep(value, context, path)
    if is_container(value):
        context.types[path] = kind
        return kind.__name__, *_digest_of_items(value, context, path, depth)
    return _digest_of_object(value, context, path, depth)


def is_container(value: Any) -> bool:
    """Whether a value is compared and saved item by item; another mapping only if it has no attributes to save."""
    kind = type(value)
    if issubclass(kind, _BASES) or is_config(value):
        return True
    return not is_data(kind) and issubclass(kind, Mapping) and not is_users_object(value)


def items_of(value: Any) -> Iterable[Any]:
    """Return the items of a container, the pairs of a mapping, without calling methods of a user's subclass."""
    kind = type(value)
    if is_config(value):
        content: Any = unresolved(value)
        return content.items() if isinstance(content, dict) else list(content)
    base: Any = next((base for base in _BASES if issubclass(kind, base)), None)
    if base is None:
        pairs: Iterable[Any] = value.items()
        return pairs
    items: Iterable[Any] = base.items(value) if issubclass(base, dict) else base.__iter__(value)
    return items


def attributes_of_container(value: Any) -> dict[str, Any]:
    """Return the attributes that a subclass of a container has."""
    return attributes_of(value) if issubclass(type(value), _BASES) and type(value) not in _BASES else {}


def _digest_of_array(value: Any, context: SnapshotContext, path: str, depth: int) -> Any:
    import numpy  # optional: numpy

    kind = type(value)
    context.types[path] = kind
    if issubclass(kind, numpy.ma.MaskedArray):
        parts = [content_of_array(part, context) for part in (value.data, numpy.ma.getmaskarray(value))]
        return "masked", kind.__name__, parts, repr(value.fill_value)
    attributes = [(name, digest(item, context, f"{path}.{name}", depth + 1)) for name, item in dict_of(value).items()]
    if value.dtype.hasobject:
        context.kept.append(items := numpy.asarray(value).reshape(-1).tolist())
        return kind.__name__, value.shape, str(value.dtype), _digest_of_items(items, context, path, depth), attributes
    return kind.__name__, content_of_array(value, context), attributes


def _digest_of_items(value: Any, context: SnapshotContext, path: str, depth: int) -> tuple[Any, ...]:
    attributes = attributes_of_container(value).items()
    of_attributes = [(name, digest(item, context, f"{path}.{name}", depth + 1)) for name, item in attributes]
    is_set = issubclass(type(value), (set, frozenset))
    if not is_set and (plain := content_of_plain(items_of(value))) is not None:
        return plain, of_attributes
    if is_set:
        return frozenset(
            repr(digest(item, context, f"{path}[{_key(item)}]", depth + 1)) for item in items_of(value)
        ), of_attributes
    total, left, first = blake2b(digest_size=16), iter(items_of(value)), 0
    is_mapping = issubclass(type(value), Mapping)
    while chunk := list(islice(left, _CHUNK)):
        if is_mapping:
            keys: list[Any] = [_key(key) for key, _ in chunk]
            total.update(repr(keys).encode(errors="surrogatepass"))
            values, places = [item for _, item in chunk], map("{}[{!r}]".format, _always(path), keys)
        else:
            values, places = chunk, map("{}[{}]".format, _always(path), range(first, first + len(chunk)))
        digests = content_of_many(values, context)
        if digests is None:
            digests = [digest(item, context, place, depth + 1) for item, place in zip(values, places, strict=False)]
        total.update(repr(digests).encode(errors="surrogatepass"))
        first += len(chunk)
    return first, total.digest(), of_attributes


def _always(path: str) -> Iterator[str]:
    while True:
        yield path


def _key(key: Any) -> Any:
    try:
        return key if type(key) in SCALARS else repr(key)
    except Exception:  # noqa: BLE001  the user's `__repr__`
        return f"{type(key).__name__} {id(key)}"


def _digest_of_object(value: Any, context: SnapshotContext, path: str, depth: int) -> Any:
    kind = type(value)
    if is_runs(value, context):
        context.fixed[path] = kind.__name__, id(value)
        return context.fixed[path]

    def parts(named: Iterable[tuple[str, Any]]) -> list[Any]:
        return [(name, digest(item, context, f"{path}.{name}", depth + 1)) for name, item in named]

    if is_generator(value):
        context.types[path] = kind
        return "generator", fingerprint(value), parts(attributes_of_generator(value).items())
    if is_metric(value):
        context.types[path] = kind
        context.kept.append(dict(value.metric_state))
        return kind.__name__, value.update_count, parts(context.kept[-1].items())
    if issubclass(kind, nn.Module) or has_protocol(value):
        context.types[path] = kind
        try:
            context.kept.append(state_of(value))
            return kind.__name__, digest(context.kept[-1], context, f"{path}()", depth + 1)
        except Unsaveable:
            return kind.__name__, id(value), parts(attributes_of(value).items())
    if kind is FunctionType:
        return _digest_of_function(value, context, path, parts)
    if kind is MethodType:
        return "method", parts([("__func__", value.__func__), ("__self__", value.__self__)])
    if is_users_object(value):
        context.types[path] = kind
        return kind.__name__, parts(attributes_of(value).items())
    return _digest_of_other(value, context, path, parts)


def _digest_of_function(value: Any, context: SnapshotContext, path: str, parts: Callable[[Any], list[Any]]) -> Any:
    context.types[path] = value
    cells = [
        (name, _content(cell)) for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    ]
    defaults = ("__defaults__", value.__defaults__), ("__kwdefaults__", value.__kwdefaults__)
    context.fixed[path] = of_code = "function", id(value.__code__), parts(chain(cells, defaults))
    return of_code, parts(attributes_of(value).items())


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _digest_of_other(value: Any, context: SnapshotContext, path: str, parts: Callable[[Any], list[Any]]) -> Any:
    """Return the digest of an object that is saved in another way than by its attributes, or not at all."""
    kind, state = type(value), state_of_library(value)
    if state is not None:
        context.types[path] = kind
        context.kept.append(state)
        return full_name(kind), parts((str(number), item) for number, item in enumerate(state))
    if is_compared(kind):
        attributes = attributes_of(value) or reduced(value)
        context.kept.append(attributes)
        context.fixed[path] = state = full_name(kind), parts((attributes or {"id": id(value)}).items())
        return state
    place = place_in_file(value) if issubclass(kind, io.IOBase) else None
    context.fixed[path] = full_name(kind), id(value), place
    return context.fixed[path]


def attributes_of_generator(value: Any) -> dict[str, Any]:
    """Return the attributes that a user's subclass of a random generator has besides its state."""
    return {name: item for name, item in dict_of(value).items() if name != "gauss_next"}


def _digest_of_deep(value: Any, context: SnapshotContext, path: str) -> Any:
    """Return the digest of a value below the deepest level that is saved, without recursion."""
    numbers: dict[int, int] = {}
    total, waiting = blake2b(digest_size=16), [value]
    while waiting:
        item = waiting.pop()
        shallow = context.again()
        if id(item) in numbers or id(item) in context.names:
            total.update(repr(("seen", numbers.get(id(item)), context.names.get(id(item)))).encode())
            continue
        numbers[id(item)] = len(numbers)
        context.kept.append(item)
        inner: list[Any] | None = None
        if is_container(item):
            inner = [
                part for entry in items_of(item) for part in (entry if issubclass(type(item), Mapping) else (entry,))
            ]
        elif is_users_object(item) and not has_protocol(item) and type(item) is not FunctionType:
            inner = [part for pair in attributes_of(item).items() for part in pair]
        if inner is None:
            total.update(repr(digest(item, shallow, path)).encode(errors="surrogatepass"))
        else:
            total.update(f"{type(item).__name__} {len(inner)}".encode())
            waiting += inner
    return "deep", total.digest()
