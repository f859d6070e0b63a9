"""User values: what kind of value an object of the user holds, seen against what the run has."""

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

__all__ = [
    "ABSENT",
    "COPIED",
    "SCALARS",
    "TIMES",
    "Known",
    "TooLarge",
    "Unsaveable",
    "attributes_of",
    "full_name",
    "give",
    "has_protocol",
    "is_runs",
    "is_users_object",
    "record_class",
    "state_of",
]

ABSENT: Any = object()
LARGEST = 2**28  # bytes that the automatic part of a checkpoint may have, on each rank
COPIED = 2**24  # and of what is copied when an epoch or a validation begins
MOST = 50_000  # values within one attribute that are compared
SCALARS = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)
TIMES = (datetime.datetime, datetime.date, datetime.time)


class Unsaveable(Exception):
    """A value that cannot be written as plain values; the text says why.

    Attributes:
        fix: What helps, where it is more than to save it by hand.
    """

    def __init__(self, why: str, fix: str = "") -> None:
        super().__init__(why)
        self.fix = fix


class TooLarge(Unsaveable):
    """A value that takes more bytes than there are left."""


@dataclass
class Known:
    """What the values are seen against.

    Attributes:
        names: The names of the run's own modules, parameters and buffers, by `id`: they are saved elsewhere.
        parts: The same objects by name.
        device: Where tensors go that were not on the CPU.
        roots: The packages of the user's classes: records of theirs can be made again.
        types: The types of objects that can only be restored in place, by their path, as the run found them.
        ids: The containers that were there when training began, by `id`.
        room: How many bytes may still be written.
        seen: What this look has come to already, by `id`; `kept` holds what would be gone before the look ends.
        left: How many values of an attribute are still looked at.
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

    def again(self, room: int = LARGEST) -> Known:
        """Return the same for another look: with its own types, all the room, and nothing seen."""
        return replace(self, types={}, room=room, seen={}, kept=[], left=MOST)

    def take(self, size: int) -> None:
        """Count bytes that are to be written.

        Raises:
            TooLarge: They are too many.
        """
        self.room -= size
        if self.room < 0:
            raise TooLarge(f"it takes a checkpoint's automatic part to more than {LARGEST >> 20} MiB")


def has_protocol(value: Any) -> bool:
    """Whether an object saves and loads its own state."""
    kind = type(value)
    return all(callable(getattr(kind, name, None)) for name in ("state_dict", "load_state_dict"))


def attributes_of(value: Any) -> dict[str, Any]:
    """Return what an object holds, in its `__dict__` and its slots, and is not opted out of checkpoints."""
    own = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                own.setdefault(name, getattr(value, name))
    without = getattr(type(value), "not_in_checkpoint", ())
    for name in (without,) if isinstance(without, str) else without:
        own.pop(name, None)
    return {name: one for name, one in own.items() if not name.startswith("__")}


def is_users_object(value: Any) -> bool:
    """Whether a value is an instance of a class whose attributes can be looked at one by one."""
    kind = type(value)
    plain = isinstance(value, (type, nn.Module, Tensor, enum.Enum, BaseException)) or _is_ours(kind)
    return not plain and root_of(kind) not in LIBRARIES and bool(attributes_of(value))


def _is_ours(kind: type) -> bool:
    return any(one.__module__.partition(".")[0] == "lightlib" for one in kind.__mro__)


def is_runs(value: Any, known: Known) -> bool:
    """Whether an object belongs to the run, or reads data: what it holds is saved elsewhere, or nowhere."""
    if isinstance(value, nn.Module):
        return any(id(parameter) in known.names for parameter in value.parameters())
    return isinstance(value, DataLoader) or _is_ours(type(value))


def state_of(value: Any) -> Any:
    """Return what an object's own `state_dict` returns.

    Raises:
        Unsaveable: It failed: it is asked at a moment that its author may not have expected.
    """
    try:
        return value.state_dict()
    except Exception as error:
        raise Unsaveable(f"its state_dict() failed: {error!r}") from error


def give(held: Any, name: str, value: Any) -> None:
    """Give an object an attribute without asking its `__setattr__`, which may do more than that.

    Raises:
        Unsaveable: It is no attribute that an instance may have: only a forged checkpoint holds such a one.
    """
    of_class = getattr(type(held), name, None)
    if name.startswith("__") or callable(of_class) or isinstance(of_class, property):
        raise Unsaveable(f"{type(held).__name__} has a method or property of this name")
    if hasattr(held, "__dict__") and not isinstance(of_class, MemberDescriptorType):
        held.__dict__[name] = value
    else:
        object.__setattr__(held, name, value)


def full_name(kind: type) -> str:
    """Return the module and the name of a class, as `record_class` finds it again."""
    return f"{kind.__module__}:{kind.__qualname__}"


def record_class(name: str, known: Known) -> type | None:
    """Return the named tuple or dataclass of a name, if it is one of the user's, imported by the program itself."""
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module) if module.partition(".")[0] in known.roots else None
    for part in qualname.split("."):
        found = getattr(found, part, None)
    fits = isinstance(found, type) and (is_dataclass(found) or (issubclass(found, tuple) and hasattr(found, "_fields")))
    return found if fits else None
