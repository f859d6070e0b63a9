"""User values: classifies the values that the user's objects hold, and lists the run's own parts."""

from __future__ import annotations

import datetime
import enum
import sys
from dataclasses import dataclass, field, is_dataclass, replace
from types import MemberDescriptorType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightlib.core.values.source import LIBRARIES, root_of

ABSENT: Any = object()
LARGEST = 2**28  # bytes that the automatic part of a checkpoint may have, on each rank
COPIED = 2**24  # and of what is copied when an epoch or a validation begins
MOST = 50_000  # values within one attribute that are compared
SCALARS = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)
TIMES = (datetime.datetime, datetime.date, datetime.time)


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
class Known:
    """The run's own parts, and the state of one pass over the user's values.

    Attributes:
        names: The names of the run's modules, parameters and buffers, by `id`: checkpoints hold them as weights.
        device: The device for tensors that were not on the CPU.
        roots: The packages of the user's classes, whose records can be rebuilt.
        types: The types of objects that can only be restored in place, by path.
        ids: The `id` of the containers that existed when training began.
        room: How many bytes may still be written.
        seen: Numbers of the values visited in this pass, by `id`; `kept` keeps temporary ones alive until it ends.
        left: How many values of the current attribute may still be compared.
    """

    names: dict[int, str] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    roots: frozenset[str] = frozenset()
    types: dict[str, type] = field(default_factory=dict)
    ids: set[int] = field(default_factory=set)
    room: int = LARGEST
    seen: dict[int, int] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    left: int = MOST

    def again(self, room: int = LARGEST, types: dict[str, type] | None = None) -> Known:
        """Return a copy for another pass: with nothing seen, and its own types unless they are given."""
        return replace(self, types={} if types is None else types, room=room, seen={}, kept=[], left=MOST)

    def use_containers(self, ids: set[int]) -> None:
        """Set the containers that existed when training began."""
        self.ids = ids

    def begin_attribute(self) -> None:
        """Allow the full number of values for another attribute."""
        self.left = MOST

    def count_value(self) -> bool:
        """Count a value that is compared; return whether it is still within the limit."""
        self.left -= 1
        return self.left >= 0

    def reset_room(self, room: int) -> None:
        """Undo `take` after an error."""
        self.room = room

    def take(self, size: int) -> None:
        """Count bytes to be written."""
        self.room -= size
        if self.room < 0:
            raise TooLarge(f"it takes a checkpoint's automatic part to more than {LARGEST >> 20} MiB")


def has_protocol(value: Any) -> bool:
    """Whether an object has `state_dict` and `load_state_dict`."""
    kind = type(value)
    return all(callable(getattr(kind, name, None)) for name in ("state_dict", "load_state_dict"))


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, from its `__dict__` and slots, without those in `not_in_checkpoint`."""
    attributes = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                attributes.setdefault(name, getattr(value, name))
    without = getattr(type(value), "not_in_checkpoint", ())
    for name in (without,) if isinstance(without, str) else without:
        attributes.pop(name, None)
    return {name: attribute for name, attribute in attributes.items() if not name.startswith("__")}


def is_users_object(value: Any) -> bool:
    """Whether a value is an instance of a user's class, compared and saved attribute by attribute."""
    kind = type(value)
    plain = isinstance(value, (type, nn.Module, Tensor, enum.Enum, BaseException)) or _is_ours(kind)
    return not plain and root_of(kind) not in LIBRARIES and bool(attributes_of(value))


def _is_ours(kind: type) -> bool:
    return any(base.__module__.partition(".")[0] == "lightlib" for base in kind.__mro__)


def is_runs(value: Any, known: Known) -> bool:
    """Whether an object belongs to the run, or reads data: user state does not include its attributes."""
    if isinstance(value, nn.Module):
        return any(id(parameter) in known.names for parameter in value.parameters())
    return isinstance(value, DataLoader) or _is_ours(type(value))


def state_of(value: Any) -> Any:
    """Return an object's `state_dict()`."""
    try:
        return value.state_dict()
    except Exception as error:
        raise Unsaveable(f"its state_dict() failed: {error!r}") from error


def give(held: Any, name: str, value: Any) -> None:
    """Set an attribute of an object without calling its `__setattr__`, which may have side effects."""
    of_class = getattr(type(held), name, None)
    if name.startswith("__") or callable(of_class) or isinstance(of_class, property):
        raise Unsaveable(f"{type(held).__name__} has a method or property of this name")
    if hasattr(held, "__dict__") and not isinstance(of_class, MemberDescriptorType):
        held.__dict__[name] = value
    else:
        object.__setattr__(held, name, value)


def full_name(kind: type) -> str:
    """Return the module and the name of a class, from which `record_class` finds it."""
    return f"{kind.__module__}:{kind.__qualname__}"


def record_class(name: str, known: Known) -> type | None:
    """Return the named tuple or dataclass of this name, if the user defined it and the program has imported it."""
    module, _, qualname = name.partition(":")
    kind: Any = sys.modules.get(module) if module.partition(".")[0] in known.roots else None
    for part in qualname.split("."):
        kind = getattr(kind, part, None)
    fits = isinstance(kind, type) and (is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields")))
    return kind if fits else None
