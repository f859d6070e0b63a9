"""Restores user values from plain values, in place where possible."""

from __future__ import annotations

import copy
import datetime
import enum
import pathlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightlib.core.metrics.torchmetric import is_metric, load_metric_state
from lightlib.core.values.arrays import restored_array
from lightlib.core.values.attributes import (
    ABSENT,
    IN_PLACE,
    SCALARS,
    TIMES,
    SnapshotContext,
    Unsaveable,
    attributes_of,
    enum_class,
    full_name,
    give,
    has_protocol,
    is_users_object,
    new_object,
    record_class,
)
from lightlib.core.values.digest import is_container, items_of
from lightlib.core.values.library import LIBRARY, restored_library
from lightlib.core.values.packing import unpacked
from lightlib.data.generators import is_generator, set_generator_state
from lightlib.loggers.hyperparameters import is_config, refill

_FACTORIES: dict[str, Callable[[], Any]] = {
    kind.__name__: kind for kind in (int, float, str, bool, list, dict, set, tuple)
}


def restored(encoded: Any, current: Any, context: SnapshotContext, same: bool = True) -> Any:
    """Return the value that was encoded.

    Args:
        current: The current value, ABSENT if there is none. Objects are restored in place, and so are containers and
            tensors, which other objects may share.
        same: Whether the saved value was still the same object as when training began.
    """
    if isinstance(encoded, list) or (isinstance(encoded, dict) and "packed" in encoded):
        items = _items(encoded, current, context)
        if same and type(current) is list:
            current[:] = items
            return current
        return items
    if not isinstance(encoded, dict):
        return encoded
    kind = next(iter(encoded))
    return _RESTORE[kind](encoded, current, context, same)


def _items(encoded: Any, current: Any, context: SnapshotContext) -> list[Any]:
    present = list(current) if isinstance(current, (list, tuple, deque)) else []
    return _each(encoded, present, context)


def _each(encoded: Any, present: list[Any], context: SnapshotContext) -> list[Any]:
    """Return the values of a container, given those that are there now."""
    if isinstance(encoded, dict):
        return unpacked(encoded.get("packed", encoded), present, context)
    present = present + [ABSENT] * (len(encoded) - len(present))
    return [restored(item, now, context) for item, now in zip(encoded, present, strict=False)]


def _restore_part(encoded: Any, current: Any, context: SnapshotContext, same: bool) -> Any:  # noqa: ARG001  one signature for all
    if encoded["part"] not in context.parts:
        raise Unsaveable(f"it was the module's {encoded['part']!r}, which does not exist")
    return context.parts[encoded["part"]]


def _restore_unchanged(encoded: Any, current: Any, context: SnapshotContext, same: bool) -> Any:  # noqa: ARG001  one signature for all
    if current is ABSENT:
        raise Unsaveable("it held an object that had not changed, and is missing here")
    return current


def _restore_tensor(encoded: Any, current: Any, context: SnapshotContext, same: bool) -> Any:
    saved = encoded["tensor"]
    if same and isinstance(current, Tensor) and (current.shape, current.dtype) == (saved.shape, saved.dtype):
        with torch.no_grad():
            current.copy_(saved)
        return current
    moved = saved.to(context.device) if encoded["on_device"] else saved.clone()
    return moved.requires_grad_(encoded["grad"])


def _restore_array(encoded: Any, current: Any, context: SnapshotContext, same: bool) -> Any:
    return restored_array(encoded, current, same, lambda item, now: restored(item, now, context))


def _restore_mapping(encoded: Any, current: Any, context: SnapshotContext, same: bool) -> Any:
    present = dict(items_of(current)) if isinstance(current, Mapping) and is_container(current) else {}
    keys = _keys(encoded["keys"], present, context)
    values = _each(encoded["values"], [present.get(key, ABSENT) for key in keys], context)
    pairs = dict(zip(keys, values, strict=True))
    if same and type(current).__name__ == encoded["mapping"]:
        base: Any = next((base for base in IN_PLACE[:2] if isinstance(current, base)), type(current))
        base.clear(current)
        base.update(current, pairs)  # of the base: a Counter would count the pairs
        return _with_attributes(current, encoded, context)
    kinds: dict[str, Any] = {"OrderedDict": OrderedDict, "Counter": Counter, "dict": dict}
    if encoded["mapping"] == "defaultdict":
        factory = getattr(current, "default_factory", None) or _FACTORIES.get(encoded["factory"] or "")
        return defaultdict(factory, pairs)
    if encoded["mapping"] not in kinds:
        raise Unsaveable(f"it was a {encoded['mapping']}, but is {_named(current)} here")
    return kinds[encoded["mapping"]](pairs)


def _keys(encoded: Any, present: Mapping[Any, Any], context: SnapshotContext) -> list[Any]:
    """Return the keys of a mapping; a member of an enumeration that cannot be found is one of its present keys."""
    if isinstance(encoded, dict):
        return unpacked(encoded["packed"], [], context)
    members = [key for key in present if isinstance(key, enum.Enum)]
    first: Any = members[0] if members else ABSENT
    return [restored(key, first, context) for key in encoded]


def _with_attributes(current: Any, encoded: Any, context: SnapshotContext) -> Any:
    now = attributes_of(current)
    for name, attribute in encoded.get("attributes", {}).items():
        give(current, name, restored(attribute, now.get(name, ABSENT), context))
    return current


def _restore_filled(encoded: Any, current: Any, context: SnapshotContext, same: bool) -> Any:  # noqa: ARG001  one signature for all
    base: Any = next((base for base in IN_PLACE[2:] if isinstance(current, base)), None)
    if base is None or type(current).__name__ != encoded["filled"]:
        raise Unsaveable(f"it was a {encoded['filled']}, but is {_named(current)} here")
    present = [] if base is set else list(items_of(current))
    items = _each(encoded["items"], present, context)
    base.clear(current)
    (base.update if base is set else base.extend)(current, items)
    return _with_attributes(current, encoded, context)


def _restore_config(encoded: Any, current: Any, context: SnapshotContext, same: bool) -> Any:
    content = restored(encoded["config"], ABSENT, context)
    if not is_config(current):
        raise Unsaveable(f"it was a container of OmegaConf, but is {_named(current)} here")
    return refill(current, content, same)


def _restore_sequence(encoded: Any, current: Any, context: SnapshotContext, same: bool) -> Any:
    kind = next(iter(encoded))
    items = _items(encoded[kind], current, context)
    if kind in ("set", "deque") and same and type(current).__name__ == kind:
        current.clear()
        (current.update if kind == "set" else current.extend)(items)
        return current
    if kind == "deque":
        return deque(items, encoded["maxlen"])
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](items)


def _restore_record(encoded: Any, current: Any, context: SnapshotContext, same: bool) -> Any:
    kind: Any = record_class(encoded["record"], context)
    if kind is None:
        raise Unsaveable(f"it was a {encoded['record'].partition(':')[2]}, which this program does not have")
    if "items" in encoded:
        return tuple.__new__(kind, _items(encoded["items"], current, context))
    target = current if same and type(current) is kind else object.__new__(kind)
    now = attributes_of(target)
    for name, attribute in encoded["attributes"].items():
        give(target, name, restored(attribute, now.get(name, ABSENT), context))
    return target


def _restore_enum(encoded: Any, current: Any, context: SnapshotContext, same: bool) -> Any:  # noqa: ARG001  one signature for all
    saved, kind = encoded["enum"], enum_class(encoded["class"]) if encoded.get("class") else type(current)
    if kind is None or not issubclass(kind, enum.Enum):
        raise Unsaveable(f"it was the enumeration's member {saved!r}, but is {_named(current)} here")
    if issubclass(kind, enum.Flag) and type(saved) is int:
        return kind(saved)
    if saved not in kind.__members__:
        raise Unsaveable(f"it was the member {saved!r}, which {kind.__name__} does not have")
    return kind[saved]


def _restore_library(encoded: Any, current: Any, context: SnapshotContext, same: bool) -> Any:  # noqa: ARG001  one signature for all
    return restored_library(encoded, current, same)


def _restore_plain(encoded: Any, current: Any, context: SnapshotContext, same: bool) -> Any:  # noqa: ARG001  one signature for all
    (kind, saved), *_ = encoded.items()
    if kind == "path":
        return type(current)(saved) if isinstance(current, pathlib.PurePath) else pathlib.Path(saved)
    if kind == "timedelta":
        return datetime.timedelta(*saved)
    times: dict[str, Any] = {time.__name__: time for time in TIMES}
    return times[kind].fromisoformat(saved)


def _restore_object(encoded: Any, current: Any, context: SnapshotContext, same: bool) -> Any:
    (kind, saved), *_ = encoded.items()
    name = encoded.get("class")
    if name is not None and not (same and full_name(type(current)) == name):
        current = new_object(name)
        if current is None:
            raise Unsaveable(f"it was a {name.partition(':')[2]}, which is not known")
    fits = {"generator": is_generator, "metric": is_metric, "state": has_protocol, "object": is_users_object}[kind]
    if current is ABSENT or not (fits(current) or (kind == "object" and _has_attributes(current))):
        raise Unsaveable(f"its state cannot be loaded into {_named(current)}")
    if kind == "generator":
        set_generator_state(current, saved)
        return _with_attributes(current, encoded, context)
    if kind == "metric":
        load_metric_state(current, copy.deepcopy(saved))
        return current
    if kind == "state":
        current.load_state_dict(copy.deepcopy(saved))  # it may keep and change its argument, which is saved again
        return current
    return _with_attributes(current, {"attributes": saved}, context)


def _has_attributes(value: Any) -> bool:
    return hasattr(type(value), "__dict__") and not is_container(value) and not isinstance(value, SCALARS)


def _named(value: Any) -> str:
    return "missing" if value is ABSENT else f"a {type(value).__name__}"


_RESTORE: dict[str, Callable[[Any, Any, SnapshotContext, bool], Any]] = {
    "part": _restore_part,
    "unchanged": _restore_unchanged,
    "filled": _restore_filled,
    "config": _restore_config,
    "tensor": _restore_tensor,
    **dict.fromkeys(("array", "objects", "masked"), _restore_array),
    **dict.fromkeys(LIBRARY, _restore_library),
    "mapping": _restore_mapping,
    "enum": _restore_enum,
    "record": _restore_record,
    **dict.fromkeys(("tuple", "set", "frozenset", "deque"), _restore_sequence),
    **dict.fromkeys(("path", "timedelta", "datetime", "date", "time"), _restore_plain),
    **dict.fromkeys(("generator", "metric", "state", "object"), _restore_object),
}


def well_formed(state: Any) -> dict[str, Any]:
    """Check and return the user state of a checkpoint."""
    kinds: dict[str, Any] = {"values": dict, "gone": list, "epoch": (dict, type(None))}
    kinds |= dict.fromkeys(("training", "requires_grad", "metrics"), dict)
    wrong = [name for name, kind in kinds.items() if not isinstance(state, dict) or not isinstance(state[name], kind)]
    if wrong:
        raise TypeError(f"its user state has no {wrong[0]!r} of the right type")
    entries = [
        entry
        for values in (state["values"], state["epoch"] or {})
        for attributes in values.values()
        for entry in attributes.values()
    ]
    if not all(isinstance(entry, dict) and {"value", "same"} <= entry.keys() for entry in entries):
        raise TypeError("its user state contains something that is no attribute")
    if not all(isinstance(key, list) and len(key) == 2 for key in state["gone"]):
        raise TypeError("its user state lists deleted attributes in an unknown form")
    checked: dict[str, Any] = state
    return checked


def shared(states: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return the state that is the same on all processes that wrote a checkpoint, and the names that differ."""
    first, differing = dict(states[0]), []
    values: dict[str, dict[str, Any]] = {}
    for place, attributes in first.get("values", {}).items():
        for name, entry in attributes.items():
            if all(same(entry, state["values"].get(place, {}).get(name)) for state in states[1:]):
                values.setdefault(place, {})[name] = entry
            else:
                differing.append(f"{place}.{name}")
    return {**first, "values": values, "metrics": {}, "epoch": None}, differing + list(first.get("metrics", {}))


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal; NaN equals NaN, and values that cannot be compared are different."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        one, other = one.cpu(), other.cpu()
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    try:
        return bool(one is other or one == other or (one != one and other != other))
    except Exception:  # noqa: BLE001  the user's objects
        return False
