"""Encodes user values as plain values for a checkpoint."""

from __future__ import annotations

import datetime
import enum
import io
import pathlib
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from lightlib.checkpoint.file.archive import not_plain
from lightlib.core.metrics.torchmetric import is_metric, metric_state
from lightlib.core.values.arrays import encoded_array
from lightlib.core.values.attributes import (
    DEEPEST,
    IN_PLACE,
    SCALARS,
    TIMES,
    SnapshotContext,
    TooLarge,
    Unsaveable,
    attributes_of,
    dict_of,
    enum_class,
    full_name,
    has_protocol,
    is_dataclass_type,
    is_runs,
    is_users_object,
    new_object,
    record_class,
    state_of,
)
from lightlib.core.values.contents import is_plain_tensor
from lightlib.core.values.digest import (
    attributes_of_container,
    attributes_of_generator,
    digest,
    is_container,
    items_of,
)
from lightlib.core.values.library import encoded_library, is_iterator, place_in_file, position
from lightlib.core.values.packing import packed
from lightlib.data.generators import is_generator, state_of_generator
from lightlib.loggers.hyperparameters import is_config, unresolved
from lightlib.report import has_password, is_secret
from lightlib.tree import map_tensors

_NAME_AT_END = re.compile(r"\w+")
_CONTAINERS = (list, tuple, deque, set, frozenset, dict, OrderedDict, Counter, defaultdict)


def encode(value: Any, context: SnapshotContext, path: str = "", within: tuple[int, ...] = ()) -> Any:
    """Return `value` as tensors and plain values, which :func:`restored` reverses.

    Args:
        context: The run's own parts; its room shrinks.
        path: The name of the value, ``"module.levels"``.
        within: The `id` of the containers around it.
    """
    kind = type(value)
    if id(value) in context.names:
        return {"part": context.names[id(value)]}
    if kind in (str, bytes) and (is_secret(_NAME_AT_END.findall(path)[-1:], value) or has_password(value)):
        raise Unsaveable("it looks like a secret, which no checkpoint holds", "set it again when the run is resumed")
    if kind in SCALARS:
        context.take(len(value) if kind in (str, bytes) else 16)
        return value
    if path not in context.types and path not in context.fixed:
        path = context.ids.get(id(value), path)  # it was found somewhere else first
    left = context.room
    try:
        return _encoded(value, context, path, within)
    except TooLarge:
        raise
    except Unsaveable:
        same = path in context.fixed and digest(value, context.again(), path) == context.fixed[path]
        if same and not advances_unseen(value):
            context.reset_room(left)
            return {"unchanged": True}
        raise


def _encoded(value: Any, context: SnapshotContext, path: str, within: tuple[int, ...]) -> Any:
    kind = type(value)
    if issubclass(kind, Tensor):
        return _tensor(value, context)
    if id(value) in within or len(within) > DEEPEST:
        why = "it contains itself" if id(value) in within else f"it is nested more than {DEEPEST} levels deep"
        raise Unsaveable(why)
    within = (*within, id(value))
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, (numpy.ndarray, numpy.generic)):
        return encoded_array(value, context, path, lambda item, at: encode(item, context, at, within))
    context.take(64)
    if issubclass(kind, pathlib.PurePath):
        return {"path": str(value)}
    if issubclass(kind, datetime.timedelta):
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    if kind in TIMES:
        return {kind.__name__: value.isoformat()}
    encoder = _encoded_container if is_container(value) else _encoded_object
    return encoder(value, context, path, within)


def _tensor(value: Tensor, context: SnapshotContext) -> Any:
    if not is_plain_tensor(value):
        where = "without data" if value.is_meta else f"of layout {value.layout}"
        raise Unsaveable(f"it is a {type(value).__name__} {where}")
    context.take(value.nbytes)
    return {"tensor": value.detach(), "on_device": value.device.type != "cpu", "grad": value.requires_grad}


def _encoded_container(value: Any, context: SnapshotContext, path: str, within: tuple[int, ...]) -> Any:
    kind = type(value)
    context.take(8 * len(value))
    if is_config(value):
        return {"config": encode(unresolved(value), context, path, within)}
    record = hasattr(kind, "_fields") and record_class(full_name(kind), context) is kind
    filled = issubclass(kind, (*IN_PLACE, Mapping)) and context.types.get(path) is kind
    if not (kind in _CONTAINERS or record or filled):
        raise Unsaveable(f"it is a {kind.__name__}")
    more = {}
    if attributes := attributes_of_container(value):
        more["attributes"] = {n: encode(item, context, f"{path}.{n}", within) for n, item in attributes.items()}
    if issubclass(kind, Mapping):
        pairs = list(items_of(value))
        keys = _encoded_items([key for key, _ in pairs], context, path, within)
        values = packed([item for _, item in pairs], context)
        if values is None:
            values = [encode(item, context, f"{path}[{key!r}]", within) for key, item in pairs]
        factory = getattr(value, "default_factory", None)
        factory_name = getattr(factory, "__name__", None)
        return {"mapping": kind.__name__, "keys": keys, "values": values, "factory": factory_name, **more}
    items = _encoded_items(list(items_of(value)), context, path, within)
    if kind is list:
        return items
    if record:
        return {"record": full_name(kind), "items": items}
    if kind not in _CONTAINERS:
        return {"filled": kind.__name__, "items": items, **more}
    return {kind.__name__: items, "maxlen": value.maxlen} if kind is deque else {kind.__name__: items}


def _encoded_items(items: list[Any], context: SnapshotContext, path: str, within: tuple[int, ...]) -> Any:
    packed_items = packed(items, context)
    if packed_items is not None:
        return {"packed": packed_items} if isinstance(packed_items, dict) else packed_items
    return [encode(item, context, f"{path}[{number}]", within) for number, item in enumerate(items)]


def _encoded_enum(value: Any, context: SnapshotContext, path: str) -> Any:
    kind, member = type(value), dict_of(value)
    name = full_name(kind) if enum_class(full_name(kind)) is kind else None
    if name is None and context.types.get(path) is not kind:
        raise Unsaveable(f"it became a {kind.__name__}")
    if issubclass(kind, enum.Flag):  # a combination of members has no name
        return {"enum": int(member["_value_"]), "class": name}
    return {"enum": member["_name_"], "class": name}


def _encoded_object(value: Any, context: SnapshotContext, path: str, within: tuple[int, ...]) -> Any:
    kind = type(value)
    if issubclass(kind, enum.Enum):
        return _encoded_enum(value, context, path)
    if is_dataclass_type(kind) and record_class(full_name(kind), context) is kind and not has_protocol(value):
        return {"record": full_name(kind), "attributes": _encoded_attributes(value, context, path, within)}
    if (library := encoded_library(value)) is not None:
        if (place := not_plain(library)) is not None:
            raise Unsaveable(f"it holds an object that is no plain value at {place}")
        context.take(_size(library))
        return library
    _refuse_positions(value)
    in_place = is_generator(value) or is_metric(value) or issubclass(kind, nn.Module) or has_protocol(value)
    if is_runs(value, context) or not (in_place or is_users_object(value)):
        name = getattr(value, "__qualname__", None) if issubclass(kind, (*_FUNCTIONS, type)) else None
        if kind is FunctionType and context.types.get(path) is value:
            raise Unsaveable(_CHANGED_WITHIN)
        if name:
            raise Unsaveable(f"it became {name}", "store a name or a number that changes, and use it to choose")
        raise Unsaveable(f"it is a {kind.__name__}")
    if kind is FunctionType:
        if context.types.get(path) is not value:
            raise Unsaveable(
                f"it became {value.__qualname__}", "store a name or a number that changes, and use it to choose"
            )
        digest(value, now := context.again(), path)
        if now.fixed[path] != context.fixed.get(path, now.fixed[path]):
            raise Unsaveable(_CHANGED_WITHIN)
        return {"object": _encoded_attributes(value, context, path, within)}
    if new_object(full_name(kind)) is not None:
        return {"object": _encoded_attributes(value, context, path, within), "class": full_name(kind)}
    if context.types.get(path) is not kind:
        raise Unsaveable(
            f"a new {kind.__name__} was made since training began",
            "create it in __init__, setup or on_fit_start, and change it later",
        )
    if is_generator(value):
        return _encoded_generator(value, context, path, within)
    if is_metric(value):
        state = metric_state(value)
        context.take(_size(state["states"]))
        return {"metric": state}
    if in_place:
        saved = state_of(value)
        if (place := not_plain(saved)) is not None:
            raise Unsaveable(f"its state_dict() holds an object that is no plain value at {place}")
        context.take(_size(saved))
        return {"state": map_tensors(Tensor.detach, saved)}
    return {"object": _encoded_attributes(value, context, path, within)}


_CHANGED_WITHIN = "variables of its closure, or its defaults, have changed"
_FUNCTIONS = (FunctionType, MethodType, type(len))


def _encoded_generator(value: Any, context: SnapshotContext, path: str, within: tuple[int, ...]) -> Any:
    context.take(5120)
    saved = {"generator": state_of_generator(value)}
    attributes = attributes_of_generator(value)
    if attributes:
        saved["attributes"] = {n: encode(item, context, f"{path}.{n}", within) for n, item in attributes.items()}
    return saved


def _encoded_attributes(value: Any, context: SnapshotContext, path: str, within: tuple[int, ...]) -> dict[str, Any]:
    return {name: encode(item, context, f"{path}.{name}", within) for name, item in attributes_of(value).items()}


def _size(state: Any) -> int:
    if isinstance(state, Tensor):
        return state.nbytes
    if isinstance(state, Mapping):
        return sum(map(_size, state.values())) + 16
    if isinstance(state, (str, bytes)):
        return len(state)
    return sum(map(_size, state)) + 16 if isinstance(state, (list, tuple, set)) else 16


def _refuse_positions(value: Any) -> None:
    """Raise for open files and iterators: their position cannot be restored."""
    kind = type(value)
    if issubclass(kind, io.IOBase) and not value.closed:
        raise Unsaveable("an open file, which a resumed run opens again", "open it in setup, in append mode")
    if is_iterator(kind) and not is_users_object(value):
        raise Unsaveable(
            f"an iterator ({type(value).__name__}), whose position cannot be saved",
            "store the number of items taken, and skip as many when it is created again",
        )


def advances_unseen(value: Any) -> bool:
    """Whether using a value advances it, which its digest does not show: its position may be unknown."""
    kind = type(value)
    if issubclass(kind, io.IOBase):
        return not value.closed and value.writable() and place_in_file(value) is None
    return is_iterator(kind) and not is_users_object(value) and position(value) is None
