"""Encodes user values as plain values for a checkpoint, and restores them, in place where possible."""

from __future__ import annotations

import copy
import datetime
import enum
import io
import pathlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightlib.checkpoint.file.archive import not_plain
from lightlib.core.metrics.torchmetric import is_metric, load_metric_state, metric_state
from lightlib.core.values.attributes import (
    ABSENT,
    SCALARS,
    TIMES,
    Known,
    Unsaveable,
    attributes_of,
    full_name,
    give,
    has_protocol,
    is_runs,
    is_users_object,
    record_class,
    state_of,
)
from lightlib.data.generators import is_generator, set_generator_state, state_of_generator

_DEEPEST = 12
_CONTAINERS = (list, tuple, deque, set, frozenset, dict, OrderedDict, Counter, defaultdict)
_FACTORIES: dict[str, Callable[[], Any]] = {
    kind.__name__: kind for kind in (int, float, str, bool, list, dict, set, tuple)
}


def encode(value: Any, known: Known, path: str = "", within: tuple[int, ...] = ()) -> Any:
    """Return `value` as tensors and plain values, which :func:`restored` reverses.

    Args:
        known: The run's own parts; its room shrinks.
        path: The name of the value, ``"module.levels"``.
        within: The `id` of the containers around it.
    """
    kind = type(value)
    if id(value) in known.names:
        return {"part": known.names[id(value)]}
    if kind in SCALARS:
        known.take(len(value) if isinstance(value, (str, bytes)) else 16)
        return value
    if isinstance(value, Tensor):
        return _tensor(value, known)
    if kind.__module__ == "numpy" and hasattr(value, "tobytes") and not value.dtype.hasobject:
        known.take(value.nbytes)
        return {"array": value.tobytes(), "dtype": value.dtype.str, "shape": list(value.shape)}
    if id(value) in within or len(within) > _DEEPEST:
        why = "it contains itself" if id(value) in within else f"it is nested more than {_DEEPEST} levels deep"
        raise Unsaveable(why)
    known.take(64)
    if isinstance(value, pathlib.PurePath):
        return {"path": str(value)}
    if isinstance(value, datetime.timedelta):
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    if kind in TIMES:
        return {kind.__name__: value.isoformat()}
    if isinstance(value, (list, tuple, deque, set, frozenset, Mapping)):
        return _encoded_container(value, known, path, (*within, id(value)))
    return _encoded_object(value, known, path, (*within, id(value)))


def _tensor(value: Tensor, known: Known) -> Any:
    if value.layout is not torch.strided or type(value) not in (Tensor, nn.Parameter, nn.Buffer):
        raise Unsaveable(f"it is a {type(value).__name__} of layout {value.layout}")
    known.take(value.nbytes)
    return {"tensor": value.detach(), "on_device": value.device.type != "cpu", "grad": value.requires_grad}


def _encoded_container(value: Any, known: Known, path: str, within: tuple[int, ...]) -> Any:
    kind = type(value)
    known.take(8 * len(value))
    record = hasattr(kind, "_fields") and record_class(full_name(kind), known) is kind
    mapping = isinstance(value, Mapping) and known.types.get(path) is kind  # of any kind, if it can be filled again
    if not (kind in _CONTAINERS or record or mapping):
        raise Unsaveable(f"it is a {kind.__name__}")
    if isinstance(value, Mapping):
        keys = [encode(key, known, path, within) for key in value]
        values = [encode(item, known, f"{path}[{key!r}]", within) for key, item in value.items()]
        factory = getattr(value, "default_factory", None)
        return {"mapping": kind.__name__, "keys": keys, "values": values, "factory": getattr(factory, "__name__", None)}
    items = [encode(item, known, f"{path}[{number}]", within) for number, item in enumerate(value)]
    if kind is list:
        return items
    if record:
        return {"record": full_name(kind), "items": items}
    return {kind.__name__: items, "maxlen": value.maxlen} if kind is deque else {kind.__name__: items}


def _encoded_object(value: Any, known: Known, path: str, within: tuple[int, ...]) -> Any:
    kind = type(value)
    if isinstance(value, enum.Enum):
        if known.types.get(path) is not kind:
            raise Unsaveable(f"it became a {kind.__name__}")
        return {"enum": value.name}
    if is_dataclass(value) and record_class(full_name(kind), known) is kind and not has_protocol(value):
        return {"record": full_name(kind), "attributes": _encoded_attributes(value, known, path, within)}
    _refuse_positions(value)
    in_place = is_generator(value) or is_metric(value) or isinstance(value, nn.Module) or has_protocol(value)
    if is_runs(value, known) or not (in_place or is_users_object(value)):
        name = getattr(value, "__qualname__", None)
        if callable(value) and name:
            raise Unsaveable(f"it became {name}", "store a name or a number that changes, and use it to choose")
        raise Unsaveable(f"it is a {kind.__name__}")
    if known.types.get(path) is not kind:
        raise Unsaveable(
            f"a new {kind.__name__} was made since training began",
            "create it in __init__, setup or on_fit_start, and change it later",
        )
    if is_generator(value):
        known.take(5120)
        return {"generator": state_of_generator(value)}
    if is_metric(value):
        state = metric_state(value)
        known.take(_size(state["states"]))
        return {"metric": state}
    if in_place:
        saved = state_of(value)
        if (place := not_plain(saved)) is not None:
            raise Unsaveable(f"its state_dict() holds an object that is no plain value at {place}")
        known.take(_size(saved))
        return {"state": saved}
    return {"object": _encoded_attributes(value, known, path, within)}


def _encoded_attributes(value: Any, known: Known, path: str, within: tuple[int, ...]) -> dict[str, Any]:
    return {name: encode(item, known, f"{path}.{name}", within) for name, item in attributes_of(value).items()}


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
    if isinstance(value, io.IOBase) and not value.closed:
        raise Unsaveable("an open file, which a resumed run opens again", "open it in setup, in append mode")
    if isinstance(value, Iterator) and not is_users_object(value):
        raise Unsaveable(
            f"an iterator ({type(value).__name__}), whose position cannot be saved",
            "store the number of items taken, and skip as many when it is created again",
        )


# from plain values
def restored(encoded: Any, current: Any, known: Known, same: bool = True) -> Any:
    """Return the value that was encoded.

    Args:
        current: The current value, ABSENT if there is none. Objects are restored in place, and so are containers and
            tensors, which other objects may share.
        same: Whether the saved value was still the same object as when training began.
    """
    if isinstance(encoded, list):
        items = _items(encoded, current, known)
        if same and type(current) is list:
            current[:] = items
            return current
        return items
    if not isinstance(encoded, dict):
        return encoded
    kind = next(iter(encoded))
    return _RESTORE[kind](encoded, current, known, same)


def _items(encoded: list[Any], current: Any, known: Known) -> list[Any]:
    present = list(current) if isinstance(current, (list, tuple, deque)) else []
    present += [ABSENT] * (len(encoded) - len(present))
    return [restored(item, now, known) for item, now in zip(encoded, present, strict=False)]


def _restore_part(encoded: Any, current: Any, known: Known, same: bool) -> Any:  # noqa: ARG001  one signature for all
    if encoded["part"] not in known.parts:
        raise Unsaveable(f"it was the module's {encoded['part']!r}, which does not exist")
    return known.parts[encoded["part"]]


def _restore_tensor(encoded: Any, current: Any, known: Known, same: bool) -> Any:
    saved = encoded["tensor"]
    if same and isinstance(current, Tensor) and (current.shape, current.dtype) == (saved.shape, saved.dtype):
        with torch.no_grad():
            current.copy_(saved)
        return current
    moved = saved.to(known.device) if encoded["on_device"] else saved.clone()
    return moved.requires_grad_(encoded["grad"])


def _restore_array(encoded: Any, current: Any, known: Known, same: bool) -> Any:  # noqa: ARG001  one signature for all
    import numpy  # optional: numpy

    saved = numpy.frombuffer(encoded["array"], encoded["dtype"]).reshape(encoded["shape"])
    fits = isinstance(current, numpy.ndarray) and (current.shape, current.dtype) == (saved.shape, saved.dtype)
    if same and fits and current.flags.writeable:
        current[...] = saved
        return current
    return saved.copy() if encoded["shape"] or isinstance(current, numpy.ndarray) else saved[()]


def _restore_mapping(encoded: Any, current: Any, known: Known, same: bool) -> Any:
    present = current if isinstance(current, Mapping) else {}
    keys = [restored(key, ABSENT, known) for key in encoded["keys"]]
    entries = zip(keys, encoded["values"], strict=True)
    values = [restored(value, present.get(key, ABSENT), known) for key, value in entries]
    if same and type(current).__name__ == encoded["mapping"]:
        current.clear()
        current.update(dict(zip(keys, values, strict=True)))  # a Counter would count the pairs
        return current
    kinds: dict[str, Any] = {"OrderedDict": OrderedDict, "Counter": Counter, "dict": dict}
    if encoded["mapping"] == "defaultdict":
        factory = getattr(current, "default_factory", None) or _FACTORIES.get(encoded["factory"] or "")
        return defaultdict(factory, zip(keys, values, strict=True))
    if encoded["mapping"] not in kinds:
        raise Unsaveable(f"it was a {encoded['mapping']}, but is {_named(current)} here")
    return kinds[encoded["mapping"]](dict(zip(keys, values, strict=True)))


def _restore_sequence(encoded: Any, current: Any, known: Known, same: bool) -> Any:
    kind = next(iter(encoded))
    items = _items(encoded[kind], current, known)
    if kind in ("set", "deque") and same and type(current).__name__ == kind:
        current.clear()
        (current.update if kind == "set" else current.extend)(items)
        return current
    if kind == "deque":
        return deque(items, encoded["maxlen"])
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](items)


def _restore_record(encoded: Any, current: Any, known: Known, same: bool) -> Any:
    kind: Any = record_class(encoded["record"], known)
    if kind is None:
        raise Unsaveable(f"it was a {encoded['record'].partition(':')[2]}, which this program does not have")
    if "items" in encoded:
        return tuple.__new__(kind, _items(encoded["items"], current, known))
    target = current if same and type(current) is kind else object.__new__(kind)
    now = attributes_of(target)
    for name, attribute in encoded["attributes"].items():
        give(target, name, restored(attribute, now.get(name, ABSENT), known))
    return target


def _restore_enum(encoded: Any, current: Any, known: Known, same: bool) -> Any:  # noqa: ARG001  one signature for all
    if not isinstance(current, enum.Enum) or encoded["enum"] not in type(current).__members__:
        raise Unsaveable(f"it was the enumeration's member {encoded['enum']!r}, but is {_named(current)} here")
    return type(current)[encoded["enum"]]


def _restore_plain(encoded: Any, current: Any, known: Known, same: bool) -> Any:  # noqa: ARG001  one signature for all
    (kind, saved), *_ = encoded.items()
    if kind == "path":
        return type(current)(saved) if isinstance(current, pathlib.PurePath) else pathlib.Path(saved)
    if kind == "timedelta":
        return datetime.timedelta(*saved)
    times: dict[str, Any] = {time.__name__: time for time in TIMES}
    return times[kind].fromisoformat(saved)


def _restore_object(encoded: Any, current: Any, known: Known, same: bool) -> Any:  # noqa: ARG001  one signature for all
    (kind, saved), *_ = encoded.items()
    fits = {"generator": is_generator, "metric": is_metric, "state": has_protocol, "object": is_users_object}[kind]
    if current is ABSENT or not (fits(current) or (kind == "object" and hasattr(current, "__dict__"))):
        raise Unsaveable(f"its state cannot be loaded into {_named(current)}")
    if kind == "generator":
        set_generator_state(current, saved)
    elif kind == "metric":
        load_metric_state(current, copy.deepcopy(saved))
    elif kind == "state":
        current.load_state_dict(copy.deepcopy(saved))  # it may keep and change its argument, which is saved again
    else:
        now = attributes_of(current)
        for name, attribute in saved.items():
            give(current, name, restored(attribute, now.get(name, ABSENT), known))
    return current


def _named(value: Any) -> str:
    return "missing" if value is ABSENT else f"a {type(value).__name__}"


_RESTORE: dict[str, Callable[[Any, Any, Known, bool], Any]] = {
    "part": _restore_part,
    "tensor": _restore_tensor,
    "array": _restore_array,
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
        return one.shape == other.shape and torch.equal(one.cpu(), other.cpu())
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    try:
        return bool(one is other or one == other or (one != one and other != other))
    except Exception:  # noqa: BLE001  the user's objects
        return False
