"""User values: classifies the values that the user's objects hold, and lists the run's own parts."""

from __future__ import annotations

import argparse
import collections
import datetime
import enum
import queue
import sys
from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from types import FunctionType, MemberDescriptorType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightlib.core.values.class_source import LIBRARIES, root_of

ABSENT: Any = object()
LARGEST = 2**28  # bytes that the automatic part of a checkpoint may have, on each rank
COPIED = 2**24  # and of what is copied when an epoch or a validation begins
SCALARS = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)
TIMES = (datetime.datetime, datetime.date, datetime.time)
DEEPEST = 60  # levels of nested values that are saved; deeper ones are compared
IN_PLACE = (OrderedDict, dict, list, deque, set)  # subclasses of these are filled again
# Objects of the standard library that are saved like a user's, and made again if training made them.
_DATA = (
    SimpleNamespace, argparse.Namespace, collections.UserList, collections.UserDict, collections.UserString,
    collections.ChainMap, queue.Queue,
)  # fmt: skip
_ATTRIBUTES = {queue.Queue: ("queue", "unfinished_tasks", "maxsize")}  # the rest are locks


class Unsaveable(Exception):
    """A value that cannot be written as plain values; the text gives the reason.

    Attributes:
        fix: The fix, if it is not to save the value by hand.
    """

    def __init__(self, why: str, fix: str = "") -> None:
        super().__init__(why)
        self.fix = fix


class TooLarge(Unsaveable):
    """A value that takes more bytes than are left."""


@dataclass
class SnapshotContext:
    """The run's own parts, and the state of one pass over the user's values.

    Attributes:
        names: The names of the run's modules, parameters and buffers, by `id`: checkpoints hold them as weights.
        device: The device for tensors that were not on the CPU.
        roots: The packages of the user's classes, whose records can be rebuilt.
        types: The types of objects that can only be restored in place, by path; of a function, the function.
        fixed: Digests, when training began, of the objects that cannot be saved, by path.
        ids: Where each object was found when training began, by `id`; empty at that moment.
        room: How many bytes may still be written.
        seen: Paths of the values visited in this pass, by `id`; `kept` keeps temporary ones alive until it ends.
        compared: How many bytes of tensors and arrays were compared in full in this pass.
    """

    names: dict[int, str] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    roots: frozenset[str] = frozenset()
    types: dict[str, Any] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)
    room: int = LARGEST
    seen: dict[int, str] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    compared: int = 0

    def again(self, room: int = LARGEST, start: SnapshotContext | None = None) -> SnapshotContext:
        """Return a copy for another pass: with nothing seen, and the findings from the start of training, if given."""
        types, fixed = ({}, {}) if start is None else (start.types, start.fixed)
        return replace(self, types=types, fixed=fixed, room=room, seen={}, kept=[], compared=0)

    def use_containers(self, ids: dict[int, str]) -> None:
        """Set the objects that existed when training began."""
        self.ids = ids

    def compare_in_full(self, size: int, most: int) -> bool:
        """Whether so many bytes may be compared in full, of at most `most` in this pass; count them if so."""
        self.compared += size
        return self.compared <= most

    def reset_room(self, room: int) -> None:
        """Undo `take` after an error."""
        self.room = room

    def take(self, size: int) -> None:
        """Count bytes to be written."""
        self.room -= size
        if self.room < 0:
            raise TooLarge(f"it takes a checkpoint's automatic part to more than {LARGEST >> 20} MiB")


def is_a(value: Any, kinds: Any) -> bool:
    """Whether the type of a value is one of `kinds`: `isinstance` may call the user's `__getattribute__`."""
    return issubclass(type(value), kinds)


def of_class(kind: type, name: str, default: Any = None) -> Any:
    """Return an attribute of a class as it is stored, without calling the user's code."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), default)


def is_dataclass_type(kind: type) -> bool:
    """Whether a class is a dataclass: `dataclasses.is_dataclass` may call a user's metaclass."""
    return of_class(kind, "__dataclass_fields__") is not None


def has_protocol(value: Any) -> bool:
    """Whether an object has `state_dict` and `load_state_dict`."""
    kind = type(value)
    return all(callable(of_class(kind, name)) for name in ("state_dict", "load_state_dict"))


def dict_of(value: Any) -> dict[str, Any]:
    """Return the `__dict__` of an object; it is empty if it has none."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except Exception:  # noqa: BLE001  it may be a property of the user's
        return {}
    return attributes if isinstance(attributes, dict) else {}


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, from its `__dict__` and slots, without those in `not_in_checkpoint`."""
    kind = type(value)
    attributes = dict(dict_of(value))
    for base in kind.__mro__:
        if "__slots__" not in vars(base):
            continue
        for name, slot in vars(base).items():
            if isinstance(slot, MemberDescriptorType) and name not in attributes:
                try:
                    attributes[name] = slot.__get__(value)
                except AttributeError:  # it is not set
                    continue
    for base, chosen in _ATTRIBUTES.items():
        if issubclass(kind, base):
            attributes = {name: attributes[name] for name in chosen if name in attributes}
    without = attributes.pop("not_in_checkpoint", of_class(kind, "not_in_checkpoint", ()))
    for name in (without,) if isinstance(without, str) else without:
        attributes.pop(name, None)
    return {name: attribute for name, attribute in attributes.items() if not name.startswith("__")}


def is_users_object(value: Any) -> bool:
    """Whether a value is an instance of a user's class, or a function with attributes: saved attribute by attribute."""
    kind = type(value)
    if is_data(kind):
        return True
    if kind is FunctionType:
        return root_of(value) not in LIBRARIES and bool(attributes_of(value))
    plain = issubclass(kind, (type, nn.Module, Tensor, enum.Enum, BaseException)) or _is_ours(kind)
    return not plain and root_of(kind) not in LIBRARIES and bool(attributes_of(value))


def is_data(kind: type) -> bool:
    """Whether a class of the standard library holds data in attributes."""
    return issubclass(kind, _DATA)


def new_object(name: str) -> Any:
    """Return a new object of a class for which `is_data` holds, by its full name; None without such a class."""
    kinds: dict[str, Any] = {full_name(kind): kind for kind in (*_DATA, queue.LifoQueue, queue.PriorityQueue)}
    kind = kinds.get(name)
    return None if kind is None else kind("") if kind is collections.UserString else kind()


def _is_ours(kind: type) -> bool:
    return any(base.__module__.partition(".")[0] == "lightlib" for base in kind.__mro__)


def is_runs(value: Any, context: SnapshotContext) -> bool:
    """Whether an object belongs to the run, or reads data: user state does not include its attributes."""
    if is_a(value, nn.Module):
        return any(id(parameter) in context.names for parameter in value.parameters())
    return is_a(value, DataLoader) or _is_ours(type(value))


def state_of(value: Any) -> Any:
    """Return an object's `state_dict()`."""
    try:
        return value.state_dict()
    except Exception as error:
        raise Unsaveable(f"its state_dict() failed: {error!r}") from error


def give(held: Any, name: str, value: Any) -> None:
    """Set an attribute of an object or a class without calling its `__setattr__`, which may have side effects."""
    is_class = is_a(held, type)
    kind: type = held if is_class else type(held)
    of_type = of_class(kind, name)
    if name.startswith("__") or callable(of_type) or isinstance(of_type, (property, staticmethod, classmethod)):
        raise Unsaveable(f"{kind.__name__} has a method or property of this name")
    if is_class:
        type.__setattr__(held, name, value)
    elif isinstance(of_type, MemberDescriptorType):
        of_type.__set__(held, value)
    else:
        object.__getattribute__(held, "__dict__")[name] = value


def full_name(kind: type) -> str:
    """Return the module and the name of a class, from which `record_class` finds it."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _imported_class(name: str) -> Any:
    """Return the class of this name if the program has imported it; nothing is imported or called."""
    module, _, qualname = name.partition(":")
    kind: Any = sys.modules.get(module)
    for part in qualname.split("."):
        kind = vars(kind).get(part) if hasattr(kind, "__dict__") else None
    return kind if isinstance(kind, type) else None


def record_class(name: str, context: SnapshotContext) -> type | None:
    """Return the named tuple or dataclass of this name, if the user defined it and the program has imported it."""
    kind = _imported_class(name) if name.partition(":")[0].partition(".")[0] in context.roots else None
    if kind is None:
        return None
    return kind if is_dataclass_type(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields")) else None


def enum_class(name: str) -> Any:
    """Return the enumeration of this name, if the program has imported it."""
    kind = _imported_class(name)
    return kind if kind is not None and issubclass(kind, enum.Enum) else None
